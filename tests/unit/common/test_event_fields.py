"""The table of fields against what rounds emit, and against what `common.timeline` says of them."""

import re

import pytest
from event_lab import OF_THE_COMMAND, eventful_run

from common import timeline
from common.event_fields import FIELDS, MAX_S, broken_field, whole_event
from common.timeline import Event

ROW = re.compile(r"^\| ([a-z_, ]+) \|", re.MULTILINE)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    return eventful_run(tmp_path_factory.mktemp("lab"))


def test_every_event_that_a_run_emits_is_whole(events: list[Event]) -> None:
    assert [(event, broken_field(event)) for event in events if broken_field(event)] == []


def test_every_field_of_the_table_is_emitted(events: list[Event]) -> None:
    """So no name is misspelt, and no kind is unproven."""
    emitted = {(event["kind"], name) for event in [*events, *OF_THE_COMMAND] for name in event}
    assert [(kind, name) for kind, rules in FIELDS.items() for name in ("t", *rules) if (kind, name) not in emitted] == []


def test_every_field_of_the_table_is_checked(events: list[Event]) -> None:
    samples = {event["kind"]: event for event in events}
    for kind, rules in FIELDS.items():
        for name in ("t", "start", "round", *rules):
            for value in ([{}], {"a": [{}]}):
                found = broken_field({**samples[kind], name: value})
                assert found is not None and found[0] == name, (kind, name, value)


def test_the_table_has_the_kinds_that_are_described() -> None:
    described = {kind for row in ROW.findall(timeline.__doc__ or "") for kind in row.split(", ")} - {"kind"}
    assert described == set(FIELDS)


@pytest.mark.parametrize("t", [float("inf"), float("nan"), -1.0, 1e300, int("1" + 400 * "0"), MAX_S * 1.01, "1", None, True])
def test_what_is_no_plausible_time_is_none(t: object) -> None:
    for event in ({"t": t, "kind": "rollout_done", "round": 0}, {"t": t, "kind": "not known"}, {"kind": "x", "t": 1, "start": t}):
        with pytest.raises(ValueError, match="must be a finite number of seconds, 0 to ten years"):
            whole_event(event)
    assert whole_event({"t": MAX_S, "kind": "not known"})


@pytest.mark.parametrize("group", ["r0/g" + 30 * "9", "r0/g" + 5000 * "9", "r0/g²", 3, None])
def test_what_names_no_group_is_none(group: object) -> None:
    event = {"t": 1, "kind": "group_drop", "round": 0, "group": group, "reason": "failed"}
    assert broken_field(event) == ("group", "the name of a group, such as r0/g3")
