"""The terminal's view: its width, its words, and silence where nobody watches."""

import io
from pathlib import Path

import pytest
import synthetic
from rich.console import Console

from common.display import LiveDisplay, final_table
from common.figures import sparkline
from common.metrics import collect_rounds
from common.progress import Progress
from common.timeline import Event, Timeline

STALL = {"t": 20.0, "kind": "stall", "message": "no progress for 30 s: " + "engine-0 is not alive, " * 12}


def show(events: list[Event], width: int, terminal: bool) -> tuple[LiveDisplay, Console]:
    now = [0.0]
    timeline = Timeline(None, clock=lambda: now[0])
    console = Console(file=io.StringIO(), width=width, height=24, force_terminal=terminal, color_system=None)
    display = LiveDisplay(timeline, console)
    for event in events:
        now[0] = event["t"]
        timeline.emit(**{key: value for key, value in event.items() if key != "t"})
    return display, console


def lines(display: LiveDisplay, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(display.render())
    return console.file.getvalue().splitlines()


def events_until(seconds: float, **plan) -> list[Event]:
    return [event for event in synthetic.simulate(synthetic.Plan(**plan)) if event["t"] <= seconds]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("seconds", [0.0, 5.0, 14.0, 30.0, 1e9])
def test_panel_stays_within_the_terminal_at_every_stage(width, seconds) -> None:
    display, _ = show([*events_until(seconds, dropped=((0, 1),)), STALL], width, terminal=True)
    shown = lines(display, width)
    assert max(map(len, shown)) <= width
    assert len(shown) < 24
    assert any("stall: no progress" in line for line in shown) or seconds < 10


def test_start_shows_each_phase_with_its_seconds() -> None:
    display, _ = show(events_until(5.0), 80, terminal=True)
    text = "\n".join(lines(display, 80))
    assert "✓ start Ray" in text
    assert "2.1 s" in text
    assert "● start engines" in text


def test_without_a_terminal_one_plain_line_per_round_and_no_control_codes() -> None:
    display, console = show(synthetic.simulate(synthetic.Plan(rounds=3)), 80, terminal=False)
    with display:
        pass
    text = console.file.getvalue()
    assert "\x1b" not in text
    rounds = [line for line in text.splitlines() if line.startswith("round ")]
    assert [line.split(":")[0] for line in rounds] == ["round 0 (1 of 3)", "round 1 (2 of 3)", "round 2 (3 of 3)"]
    assert "trainer waits" in rounds[0]


def test_without_a_terminal_a_stall_is_told_at_once() -> None:
    _, console = show([*events_until(15.0), STALL], 80, terminal=False)
    assert "stall: no progress for 30 s" in console.file.getvalue()


def progress_at(events: list[Event]) -> Progress:
    progress = Progress()
    for event in events:
        progress.listen(event)
    return progress


START = [
    {"t": 0.0, "kind": "run_start", "schedule": "fgd", "groups_per_round": 4, "groups_per_update": 2, "responses_per_group": 1},
    {"t": 1.0, "kind": "round_start", "round": 3, "version": 3, "num_groups": 4},
    {"t": 2.0, "kind": "dispatch", "round": 3, "request": "r3/g0/m0", "group": "r3/g0", "member": 0, "replica": "engine-0"},
    {"t": 4.0, "kind": "dispatch", "round": 3, "request": "r3/g1/m0", "group": "r3/g1", "member": 0, "replica": "engine-1"},
]


def leave(t: float, order: int) -> list[Event]:
    group = f"r3/g{order}"
    return [
        {"t": t, "kind": "response", "round": 3, "request": f"{group}/m0", "group": group, "tokens": 9, "finish_reason": "stop"},
        {"t": t, "kind": "group_complete", "round": 3, "group": group, "order": order, "tokens": 9, "filtered": None},
    ]


def test_it_says_whom_the_trainer_waits_for() -> None:
    words = progress_at(START).who_waits(14.0)
    assert words == "trainer waits for 2 groups of update 1, oldest request r3/g0/m0 on engine-0 for 12 s"


def test_it_says_that_the_trainer_works_when_groups_are_there() -> None:
    assert progress_at([*START, *leave(5.0, 0)]).who_waits(9.0) == "trainer works on a group of update 1, 8 s so far"


def test_after_half_an_update_it_waits_for_the_other_half() -> None:
    taken = {"t": 6.0, "kind": "compute", "start": 5.0, "round": 3, "phase": "accumulate", "update": 0, "group": "r3/g0"}
    words = progress_at([*START, *leave(5.0, 0), taken]).who_waits(7.0)
    assert words == "trainer waits for 1 group of update 1, oldest request r3/g1/m0 on engine-1 for 3 s"


def test_a_refill_raises_the_number_of_groups() -> None:
    refill = {**START[2], "t": 5.0, "request": "r3/g4/m0", "group": "r3/g4"}
    assert progress_at([*START, refill]).round.num_groups == 5


def test_serial_waits_for_the_end_of_the_rollout() -> None:
    events = [{**START[0], "schedule": "serial"}, *START[1:], *leave(5.0, 0)]
    assert progress_at(events).who_waits(6.0).startswith("trainer waits for the rollout's end: 3 groups to go, oldest request")


def test_a_trained_round_is_publishing_and_a_start_phase_is_named() -> None:
    events = synthetic.simulate(synthetic.Plan(rounds=1))
    published = next(index for index, event in enumerate(events) if event["kind"] == "publish")
    assert progress_at(events[: published + 1]).who_waits(events[published]["t"]).startswith("publishing (export done)")
    assert progress_at(events[:3]).who_waits(6.1) == "start engines, 4 s so far"


def test_a_dropped_group_takes_its_requests_out_of_flight() -> None:
    drop = {"t": 5.0, "kind": "group_drop", "round": 3, "group": "r3/g0", "reason": "failed", "detail": "lost twice"}
    progress = progress_at([*START, drop])
    assert list(progress.round.in_flight) == ["r3/g1/m0"]
    assert progress.notes == ["dropped r3/g0: failed. lost twice"]


@pytest.mark.parametrize("num_rounds", [0, 1, 3, 60])
def test_final_table_fits_80_columns_and_names_the_run_directory(num_rounds) -> None:
    rounds = collect_rounds(synthetic.simulate(synthetic.Plan(rounds=3))) * 20
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(final_table(rounds[:num_rounds], Path("runs/quickstart-20260101-120000")))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "runs/quickstart-20260101-120000" in text


def test_sparkline_spans_lowest_to_highest() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.3, 0.3]) == "▁▁"
    assert sparkline([]) == ""
    assert sparkline([0.0, float("nan"), 1.0]) == "▁ █"
