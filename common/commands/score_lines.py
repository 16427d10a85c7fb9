"""A line of `rolloutpipe score`: read and checked on the way in, with its verdict on the way out."""

import json
from dataclasses import dataclass
from typing import Any

from common.config_rewards import RewardConfig
from common.config_workload import JSONL, SCHEMAS
from common.errors import DataError, explain, is_finite
from common.protocols import Score

GYM = "reasoning_gym"
KNOWN = (*SCHEMAS, JSONL, GYM)
VERDICT_FIELDS = ("reward", "status", "extracted", "reason", "parts")  # written, and on the way in passed over
MAX_LINE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Line:
    """What is asked, and the row that the verdict is added to."""

    row: dict[str, Any]
    task: dict[str, Any]
    response: str


def read_line(raw: bytes, config: RewardConfig) -> Line:
    """Raises DataError, one line that names the field. With a function or a remote verifier only `response` is asked for."""
    row = _object(raw)
    response = _text(row, "response", "the text to score")
    task = {name: value for name, value in row.items() if name not in ("response", *VERDICT_FIELDS)}
    if config.function is None and config.remote is None:
        task = _checkable(task)
    if config.length is not None or "num_tokens" in task:
        _check(task, "num_tokens", _is_count(task.get("num_tokens")), "must be the response's number of tokens")
    return Line(row=row, task=task, response=response)


def write_line(row: dict[str, Any], score: Score) -> bytes:
    """The row with its verdict, as one line. Raises DataError where it holds a number that JSON has not (`1e999`)."""
    verdict: dict[str, Any] = {
        "reward": score.reward,
        "status": score.status.value,
        "extracted": score.extracted,
        "reason": score.reason,
    }
    if score.parts:
        verdict["parts"] = dict(score.parts)
    return _dump({name: value for name, value in row.items() if name not in VERDICT_FIELDS} | verdict)


def write_fault(number: int, message: str) -> bytes:
    """What stands in the place of a line that could not be scored: a line out for each line in."""
    return _dump({"line": number, "error": message})


def _dump(value: dict[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(value, allow_nan=False).encode() + b"\n"
    except ValueError:
        raise DataError(explain("line", "must hold finite numbers", "one beyond every float", "write it as text")) from None


def _object(raw: bytes) -> dict[str, Any]:
    if len(raw) > MAX_LINE_BYTES:
        rule = f"must be at most {MAX_LINE_BYTES // 2**20} MiB"
        raise DataError(explain("line", rule, _start(raw), "put each object on a line of its own"))
    try:
        row = json.loads(raw.removeprefix(b"\xef\xbb\xbf").decode(), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise DataError(
            explain("line", f"must be UTF-8 (byte {error.start + 1} is not)", _start(raw), "convert the file")
        ) from None
    except (ValueError, RecursionError) as error:
        cause = " ".join(str(error).split())
        raise DataError(explain("line", "must be one JSON object", _start(raw), f"repair it ({cause})")) from None
    if not isinstance(row, dict):
        raise DataError(explain("line", "must be one JSON object", _start(raw), "write {...} on a line"))
    return row


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _start(raw: bytes) -> str:
    return raw[:60].decode(errors="replace").strip()


def _checkable(task: dict[str, Any]) -> dict[str, Any]:
    """The task with its gold as text; every field that a checker reads has its type."""
    name = _text(task, "workload", f"one of {', '.join(KNOWN)}")
    if name not in KNOWN:
        remedy = "use one of them, or set rewards.function"
        raise DataError(explain("workload", f"must be one of {', '.join(KNOWN)}", name, remedy))
    if name == GYM:
        _text(task, "dataset", "the name of a reasoning-gym data set")
        task = {**task, "options": task.get("options", {})}
        for field in ("options", "entry"):
            _check(task, field, isinstance(task.get(field), dict), "must be an object, as the data set made it")
        return task
    gold = task.get("gold")
    if is_finite(gold) and not isinstance(gold, bool):
        gold = str(gold)
    unit, tolerance, choices = task.get("unit"), task.get("tolerance"), task.get("choices", [])
    _check(task, "gold", isinstance(gold, str) and bool(gold.strip()), "must be the right answer, as text or number")
    _check(task, "unit", unit is None or isinstance(unit, str), "must be text")
    _check(task, "tolerance", tolerance is None or _is_tolerance(tolerance), "must be a number from 0 on")
    is_list = isinstance(choices, list) and all(isinstance(choice, str) for choice in choices)
    _check(task, "choices", is_list, "must be a list of texts")
    return {**task, "gold": gold}


def _is_tolerance(value: object) -> bool:
    return is_finite(value) and not isinstance(value, bool) and value >= 0  # type: ignore[operator]  # a number by now


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _text(row: dict[str, Any], field: str, what: str) -> str:
    value = row.get(field)
    _check(row, field, isinstance(value, str), f"must be {what}")
    return str(value)


def _check(row: dict[str, Any], field: str, is_right: bool, rule: str) -> None:
    if not is_right:
        remedy = "correct it" if field in row else "add the field"
        raise DataError(explain(field, rule, _short(row.get(field)), remedy))


def _short(value: object) -> object:
    return value if len(repr(value)) <= 80 else repr(value)[:80] + "..."
