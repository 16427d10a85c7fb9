r"""Numbers as people and models write them, as exact values.

    read("1.6e-19"), read(r"1.6 \times 10^{-19}\ \mathrm{C}"), read("q = 1.6·10⁻¹⁹ C")      the same number
    read("1,000"), read(r"1{,}000"), read(r"1\,000"), read(r"\$1,000.00")                    the same number
    read("3 or 4"), read("3.2.1"), read("1,2,3"), read("3 - 5"), read("5x")                  None: not one number

A unit after the number is left out, whatever it is (`common.rewards.units`).
"""

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

from common.rewards import latex, names, units

MAX_EXPONENT = 1000  # larger powers of ten are not read: their digits would fill the memory
MAX_DIGITS = 4000  # longer ones are not read: Python has a limit
MAX_UNIT_POWER = 400  # of ten, in a unit
WRITTEN_DIGITS = 6  # a decimal of so many digits may stand for a value that has no finite decimal ...
WRITTEN_ERROR = Fraction(1, 10**6)  # ... within this relative error

_POWER = r"10\s*\^\s*(?:\{\s*\(?([-+]?\s*\d+)\)?\s*\}|\(\s*([-+]?\d+)\s*\)|([-+]?\d+))"
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?![\d,]\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_NUMBER = re.compile(
    rf"(?P<digits>{_DECIMAL})(?:[eE](?P<e>[-+]?\d+)(?![\w.])|\s*(?:\\times|\\cdot|\*|x)\s*{_POWER})?(?![\d]|\.\d|,\d)"
)
_BARE_POWER = re.compile(rf"{_POWER}(?![\d.])")
_FRACTION = re.compile(
    rf"(?:(?P<whole>\d+)\s*(?=\\frac)|(?P<plain_whole>\d+) (?=\d+/))?"
    rf"(?:\\frac\s*\{{\s*(?P<top>[-+]?{_DECIMAL})\s*\}}\s*\{{\s*(?P<bottom>[-+]?{_DECIMAL})\s*\}}"
    rf"|(?P<over>{_DECIMAL})\s*/\s*(?P<under>{_DECIMAL}))(?![\d/]|\.\d|,\d)"
)
_REPEATING = re.compile(
    r"(?P<whole>\d*)\.(?P<once>\d{0,9})\\(?:overline|bar)\s*(?:\{\s*(?P<again>\d{1,9})\s*\}|(?P<digit>\d))(?![\d.])"
)
_BRACKETED = re.compile(r"\(([^()]*)\)(.*)", re.DOTALL)
_SIGN = re.compile(r"(?:[-+]\s*)?")
_LEAD = re.compile(
    r"\s*(?:(?:\\(?:approx|simeq|sim|cong)(?![a-zA-Z])|=|(?:approximately|about|approx\.?|USD|US|Rs\.?|€|£)(?![a-zA-Z]))\s*)*"
)
RELATION = r"=|\\(?:approx|simeq|equiv)(?![a-zA-Z])"
_FACTOR = re.compile(r"^[^a-zA-Z\\]*(?:\\frac(?:\{[^{}]*\}){2})?(?:\\times *10\^\{[-\d]*\})? *(?![eE][-+]?\d)[a-zA-Z]")
_PERCENT = re.compile(r"%|(?<![a-zA-Z])(?:percent|percentage|pct)(?![a-zA-Z])")


@dataclass(frozen=True, slots=True)
class Number:
    """A value as written."""

    value: Fraction
    is_percent: bool = False
    digits: int = 0  # significant ones of a decimal; 0: written as an integer or a fraction, so exact
    is_cut: bool = False  # more digits follow (`3.14...`): near the value, not equal to it


def read(text: str, *, has_bare_unit: bool = True) -> Number | None:
    r"""The number that all of `text` says, or None. A symbol before an equals sign (`x = 5`) and a unit after it are left out.

    Without `has_bare_unit` a letter right after the number is a factor (`6m`), and only `6 \text{ m}` has a unit.
    """
    return read_plain(latex.plain(text), has_bare_unit=has_bare_unit)


@functools.lru_cache(maxsize=4096)
def read_plain(text: str, *, has_bare_unit: bool = True) -> Number | None:
    """As `read`, of a text that `latex.plain` returned."""
    parts = latex.cut(latex.unwrap(text), RELATION)
    if not has_bare_unit and _FACTOR.search(parts[-1]):
        return None
    if len(parts) > 1 and not (parts[0] == "" or names.is_label(parts[0])):
        return None
    if len(parts) > 1 and not names.fits(parts[0], parts[-1]):
        return None
    found = [_bare(part) for part in parts[1:] or parts]
    last = found[-1]
    if last is None or any(number is None or not same(number, last) for number in found[:-1]):
        return None  # x = 3 = 4: two answers
    return last


def same(gold: Number, answer: Number, tolerance: Fraction | None = None, *, is_relative: bool = True) -> bool:
    """Equal, or within `tolerance` (inclusive). Where one side alone has a percent sign, it is read either way."""
    pairs = [(gold.value, answer.value)]
    if gold.is_percent != answer.is_percent:
        pairs.append((gold.value, answer.value * 100) if gold.is_percent else (gold.value, answer.value / 100))
    if tolerance is None:
        is_exact = not (gold.is_cut or answer.is_cut)
        return any((is_exact and left == right) or _is_written_for(left, right, gold, answer) for left, right in pairs)
    return any(abs(left - right) <= tolerance * (abs(left) if is_relative else 1) for left, right in pairs)


