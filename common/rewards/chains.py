r"""What a chain of relations says: `x = 2 + 3 = 5`, `E = hc/\lambda = 3.2`, `\frac{22}{7} \approx 3.14`.

    texts(r"x = 5"), texts("x = 2+3 = 5")           ["5"]
    texts(r"\frac{22}{7} \approx 3.14")             [r"\frac{22}{7}", "3.14"]     exact, and rounded: either may be meant
    texts("x = 3 = 4"), texts(r"249 \approx 250")   None                          two answers

A name may stand first. What stands between has the value of the last, or is a formula of other symbols.
"""

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from common.rewards import expressions, latex, names, numbers, values

_APPROXIMATE = re.compile(r"\\(?:approx|simeq|sim|cong)(?![a-zA-Z])")
_RELATION = rf"=|\\equiv(?![a-zA-Z])|{_APPROXIMATE.pattern}"
_NO_FORMULA = re.compile(r"\d|\\text|(?<![\\a-zA-Z])[a-zA-Z]{3}")  # a number, a word
_EXPONENT = re.compile(r"\^\s*(?:\d|\{\s*\d\s*\})")
_INTEGERS = re.compile(r"\\(gcd|max|min)\s*\((\s*-?\d{1,30}(?:\s*,\s*-?\d{1,30})+\s*)\)")
_OF_INTEGERS: dict[str, Callable[..., int]] = {"gcd": math.gcd, "max": max, "min": min}
_NEAR = Fraction(1, 100)


def texts(text: str) -> list[str] | None:
    """The parts of a text of `latex.plain` that may be its answer, `[text]` of no chain; None where it says two things."""
    parts = latex.cut(text, _RELATION)
    if len(parts) == 1:
        return parts
    signs = re.findall(_RELATION, text)
    if len(signs) != len(parts) - 1:
        return None  # relations in brackets
    label = parts[0]
    is_named = names.is_label(label) and names.fits(parts[0], parts[-1])
    if parts[0] == "" or is_named:
        parts, signs = parts[1:], signs[1:]
    is_rounding = [_APPROXIMATE.fullmatch(sign) is not None for sign in signs]
    if any(is_rounding[:-1]):
        return None
    while is_named and len(parts) > 1 and is_formula(parts[0], label) and value(parts[-1]) is not None:
        parts = parts[1:]
    if len(parts) == 1:
        return parts
    if not is_equal(parts[:-1]) or not (is_equal(parts[-2:]) or is_rounded(parts[-2], parts[-1])):
        return None
    return parts[-2:] if is_rounding[-1] else parts[-1:]


def is_equal(parts: Sequence[str]) -> bool:
    """Whether all have a value, and the same one."""
    found = [value(part) for part in parts]
    return found[0] is not None and all(one is not None and numbers.same(found[0], one) for one in found)


def is_rounded(exact: str, rounded: str) -> bool:
    """Whether the second is the first in fewer digits, within 1 %; the first has no decimal point, unless it is an expression."""
    left, right = value(exact), numbers.read_plain(rounded)
    if left is None or right is None or left.digits or right.value == 0 or left.value.denominator == 1:
        return False
    difference = abs(left.value - right.value)
    unit = _last_place(right) if right.digits else Fraction(1, 2)  # a decimal may be cut off, an integer is rounded
    return difference <= unit and difference <= _NEAR * abs(left.value)


def value(text: str) -> numbers.Number | None:
    """A number, or the value of an expression without symbols (`\\sqrt{2}`, `2+3`)."""
    number = numbers.read_plain(text)
    if number is None and (found := _of_integers(text) or expressions.value(text)) is not None:
        number = numbers.Number(found)
    return number


def _of_integers(text: str) -> Fraction | None:
    """`\\gcd(10, 15)`, `\\max(2, 5)`."""
    match = _INTEGERS.fullmatch(text.strip())
    return Fraction(_OF_INTEGERS[match[1]](*map(int, match[2].split(",")))) if match else None


def _last_place(number: numbers.Number) -> Fraction:
    """The size of one in the last written digit."""
    power, size = 0, abs(number.value)
    while size >= 10 ** (power + 1):
        power += 1
    while size < Fraction(10) ** power:
        power -= 1
    return Fraction(10) ** (power - number.digits + 1)


def is_formula(text: str, label: str) -> bool:
    """What stands between a name and its value, of symbols alone (`E = mc^2 = 5`): it says nothing about the value.

    Not of the name itself (`x = \\sqrt{x} = 5`), nor with a number, which may be a value with its unit.
    """
    if names.is_label(text):
        return text.strip() != label.strip()
    if _NO_FORMULA.search(_EXPONENT.sub("", text)):
        return False
    try:
        found = values.symbols(values.parse(text))
    except (values.Unreadable, RecursionError):
        return False
    return bool(found) and not found & _symbols_of(label)


def _symbols_of(label: str) -> set[str]:
    try:
        return values.symbols(values.parse(label))
    except (values.Unreadable, RecursionError):
        return set()
