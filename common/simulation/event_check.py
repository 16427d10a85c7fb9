"""The events that a calibration reads, each checked once: kind, round and fields that are missing or wrong are named."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from common.errors import DataError, explain
from common.event_fields import broken_field, mapping
from common.report.rundir import run_events
from common.timeline import Event, group_number

_NEEDED = ("rollout_done", "response", "group_complete", "update")  # in a whole round


def checked_events(directory: Path, field: str) -> list[Event]:
    """The events of a run directory. Raises DataError, with `field` as its subject, for the first that breaks a rule."""
    events = list(run_events(directory, mapping))
    for place, event in enumerate(events):
        if broken := broken_field(event):
            name, words = broken
            where = f"event {place + 1} in the timeline of {directory.name or directory}"
            rule = f"needs {name} of the {event.get('kind')} ({where}) to be {words}"
            raise DataError(explain(field, rule, event.get(name), "give a run whose timeline.jsonl is as it was written"))
    return events


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
