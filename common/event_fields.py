"""What a whole event is: the fields that each kind of `common.timeline` has, as its readers need them.

A timeline may come from a run that was killed, or have been edited or damaged. One place says what of it can be used.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from common.timeline import Event, group_number

MAX_S = 10 * 366 * 86_400.0  # of a run: ten years. A later time is damage, and a resumed run must not go on from there
_MAX_WHOLE = 2**53  # up to which floats hold every whole number
_MAX_MEASURE = 1e100  # so that no sum of them overflows


@dataclass(frozen=True, slots=True)
class Rule:
    """What the value of a field must be."""

    words: str
    holds: Callable[[Any], bool]
    is_needed: bool = True  # or may be absent


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_time(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= MAX_S  # false for NaN too


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_WHOLE


def _is_group(value: Any) -> bool:
    try:
        return isinstance(value, str) and _is_whole(group_number(value))
    except ValueError:
        return False


def _is_figure(value: Any) -> bool:
    """A run that went wrong has NaN and infinity."""
    return _is_number(value) and (abs(value) <= _MAX_MEASURE or value in (math.inf, -math.inf) or value != value)


def _is_measure(value: Any) -> bool:
    return value is None or _is_figure(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _mapping_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(holds, value.values()))


def _may(rule: Rule) -> Rule:
    return replace(rule, is_needed=False)


_TIME = Rule("a finite number of seconds, 0 to ten years", _is_time)
_WHOLE = Rule("a whole number of 0 or more", _is_whole)
_GROUP = Rule("the name of a group, such as r0/g3", _is_group)
_GROUP_OR_NONE = Rule("the name of a group, or null", lambda value: value is None or _is_group(value))
_TEXT = Rule("text", _is_text)
_TEXT_OR_NONE = Rule("text or null", lambda value: value is None or isinstance(value, str))
_NAME = Rule("text or a number", lambda value: isinstance(value, str) or _is_whole(value))
_FLAG = Rule("true or false", lambda value: isinstance(value, bool))
_FIGURE = Rule("a number", _is_figure)
_MEASURE = Rule("a number or null", _is_measure)
_FIGURES = Rule("numbers by name", _mapping_of(_is_figure))
_MEASURES = Rule("numbers or null by name", _mapping_of(_is_measure))
_COUNTS = Rule("whole numbers by name", _mapping_of(_is_whole))
_LENGTHS = Rule("a list of whole numbers", _list_of(_is_whole))
_REWARDS = Rule("a list of numbers or null", _list_of(_is_measure))
_TEXTS = Rule("a list of text", _list_of(_is_text))

_DISPATCH = {"request": _TEXT, "group": _GROUP, "member": _WHOLE, "replica": _NAME}
_RESPONSE = {**_DISPATCH, "start": _TIME, "tokens": _WHOLE, "finish_reason": _TEXT, "version": _may(_WHOLE)}
_RETRY = {"request": _TEXT, "group": _GROUP, "reason": _TEXT}

# What readers only show, or do without, may be absent: it is not there in every version's timelines.
FIELDS: dict[str, dict[str, Rule]] = {
    "run_start": {"name": _may(_TEXT), "schedule": _may(_TEXT), "rounds": _may(_WHOLE), "is_simulated": _may(_FLAG)},
    "run_end": {"status": _TEXT, "detail": _may(_TEXT)},
    "phase": {"name": _TEXT},
    "round_start": {"version": _WHOLE, "num_groups": _may(_WHOLE), "schedule": _may(_TEXT)},
    "plan": {},
    "dispatch": _DISPATCH,
    "response": _RESPONSE,
    "retry": _RETRY,
    "verify": {
        "start": _TIME,
        "group": _GROUP,
        "member": _WHOLE,
        "status": _TEXT,
        "reward": _MEASURE,
        "seconds": _may(_TIME),
    },
    "group_complete": {
        "group": _GROUP,
        "order": _WHOLE,
        "reward_mean": _MEASURE,
        "reward_std": _may(_MEASURE),
        "tokens": _WHOLE,
        "filtered": _may(_TEXT_OR_NONE),
    },
    "group_drop": {"group": _GROUP, "reason": _TEXT, "detail": _may(_TEXT)},
    "rollout_done": {},
    "wait": {"start": _TIME, "on": _may(_TEXT)},
    "compute": {"start": _TIME, "phase": _TEXT, "update": _WHOLE, "group": _GROUP_OR_NONE},
    "update": {
        "update": _WHOLE,
        "optimizer_step": _WHOLE,
        "loss": _FIGURE,
        "grad_norm": _FIGURE,
        "metrics": _FIGURES,
    },
    "publish": {"start": _TIME, "phase": _TEXT, "version": _WHOLE, "gap": _may(_MEASURE)},
    "eval_dispatch": _DISPATCH,
    "eval_response": _RESPONSE,
    "eval_retry": _RETRY,
    "eval": {
        "start": _TIME,
        "version": _WHOLE,
        **dict.fromkeys(("accuracy", "low", "high", "length_mean", "cut_off_share", "no_answer_share"), _MEASURE),
        **dict.fromkeys(("problems", "samples", "timeouts", "errors"), _WHOLE),
        "pass_at": _MEASURES,
        "reward_mean": _may(_MEASURE),
        "wait": _TIME,
    },
    "stall": {"message": _TEXT},
    "fault": {"part": _TEXT, "detail": _TEXT},
    "recovered": {"start": _TIME, "part": _TEXT, "detail": _TEXT},
    "recorded": {"groups": _WHOLE, "drops": _may(_WHOLE), "is_whole": _FLAG},
    "group_recorded": {"group": _GROUP, "lengths": _LENGTHS, "rewards": _REWARDS, "statuses": _TEXTS, "cut_off": _WHOLE},
    "left_out": {"message": _TEXT},
    "round_end": {"books": _COUNTS},
}
# Outside a round, or not always in one: weight version 0 is published before the first, and the last one evaluated after it.
_ROUNDLESS = frozenset(
    {"run_start", "run_end", "phase", "publish", "fault", "recovered", "left_out"}
    | {"eval", "eval_dispatch", "eval_response", "eval_retry"}
)


def rules_of(event: Event) -> dict[str, Rule]:
    """By field; of a kind that is not known here, for what all events have."""
    kind = event.get("kind")
    if not isinstance(kind, str):
        return {"kind": _TEXT}
    return _rules(kind, kind == "compute" and event.get("phase") == "accumulate")


@lru_cache
def _rules(kind: str, has_group: bool) -> dict[str, Rule]:
    own = FIELDS.get(kind)
    round_rule = _may(_WHOLE) if own is None or kind in _ROUNDLESS else _WHOLE
    return {"t": _TIME, "start": _may(_TIME), "round": round_rule, **(own or {}), **({"group": _GROUP} if has_group else {})}


def broken_field(event: Event) -> tuple[str, str] | None:
    """The first field that is missing or wrong, and what it must be; None where the event is whole."""
    for name, rule in rules_of(event).items():
        if rule.is_needed if name not in event else not rule.holds(event[name]):
            return name, rule.words
    return None


def mapping(line: Any) -> Event:
    """Any JSON object. Raises TypeError where `line` is none."""
    if not isinstance(line, dict):
        raise TypeError("no JSON object")
    return line


def whole_event(line: Any) -> Event:
    """The event of one line, as read. Raises TypeError or ValueError where it is none, or not whole."""
    if broken := broken_field(mapping(line)):
        raise ValueError(f"{broken[0]} must be {broken[1]}")
    return mapping(line)
