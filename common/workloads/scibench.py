r"""SciBench: college physics, chemistry and mathematics; a number, asked for in a stated unit.

    problem_text, answer_number ("-1.64"), unit ("$10^{-19} \mathrm{~J}$", may be blank), source (the book), answer_latex

The prompt states the unit with its power of ten, so `unit` is kept in the task as the row has it, and gold is the true value,
answer_number times that power, as plain decimal digits. A row whose answer_latex is a number, and another one than
answer_number beyond the tolerance that answers are given (5 %), contradicts itself and is left out.
"""

import re
from fractions import Fraction

from common.rewards import numbers
from common.workloads.numbers import MAX_POWER, read_decimal, scale, write
from common.workloads.records import BadGold, Record
from common.workloads.rows import LeftOut, Row, Schema

TEMPLATE = "{question}\n\nPlease reason step by step, and put your final answer, a decimal number, within \\boxed{}."
TOLERANCE = Fraction(5, 100)  # the official check's, relative
_POWERS = re.compile(r"10[\s}]*\^[\s({+-]*(\d+)")
CONTRADICTION = "answer_number and answer_latex contradict each other"


def _read(record: Record) -> Row | LeftOut:
    problem = record.text("problem_text").strip()
    unit = _unit(record.optional_text("unit"))
    if any(len(digits.lstrip("0")) > 3 or int(digits) > MAX_POWER for digits in _POWERS.findall(unit)):
        raise record.fault("unit", f"must have a power of ten of at most {MAX_POWER}", error=BadGold)
    power = numbers.power_of_ten(unit)
    gold = record.gold_text("answer_number")
    if gold is not None:
        number = read_decimal(gold)
        if number is None:
            raise record.fault("answer_number", "must be a number", error=BadGold)
        if _contradicts(record.optional_text("answer_latex"), Fraction(number), power):
            return LeftOut(record.place, CONTRADICTION)
        gold = write(scale(number, power))
    task = {"workload": record.config.name, "gold": gold, **({"unit": unit} if unit else {})}
    return Row(
        place=record.place,
        question=f"{problem}{_asked_unit(unit)}",
        gold=gold,
        task=task,
        category=record.optional_text("source") or None,
        source_question=problem,
    )


def _unit(text: str) -> str:
    """On one line, and in dollar signs where it is LaTeX without them."""
    unit = re.sub(r"^\$ | \$$", "$", " ".join(text.split()))
    if unit in ("$", r"$\$$", r"\$"):
        return "$"
    if unit in ("%", r"$\%$", r"\%"):
        return "%"
    return f"${unit}$" if "$" not in unit and ("\\" in unit or "^" in unit) else unit


def _asked_unit(unit: str) -> str:
    if not unit:
        return ""
    power = numbers.power_of_ten(unit)
    if power != 0:
        ten = f"$10^{{{power}}}$"
        alone = unit.strip("$ ").replace("{", "").replace("}", "") == f"10^{power}"
        if alone:
            return f"\n\nGive the number as a multiple of {ten}: only the factor that stands before {ten}."
        return f"\n\nGive the number in units of {unit}: only the factor that stands before {ten}, without the unit."
    words = {"$": "in dollars, without the dollar sign", "%": "in percent, without the percent sign"}
    return f"\n\nGive the number {words.get(unit, f'in units of {unit}, without the unit')}."


def _contradicts(latex: str, number: Fraction, power: int) -> bool:
    value = None if "=" in latex else numbers.read(latex)  # with names, there may be several
    meant = (number, number * Fraction(10) ** power)  # some rows give the power in both fields
    return value is not None and all(abs(value.value - one) > TOLERANCE * max(abs(value.value), abs(one)) for one in meant)


SCHEMA = Schema(fields=("problem_text", "answer_number", "answer_latex", "unit", "source"), read=_read, template=TEMPLATE)
