"""JSON lines with a question and an answer a row; the default fields are those of GSM8K.

The gold is what stands after the last `####` of the answer, or the whole answer where there is none. Every broken row is an error
that names `path:line`: a row that is skipped in silence would be missed by nobody.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.config import WorkloadConfig
from common.errors import DataError, explain
from common.workloads.rows import Row

NAME = "jsonl"


def read_rows(config: WorkloadConfig, *, needs_gold: bool) -> Iterator[Row]:
    """Rows in file order; blank lines are passed over. Raises DataError for a broken row, an unreadable or an empty file.

    Without `needs_gold` the answer may be missing (null, or no such field).
    """
    path = Path(config.path or "")
    is_empty = True
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            is_empty = False
            yield _row(config, f"{path}:{number}", line, needs_gold)
    if is_empty:
        raise DataError(explain("workload.path", "must hold at least one row", str(path), "check the file"))


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        cause = error.strerror or type(error).__name__
        raise DataError(explain("workload.path", "must be a readable file", str(path), f"check the path ({cause})")) from error


def _row(config: WorkloadConfig, place: str, line: bytes, needs_gold: bool) -> Row:
    row = _object(place, line)
    question = _text(row, config.question_field, place, "workload.question_field")
    if not needs_gold and row.get(config.answer_field) is None:
        gold = None
    else:
        gold = _text(row, config.answer_field, place, "workload.answer_field").rpartition("####")[2].strip()
        if not gold:
            answer = row[config.answer_field]
            raise DataError(explain(place, f"{config.answer_field} must hold an answer", answer, "add it, or remove the row"))
    return Row(place=place, question=question, gold=gold, task={"workload": NAME, "gold": gold, "row": row})


def _object(place: str, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise DataError(explain(place, "must be one JSON object", _shown(line), f"repair the line ({error})")) from error
    if not isinstance(row, dict):
        raise DataError(explain(place, "must be one JSON object", _shown(line), "write {...} with its fields"))
    return row


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _text(row: dict[str, Any], field: str, place: str, setting: str) -> str:
    if field not in row:
        rule = f"must have the field {field}"
        raise DataError(explain(place, rule, sorted(row), f"add it, or name the right one in {setting}"))
    value = row[field]
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise DataError(explain(place, f"{field} must be text or a number", value, "repair the row"))
    return str(value)


def _shown(line: bytes) -> str:
    return line.decode(errors="replace").strip()[:80]
