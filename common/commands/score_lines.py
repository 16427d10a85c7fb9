"""A line of `rolloutpipe score`: read and checked on the way in, with its verdict on the way out."""

import functools
import json
import re
from dataclasses import dataclass
from typing import Any

from common.config_rewards import RewardConfig
from common.config_workload import JSONL, SCHEMAS
from common.errors import DataError, explain, is_finite
from common.protocols import Score
from common.rewards.checkers import gold_fault

GYM = "reasoning_gym"
ANSWER_KINDS = ("number", "math", "letter")  # of jsonl
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
        text = raw.removeprefix(b"\xef\xbb\xbf").decode()
        row = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except DataError:
        raise
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


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Of two golds nobody can say which counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(explain("line", "must hold each key once", _short(twice), "remove all but one of them"))
    return found


def _start(raw: bytes) -> str:
    return raw[:60].decode(errors="replace").strip()


def _checkable(task: dict[str, Any]) -> dict[str, Any]:
    """The task with its gold as text; every field that a checker reads has its type."""
    name = _text(task, "workload", f"one of {', '.join(KNOWN)}")
    if name not in KNOWN:
        remedy = "use one of them, or set rewards.function"
        raise DataError(explain("workload", f"must be one of {', '.join(KNOWN)}", name, remedy))
    _check(task, "answer_pattern", _has_group(task.get("answer_pattern")), "must be a regular expression with a group")
    if name == GYM:
        _check(task, "dataset", task.get("dataset") in _data_sets(), "must be the name of a reasoning-gym data set")
        task = {**task, "options": task.get("options", {})}
        for field in ("options", "entry"):
            _check(task, field, isinstance(task.get(field), dict), "must be an object, as the data set made it")
        return task
    gold = task.get("gold")
    if is_finite(gold) and not isinstance(gold, bool):
        gold = str(gold)
    _check(task, "gold", _is_texts(gold) or isinstance(gold, str), "must be the right answer, as text or number")
    _check(task, "unit", isinstance(task.get("unit"), str | None), "must be text")
    _check(task, "choices", _is_texts(task.get("choices") or []), "must be a list of texts")
    _check(task, "answer_kind", task.get("answer_kind") in (None, *ANSWER_KINDS), f"must be one of {', '.join(ANSWER_KINDS)}")
    task = {**task, "gold": gold}
    if (fault := gold_fault(task)) is not None:
        field = next((field for field in ("unit", "tolerance") if fault.startswith(f"the {field}")), "gold")
        raise DataError(explain(field, f"must fit the workload {name}", _short(task[field]), f"correct it ({fault})"))
    return task


def _has_group(pattern: object) -> bool:
    if pattern is None:
        return True
    try:
        return isinstance(pattern, str) and re.compile(pattern).groups > 0
    except (re.error, OverflowError, RecursionError):
        return False


@functools.cache
def _data_sets() -> tuple[str, ...]:
    """Takes seconds: reasoning-gym is imported."""
    from common.workloads.reasoning_gym import data_set_names

    return tuple(data_set_names())


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


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
