"""GSM8K: grade-school word problems; the gold is the number after the last `####` of the worked answer."""

from common.workloads.numbers import read_decimal, write
from common.workloads.records import BadGold, Record
from common.workloads.rows import Row, Schema

BOXED = "{question}\n\nPlease reason step by step, and put your final answer within \\boxed{}."


def _read(record: Record) -> Row:
    question = record.text("question").strip()
    gold = record.gold_text("answer")
    if gold is not None:
        _, mark, after = gold.rpartition("####")
        number = read_decimal(after) if mark else None
        if number is None:
            raise record.fault("answer", "must end with #### and a number", error=BadGold)
        gold = write(number)
    return Row(place=record.place, question=question, gold=gold, task={"workload": record.config.name, "gold": gold})


SCHEMA = Schema(fields=("question", "answer"), read=_read, template=BOXED)
