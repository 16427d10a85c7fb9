"""Your own rows, with a question and an answer each; the default fields are those of GSM8K.

The gold is what stands after the last `####` of the answer, or the whole answer where there is none. The task holds the whole
row, for a reward function of your own.
"""

import json

from common.errors import DataError, explain
from common.workloads.records import BadGold, Record
from common.workloads.rows import Row, Schema


def _read(record: Record) -> Row:
    question = record.text("question")
    gold = record.gold_text("answer")
    if gold is not None:
        gold = gold.rpartition("####")[2].strip()
        if not gold:
            raise record.fault("answer", "must hold an answer", "add it, or remove the row", error=BadGold)
    _check_plain(record)
    kind = record.config.answer_kind
    task = {"workload": record.config.name, "gold": gold, "row": dict(record.values)}
    if kind != "number":
        task["answer_kind"] = kind
    return Row(place=record.place, question=question, gold=gold, task=task)


def _check_plain(record: Record) -> None:
    """The task takes the whole row with it, to where infinity, NaN and half a surrogate pair cannot be written."""
    try:
        json.dumps(dict(record.values), allow_nan=False, ensure_ascii=False, default=str).encode()
    except ValueError as error:  # UnicodeEncodeError is one
        cause = "a surrogate stands alone" if isinstance(error, UnicodeError) else str(error)
        shown = ascii(dict(record.values))[:80]
        raise DataError(explain(record.place, "must be plain JSON", shown, f"repair the row ({cause})")) from error


SCHEMA = Schema(fields=("question", "answer"), read=_read)
