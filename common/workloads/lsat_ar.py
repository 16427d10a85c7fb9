"""Analytical reasoning of the law school test, in either of two schemas, told apart by their fields.

    AGIEval   JSON lines: passage, question, options (["(A)text", ...]), label (a letter)
    AR-LSAT   a JSON list of passages: passage, questions [{question, options (without labels), answer (a letter)}, ...]

Options are labelled by us, whatever the file does. Where both are given, most questions stand in both: they count once, also
where their options stand in another order. Where the two differ in the answer, AGIEval's is kept: it was right by hand.
"""

import re
from collections.abc import Iterable
from string import ascii_uppercase

from common.errors import DataError, explain
from common.workloads.records import BadGold, Record
from common.workloads.rows import Row, Schema

TEMPLATE = "{question}\n\nPlease reason step by step, and put only the letter of the right option within \\boxed{}."
MAX_OPTIONS = 5


def _split(record: Record) -> Iterable[Record]:
    """The questions of an AR-LSAT passage; an AGIEval row is one already."""
    if not record.has("questions") and (record.name("questions") not in record.values or record.has("question")):
        yield record
        return
    questions = record.value("questions")
    shared = {name: value for name, value in record.values.items() if name != record.name("questions")}
    if not isinstance(questions, list) or not questions:
        raise record.fault("questions", "must be a list of questions")
    record.text("passage")
    for index, question in enumerate(questions):
        place = f"{record.name('questions')}[{index}]"
        if not isinstance(question, dict):
            rule = "must be one JSON object"
            raise DataError(explain(f"{record.place}.{place}", rule, question, "write {...} with its fields"))
        yield record.part(place, {**shared, **question})


def _read(record: Record) -> Row:
    is_agieval = not record.is_part and (record.has("label") or not record.has("answer"))
    passage, question = record.text("passage").strip(), record.text("question").strip()
    options = _options(record)
    letter = _letter(record, "label" if is_agieval else "answer", len(options))
    listed = "\n".join(f"({label}) {option}" for label, option in zip(ascii_uppercase, options, strict=False))
    return Row(
        place=record.place,
        question=f"{passage}\n\n{question}\n\n{listed}",
        gold=letter,
        task={"workload": record.config.name, "gold": letter, "choices": options},
        source_question="\n".join([passage, question, *sorted(options)]),
        source_gold=None if letter is None else options[ascii_uppercase.index(letter)],
        rank=0 if is_agieval else 1,
    )


def _options(record: Record) -> list[str]:
    """Without labels; only where each has its own are they taken off."""
    options = record.texts("options")
    if not 2 <= len(options) <= MAX_OPTIONS:
        raise record.fault("options", f"must be 2 to {MAX_OPTIONS} options")
    labelled = [re.match(rf"\s*\({label}\)", option) for label, option in zip(ascii_uppercase, options, strict=False)]
    if all(labelled):
        options = [option[match.end() :] for option, match in zip(options, labelled, strict=True) if match]
    return [option.strip() for option in options]


def _letter(record: Record, field: str, num_options: int) -> str | None:
    letters = ascii_uppercase[:num_options]
    letter = record.gold_text(field)
    if letter is not None and (len(letter) != 1 or letter not in letters):
        raise record.fault(field, f"must be one letter of {letters[0]} to {letters[-1]}", error=BadGold)
    return letter


SCHEMA = Schema(
    fields=("passage", "question", "options", "label", "questions", "answer"), read=_read, template=TEMPLATE, split=_split
)
