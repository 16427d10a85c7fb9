"""Numbers of answer fields, exactly: nothing passes through a float."""

import re
from decimal import Decimal
from fractions import Fraction

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\.)?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_SIMPLE = r"[+-]?[\d.]+"
_SCALED = re.compile(rf"({_SIMPLE})\\(?:times|cdot)10\^\{{?([+-]?\d{{1,3}})\}}?", re.ASCII)
_FRACTION = re.compile(r"([+-]?)(?:\\[dt]?frac\{(\d+)\}\{(\d+)\}|(\d+)/(\d+))", re.ASCII)
_POWER = re.compile(r"10\^\{?([+-]?\d{1,3})\}?(?![\d.])", re.ASCII)


def read_decimal(text: str) -> Decimal | None:
    """The one number that `text` is, thousands commas, blanks and a Unicode minus sign allowed; None where it is none."""
    plain = _plain(text)
    if not _NUMBER.fullmatch(plain) or not any(sign.isdigit() for sign in plain):
        return None
    return Decimal(plain.replace(",", ""))


def scale(number: Decimal, power: int) -> Decimal:
    """`number` times ten to `power`, no digit lost or added."""
    sign, digits, exponent = number.as_tuple()
    return Decimal((sign, digits, int(exponent) + power))


def write(number: Decimal) -> str:
    """Plain decimal digits: no exponent, no plus sign; zeros at the end are kept."""
    return format(number, "f")


def read_latex(text: str) -> Fraction | None:
    r"""Value of a number in simple LaTeX: `4.2`, `1.7 \times 10^{-5}`, `\frac{1}{3}`, `1/3`; None where it is anything else."""
    plain = _plain(text.replace("$", ""))
    number = read_decimal(plain)
    if number is not None:
        return Fraction(number)
    if match := _SCALED.fullmatch(plain):
        number = read_decimal(match[1])
        return None if number is None else Fraction(scale(number, int(match[2])))
    if match := _FRACTION.fullmatch(plain):
        top, bottom = match[2] or match[4], match[3] or match[5]
        return Fraction(int(f"{match[1]}{top}"), int(bottom)) if int(bottom) else None
    return None


def power_of_ten(unit: str) -> int | None:
    r"""The exponent of the power of ten that a unit begins with (`10^{-19} \mathrm{~J}`: -19); None where it has none."""
    match = _POWER.match(_plain(unit).replace(r"\mathrm{", "").lstrip("${"))
    return int(match[1]) if match else None


def _plain(text: str) -> str:
    return "".join(text.split()).replace("−", "-")
