r"""OlympiadBench: open-ended questions of contests, text only.

    question, context (a stem shared with other questions, or null), final_answer (["$\frac{1}{2}$"], or ["$1$,$2$"]),
    is_multiple_answer, unit (not part of the answer), error (absolute; "1e-1", or one for each answer: "1e-1,1e-2"), subfield

Rows with pictures, proofs and rows without an answer that can be compared are left out and counted.
"""

import math
from typing import Any

from common.workloads.gsm8k import BOXED
from common.workloads.records import BadGold, Record
from common.workloads.rows import LeftOut, Row, Schema

_OPEN, _CLOSE = "([{", ")]}"


def _read(record: Record) -> Row | LeftOut:
    reason = _unusable(record)
    if reason is not None:
        return LeftOut(record.place, reason)
    golds = _golds(record)
    gold: str | list[str] | None = golds[0] if len(golds) == 1 else golds or None
    unit = record.optional_text("unit").strip("$").strip()
    tolerance = _tolerance(record)
    task: dict[str, Any] = {"workload": record.config.name, "gold": gold}
    if unit:
        task["unit"] = unit
    if tolerance is not None:
        task["tolerance"] = tolerance
    asked = "\n\n".join(text for text in (record.optional_text("context"), record.text("question").strip()) if text)
    return Row(
        place=record.place,
        question=asked + _asked_form(unit, isinstance(gold, list)),
        gold=gold,
        task=task,
        category=record.optional_text("subfield") or None,
        source_question=asked,
    )


def _unusable(record: Record) -> str | None:
    pictures = [name for name in record.values if name.startswith("image") and record.values[name] is not None]
    asked = record.optional_text("question") + record.optional_text("context")
    if pictures or "<image" in asked or record.optional_text("modality") not in ("", "Text-only"):
        return "needs a picture"
    if record.optional_text("question_type") not in ("", "Open-ended"):
        return "is not open-ended"
    if record.optional_text("answer_type") == "Need_human_evaluate":
        return "needs a person to judge the answer"
    return None


def _golds(record: Record) -> list[str]:
    """The answers, as LaTeX without dollar signs; several only where the row says so."""
    if not record.needs_gold and not record.has("final_answer"):
        return []
    answers = record.texts("final_answer", BadGold)
    if record.values.get(record.name("is_multiple_answer")) is True:
        answers = [part for answer in answers for part in _parts(answer)]
    golds = [answer.replace("$", "").strip().rstrip(".").strip() for answer in answers]
    if not all(golds):
        raise record.fault("final_answer", "must hold an answer", error=BadGold)
    return golds


def _parts(answer: str) -> list[str]:
    """Cut at the commas outside of brackets; an answer with words beside its formulas is one."""
    if "$" in answer and any(sign.isalpha() for text in answer.split("$")[::2] for sign in text):
        return [answer]
    parts, depth = [""], 0
    for sign in answer:
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _tolerance(record: Record) -> float | list[float] | None:
    text = record.optional_text("error")
    if not text:
        return None
    try:
        errors = [float(part) for part in text.split(",")]
    except ValueError:
        errors = [math.nan]
    if not all(0 <= error < math.inf for error in errors):
        raise record.fault("error", "must be a number from 0 on, or several with commas between", error=BadGold)
    return errors[0] if len(errors) == 1 else errors


def _asked_form(unit: str, has_several: bool) -> str:
    several = "There is more than one answer: put all of them in one box, separated by commas." if has_several else ""
    shown = f"${unit}$" if "\\" in unit or "^" in unit else unit
    in_unit = f"Give the answer in units of {shown}, and write the unit outside the box." if unit else ""
    asked = " ".join(part for part in (several, in_unit) if part)
    return f"\n\n{asked}" if asked else ""


SCHEMA = Schema(
    fields=("question", "context", "final_answer", "is_multiple_answer", "unit", "error", "subfield", "answer_type"),
    read=_read,
    template=BOXED,
)