def power_of_ten(unit: str) -> int:
    r"""The exponent of a power of ten at the head of a unit (`$10^{-19} \mathrm{~J}$`: -19); 0 where there is none.

    Raises ValueError where it is beyond MAX_UNIT_POWER.
    """
    match = _BARE_POWER.match(latex.plain(unit).replace(r"\text{", "").lstrip(" {"))
    exponent = next(group for group in match.groups() if group).replace(" ", "") if match else "0"
    if len(exponent) > 5 or abs(int(exponent)) > MAX_UNIT_POWER:
        raise ValueError(f"has a power of ten beyond {MAX_UNIT_POWER}")
    return int(exponent)


def without_stated(answer: str, unit: str) -> str:
    """Without the unit that the task states, where the answer repeats it (`2 e`, in elementary charges)."""
    stated = latex.compact(re.sub(r"^\W*10\s*\^\s*(?:\{[^{}]*\}|\d)", "", latex.plain(unit)))
    text = latex.plain(answer)
    if not stated or not latex.compact(text).endswith(stated):
        return answer
    starts = (start for start in range(len(text) - 1, 0, -1) if latex.compact(text[start:]) == stated)
    return next((text[:start] for start in starts), answer)  # spaces between words are kept: `5 is wrong`


def _bare(text: str) -> Number | None:
    """A number with what may stand around it, without an equals sign."""
    text = text[_LEAD.match(text).end() :]  # type: ignore[union-attr]
    sign = _SIGN.match(text)[0]  # type: ignore[index]
    rest = latex.unwrap(text[len(sign) :]) if text[len(sign) :].startswith("{") else text[len(sign) :]
    if bracket := _BRACKETED.match(rest):
        inside = _bare(bracket[1])
        scale = units.read(bracket[2]) if inside else None
        if inside and scale:
            value = inside.value * scale * (-1 if sign.strip() == "-" else 1)
            percents = inside.is_percent + len(_PERCENT.findall(bracket[2]))
            return Number(value, percents == 1, inside.digits, inside.is_cut) if percents < 2 else None
    for pattern, convert in ((_REPEATING, _repeating), (_FRACTION, _fraction), (_BARE_POWER, _power), (_NUMBER, _decimal)):
        match = pattern.match(rest)
        if match is None:
            continue
        found = convert(match)
        if pattern is _REPEATING and found and found[0] < 1 and _PERCENT.search(rest):
            return None  # a third of a percent is no third
        return _finished(found, sign.strip() == "-", rest[match.end() :]) if found else None
    return None


def _finished(found: tuple[Fraction, int], is_negative: bool, tail: str) -> Number | None:
    """With its sign, and what follows it read as percent, scale (`million`) and unit."""
    value, digits = found
    is_cut = digits > 0 and tail.startswith("...")
    scale, percents = units.read(tail[3:] if is_cut else tail), len(_PERCENT.findall(tail))
    if scale is None or percents > 1:
        return None
    return Number(-value * scale if is_negative else value * scale, percents == 1, digits, is_cut)


def _decimal(match: re.Match[str]) -> tuple[Fraction, int] | None:
    digits = match["digits"].replace(",", "").replace(" ", "")
    if len(digits) > MAX_DIGITS:
        return None
    exponent = next((group.replace(" ", "") for group in match.groups()[1:] if group), "0")
    if len(exponent) > 5 or abs(int(exponent)) > MAX_EXPONENT:
        return None
    has_point = "." in digits or int(exponent) < 0
    significant = len(digits.replace(".", "").lstrip("0")) if has_point else 0
    return Fraction(digits if digits != "." else "0") * Fraction(10) ** int(exponent), significant


def _power(match: re.Match[str]) -> tuple[Fraction, int] | None:
    exponent = next(group for group in match.groups() if group).replace(" ", "")
    return (Fraction(10) ** int(exponent), 0) if len(exponent) < 6 and abs(int(exponent)) <= MAX_EXPONENT else None


def _fraction(match: re.Match[str]) -> tuple[Fraction, int] | None:
    if len(match[0]) > MAX_DIGITS:
        return None
    top, bottom = (_exact(match[name] or match[other]) for name, other in (("top", "over"), ("bottom", "under")))
    whole = match["whole"] or match["plain_whole"]
    if bottom == 0 or (whole and not 0 <= top / bottom < 1):
        return None
    return (int(whole) if whole else 0) + top / bottom, 0


def _repeating(match: re.Match[str]) -> tuple[Fraction, int] | None:
    """`4.1\\overline{6}` is 4.1 and 6/9 of a tenth."""
    whole, once, again = match["whole"], match["once"], match["again"] or match["digit"]
    if len(whole) > MAX_DIGITS:
        return None
    rest = Fraction(int(again), 10 ** len(again) - 1) / 10 ** len(once)
    return Fraction(f"{whole or 0}.{once or 0}") + rest, 0


def _exact(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", ""))


def _is_written_for(left: Fraction, right: Fraction, gold: Number, answer: Number) -> bool:
    """One is a decimal of many digits, the other a fraction without a finite decimal, and they are as close as can be."""
    for exact, written, digits in ((left, right, answer.digits), (right, left, gold.digits)):
        if digits >= WRITTEN_DIGITS and not _is_finite(exact):
            return abs(exact - written) <= WRITTEN_ERROR * abs(exact)
    return False


def _is_finite(value: Fraction) -> bool:
    """Whether it has a finite decimal."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1
