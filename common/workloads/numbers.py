"""Numbers of answer fields, exactly: nothing passes through a float."""

import re
from decimal import Decimal

MAX_POWER = 400  # larger powers of ten are no answers: all their digits would have to be written
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\.)?(?:[eE][+-]?\d{1,3})?", re.ASCII)


def read_decimal(text: str) -> Decimal | None:
    """The one number that `text` is, thousands commas, blanks and a Unicode minus sign allowed; None where it is none, or one
    of more than MAX_POWER digits before or zeros behind the point.
    """
    plain = "".join(text.split()).replace("−", "-")
    if not _NUMBER.fullmatch(plain) or not any(sign.isdigit() for sign in plain):
        return None
    number = Decimal(plain.replace(",", ""))
    return number if abs(number.adjusted()) <= MAX_POWER else None


def scale(number: Decimal, power: int) -> Decimal:
    """`number` times ten to `power`, no digit lost or added."""
    sign, digits, exponent = number.as_tuple()
    return Decimal((sign, digits, int(exponent) + power))


def write(number: Decimal) -> str:
    """Plain decimal digits: no exponent, no plus sign; zeros at the end are kept."""
    return format(number, "f")
