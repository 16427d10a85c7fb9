"""The events that a calibration reads, each checked once: kind, round and fields that are missing or wrong are named."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from common.errors import DataError, explain
from common.report.rundir import run_events
from common.timeline import Event, group_number


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_group(value: Any) -> bool:
    try:
        return isinstance(value, str) and group_number(value) >= 0
    except ValueError:
        return False


def _is_measure(value: Any) -> bool:
    """Losses and rewards: a run that went wrong has NaN, and a simulated one none."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


_Rule = tuple[str, Callable[[Any], bool]]
_NUMBER: _Rule = ("a finite number", _is_number)
_WHOLE: _Rule = ("a whole number of 0 or more", _is_whole)
_GROUP: _Rule = ("the name of a group, such as r0/g3", _is_group)
_TEXT: _Rule = ("text", lambda value: isinstance(value, str))
_NAME: _Rule = ("text or a number", lambda value: isinstance(value, str | int))
_MEASURE: _Rule = ("a number or null", _is_measure)
_MAPPING: _Rule = ("a mapping", lambda value: isinstance(value, dict))
_COUNTS: _Rule = ("whole numbers by name", lambda value: isinstance(value, dict) and all(map(_is_whole, value.values())))

_FIELDS: dict[str, dict[str, _Rule]] = {
    "round_start": {},
    "response": {"start": _NUMBER, "group": _GROUP, "replica": _NAME, "tokens": _WHOLE, "finish_reason": _TEXT},
    "verify": {"start": _NUMBER, "reward": _MEASURE},
    "group_complete": {"group": _GROUP, "tokens": _WHOLE, "reward_mean": _MEASURE},
    "rollout_done": {},
    "wait": {"start": _NUMBER},
    "compute": {"start": _NUMBER, "phase": _TEXT, "update": _WHOLE},
    "update": {"update": _WHOLE, "loss": _MEASURE, "grad_norm": _MEASURE, "optimizer_step": _WHOLE, "metrics": _MAPPING},
    "publish": {"start": _NUMBER},
    "eval": {"start": _NUMBER, "version": _WHOLE, "accuracy": _MEASURE, "wait": _NUMBER},
    "round_end": {"books": _COUNTS},
}
_NEEDED = ("rollout_done", "response", "group_complete", "update")  # in a whole round


def checked_events(directory: Path, field: str) -> list[Event]:
    """The events of a run directory. Raises DataError, with `field` as its subject, for the first that breaks a rule."""
    events = list(run_events(directory))
    for place, event in enumerate(events):
        for name, (words, holds) in _rules(event).items():
            if name not in event or not holds(event[name]):
                where = f"event {place + 1} in the timeline of {directory.name or directory}"
                rule = f"needs {name} of the {event['kind']} ({where}) to be {words}"
                raise DataError(explain(field, rule, event.get(name), "give a run whose timeline.jsonl is as it was written"))
    return events


def _rules(event: Event) -> dict[str, _Rule]:
    kind = event["kind"]
    rules = _FIELDS.get(kind) if isinstance(kind, str) else None
    if rules is None:
        return {"kind": _TEXT, "t": _NUMBER}
    group = {"group": _GROUP} if kind == "compute" and event.get("phase") == "accumulate" else {}
    # Weight version 0 is published before the first round, and the last one evaluated after the last.
    of_round = {} if kind in ("publish", "eval") and "round" not in event else {"round": _WHOLE}
    return {"t": _NUMBER, **of_round, **rules, **group}


def check_whole_round(events: Sequence[Event], index: int, num_groups: int, field: str) -> None:
    """Raises DataError where an event is missing that a round with all its groups trained has written."""
    kinds = {event["kind"] for event in events}
    missing = [kind for kind in _NEEDED if kind not in kinds]
    if missing:
        raise _incomplete(f"{', '.join(missing)} events", index, field)
    for name, found in (("group_complete", _groups(events, "group_complete")), ("accumulate", _groups(events, "compute"))):
        if found != set(range(num_groups)):
            raise _incomplete(f"the {name} of each of its {num_groups} groups", index, field)
    if max((group_number(event["group"]) for event in events if event["kind"] == "response"), default=0) >= num_groups:
        raise _incomplete(f"responses of its {num_groups} groups alone", index, field)


def _groups(events: Iterable[Event], kind: str) -> set[int]:
    some = (event for event in events if event["kind"] == kind and event.get("phase", "accumulate") == "accumulate")
    return {group_number(event["group"]) for event in some}


def _incomplete(what: str, index: int, field: str) -> DataError:
    rule = f"needs {what} in the timeline of round {index}"
    return DataError(explain(field, rule, "none, or not all", "give a run whose timeline.jsonl is as it was written"))
