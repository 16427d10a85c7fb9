"""Operations on values (`common.rewards.values`): exact while they can be, else with mpmath. Nothing takes long."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath

from common.rewards.values import DIGITS, MAX_BITS, MAX_POWER, Unreadable

MIN_GAMMA = -1000  # of a factorial: below, its time grows with the argument
CONTEXT = mpmath.MPContext()
CONTEXT.dps = DIGITS


def inexact(value: Any) -> Any:
    """As a number of mpmath."""
    return CONTEXT.mpf(value.numerator) / value.denominator if isinstance(value, int | Fraction) else value


def constant(name: str) -> Any:
    """`pi`, `e`, `i`, or `degree`: a degree in radians."""
    return {"pi": +CONTEXT.pi, "e": +CONTEXT.e, "i": CONTEXT.mpc(0, 1), "degree": CONTEXT.pi / 180}[name]


def _is_exact(*values: Any) -> bool:
    return all(isinstance(value, int | Fraction) and not isinstance(value, bool) for value in values)


def _plain(value: Any) -> Any:
    """A fraction that is an integer as one."""
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def _pair(left: Any, right: Any) -> tuple[Any, Any]:
    if _is_exact(left, right) and _bits(left) < MAX_BITS and _bits(right) < MAX_BITS:
        return left, right
    return inexact(left), inexact(right)


def _bits(value: Any) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _add(left: Any, right: Any) -> Any:
    left, right = _pair(left, right)
    return _plain(left + right)


def _multiply(left: Any, right: Any) -> Any:
    left, right = _pair(left, right)
    return _plain(left * right)


def _divide(left: Any, right: Any) -> Any:
    if right == 0:
        raise Unreadable("a division by zero")
    left, right = _pair(left, right)
    return _plain(Fraction(left) / right if isinstance(left, int) else left / right)


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > MAX_POWER:
        raise Unreadable("a power is too large")
    if base == 0:
        if _real(exponent) <= 0:
            raise Unreadable("zero to the power of zero or less")
        return 0
    if _is_exact(base, exponent) and isinstance(_plain(exponent), int) and _bits(base) * abs(exponent) < MAX_BITS:
        return _plain(Fraction(base) ** int(exponent))
    return CONTEXT.power(inexact(base), inexact(exponent))


def _root(value: Any, degree: Any) -> Any:
    if degree == 0:
        raise Unreadable("a root of degree zero")
    if _is_exact(value, degree) and value >= 0 and degree == 2:
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return _plain(Fraction(top, bottom))
    if _is_exact(value, degree) and value < 0 and isinstance(degree, int) and degree % 2:
        return -_power(-value, Fraction(1, degree))  # the real root: -2 for the third root of -8
    return _power(value, _divide(1, degree))


def _factorial(value: Any) -> Any:
    if abs(value) > MAX_POWER or _real(value) < MIN_GAMMA:
        raise Unreadable("a factorial is too large")
    if isinstance(value, int) and 0 <= value < 1000:
        return math.factorial(value)
    return CONTEXT.gamma(inexact(value) + 1)


def _binomial(top: Any, bottom: Any) -> Any:
    if isinstance(top, int) and isinstance(bottom, int) and 0 <= bottom <= top < 1000:
        return math.comb(top, bottom)
    if max(abs(top), abs(bottom)) > MAX_POWER or min(_real(top), _real(bottom), _real(top) - _real(bottom)) < MIN_GAMMA:
        raise Unreadable("a binomial is too large")
    return CONTEXT.binomial(inexact(top), inexact(bottom))


def _logarithm(value: Any, base: Any) -> Any:
    if value == 0 or base in (0, 1):
        raise Unreadable("a logarithm without a value")
    return CONTEXT.ln(inexact(value)) / CONTEXT.ln(inexact(base))


def _exponential(value: Any) -> Any:
    return _power(CONTEXT.e, value)


def _real(value: Any) -> Any:
    return value.real if hasattr(value, "real") else value


def _rounded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def rounded(value: Any) -> Any:
        if _is_exact(value):
            return function(value)
        nearest = CONTEXT.nint(_real(value))
        is_whole = abs(value - nearest) < CONTEXT.mpf(10) ** (5 - DIGITS) * max(1, abs(nearest))
        whole = nearest if is_whole else {math.floor: CONTEXT.floor, math.ceil: CONTEXT.ceil}[function](_real(value))
        return int(whole) if abs(whole) < 2**64 else whole

    return rounded


def _of_library(name: str) -> Callable[[Any], Any]:
    function = getattr(CONTEXT, name)

    def call(value: Any) -> Any:
        if abs(value) > MAX_POWER:
            raise Unreadable(f"the argument of {name} is too large")
        return function(inexact(value))

    return call


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": _add,
    "multiply": _multiply,
    "divide": _divide,
    "power": _power,
    "root": _root,
    "factorial": _factorial,
    "binomial": _binomial,
    "absolute": abs,
    "floor": _rounded(math.floor),
    "ceiling": _rounded(math.ceil),
    "log": _logarithm,
    "ln": lambda value: _logarithm(value, CONTEXT.e),
    "exp": _exponential,
    **{name: _of_library(name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth")},
    **{name: _of_library(name) for name in ("asin", "acos", "atan", "acot", "asec", "acsc")},
}
