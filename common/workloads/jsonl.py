"""Your own rows, with a question and an answer each; the default fields are those of GSM8K.

The gold is what stands after the last `####` of the answer, or the whole answer where there is none. The task holds the whole
row, for a reward function of your own.
"""

from common.workloads.records import BadGold, Record
from common.workloads.rows import Row, Schema


def _read(record: Record) -> Row:
    question = record.text("question")
    gold = record.gold_text("answer")
    if gold is not None:
        gold = gold.rpartition("####")[2].strip()
        if not gold:
            raise record.fault("answer", "must hold an answer", "add it, or remove the row", error=BadGold)
    kind = record.config.answer_kind
    task = {"workload": record.config.name, "gold": gold, "row": dict(record.values)}
    if kind != "number":
        task["answer_kind"] = kind
    return Row(place=record.place, question=question, gold=gold, task=task)


SCHEMA = Schema(fields=("question", "answer"), read=_read)
