"""What a response is worth. Runs in the verifier's workers; imports lazily and caches per process.

    task["workload"]   scored by
    reasoning_gym      the data set's own scorer, built from task["dataset"] and task["options"], on the decoded entry
    jsonl              the last number, box or marked answer, by value, against task["gold"]
    any                the user's `rewards.function` where one is set: a finite number, or (number, reason)

Verdicts: OK from reward 1.0 on, WRONG below it (partial credit is kept), NO_ANSWER with reward 0.0 where no answer could be
extracted (a data set's consolation for an empty answer is not given). A user's function extracts for itself. Weighted parts:
`common.rewards.verifier`.
"""

import functools
import json
import time
from collections.abc import Iterable
from typing import Any

from common.errors import DataError, explain, is_finite
from common.protocols import Score
from common.records import Verdict
from common.rewards.answers import extract, extract_number, same_number
from common.rewards.functions import load_function
from common.workloads.plain import decode


def warm_up(function: str | None, tasks: Iterable[dict[str, Any]]) -> None:
    """Import and build what these tasks' scores need. Raises ConfigError or DataError."""
    if function is not None:
        _function(function)
        return
    for task in tasks:
        if task.get("workload") == "reasoning_gym":
            _data_set(task["dataset"], _key(task))


def score(function: str | None, task: dict[str, Any], response: str) -> Score:
    """The score of one response; whatever is raised becomes ERROR, or TIMEOUT where memory ran out (rule 9)."""
    start = time.perf_counter()
    try:
        fields = _score(function, task, response)
    except MemoryError:
        fields = {"reward": 0.0, "status": Verdict.TIMEOUT, "reason": "the memory limit was reached"}
    except Exception as error:
        fields = _error(f"{type(error).__name__}: {error}")
    return Score(**fields, duration_s=time.perf_counter() - start)


def _score(function: str | None, task: dict[str, Any], response: str) -> dict[str, Any]:
    if function is not None:
        return _own(function, task, response)
    if task["workload"] == "reasoning_gym":
        return _reasoning_gym(task, response)
    if task["workload"] == "jsonl":
        return _number(task, response)
    rule = "must be reasoning_gym or jsonl unless rewards.function is set"
    raise DataError(explain("task.workload", rule, task["workload"], "set rewards.function"))


def _own(path: str, task: dict[str, Any], response: str) -> dict[str, Any]:
    try:
        result = _function(path)(task, response)
    except MemoryError:
        raise
    except BaseException as error:  # a stranger's code: SystemExit must not travel to the driver either
        return _error(f"{path} raised {type(error).__name__}: {error}")
    if not isinstance(result, tuple):
        return _rated(result, source=f"{path} returned")
    if len(result) != 2 or not isinstance(result[1], str):
        return _error(f"{path} returned {_show(result)} where (number, reason in words) is due")
    return _rated(result[0], reason=_line(result[1]), source=f"{path} returned")


def _reasoning_gym(task: dict[str, Any], response: str) -> dict[str, Any]:
    answer = extract(response, task.get("answer_pattern"))
    if answer is None:
        return _NO_ANSWER
    reward = _data_set(task["dataset"], _key(task)).score_answer(answer, decode(task["entry"]))
    return _rated(reward, extracted=answer, source=f"the scorer of {task['dataset']} returned")


def _number(task: dict[str, Any], response: str) -> dict[str, Any]:
    answer = extract_number(response, task.get("answer_pattern"))
    if answer is None:
        return _NO_ANSWER
    return _rated(float(same_number(answer, task["gold"])), extracted=answer)


def _rated(value: object, *, extracted: str = "", reason: str = "", source: str = "") -> dict[str, Any]:
    if isinstance(value, bool):
        return _error(f"{source} {value} where a number is due; return 1.0 or 0.0")
    if not is_finite(value):
        return _error(f"{source} {_show(value)} where a finite number is due")
    reward = float(value)  # type: ignore[arg-type]  # what is_finite found out
    status = Verdict.OK if reward >= 1.0 else Verdict.WRONG
    return {"reward": reward, "status": status, "extracted": extracted, "reason": reason}


def _error(reason: str) -> dict[str, Any]:
    return {"reward": None, "status": Verdict.ERROR, "reason": _line(reason)}


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


def _show(value: object) -> str:
    """`'1.0' (str)`, cut; a stranger's `repr` may raise."""
    try:
        text = repr(value)
    except Exception:
        text = "a value"
    return f"{text[:80]} ({type(value).__name__})"


_NO_ANSWER: dict[str, Any] = {"reward": 0.0, "status": Verdict.NO_ANSWER, "reason": "no answer found"}


_function = functools.cache(load_function)


def _key(task: dict[str, Any]) -> str:
    return json.dumps(task["options"], sort_keys=True)


@functools.cache
def _data_set(name: str, options: str) -> Any:
    """The data set that made the entry: some scorers read its settings."""
    from reasoning_gym.factory import create_dataset

    return create_dataset(name, **json.loads(options))
