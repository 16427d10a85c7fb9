"""MATH-500: competition mathematics; the gold is LaTeX, the category subject and level."""

from common.workloads.gsm8k import BOXED
from common.workloads.records import Record
from common.workloads.rows import Row, Schema


def _read(record: Record) -> Row:
    gold = record.gold_text("answer")
    subject, level = record.optional_text("subject"), record.optional_text("level").removeprefix("Level ")
    parts = [subject, f"level {level}" if level else ""]
    return Row(
        place=record.place,
        question=record.text("problem").strip(),
        gold=gold,
        task={"workload": record.config.name, "gold": gold},
        category=", ".join(part for part in parts if part) or None,
    )


SCHEMA = Schema(fields=("problem", "answer", "subject", "level"), read=_read, template=BOXED)
