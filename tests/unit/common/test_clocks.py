"""Clocks that jump: the wall clock decides nothing but names, and where no time passed for the process, that is told."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from round_lab import config_of
from run_lab import run_run

from common.rundir import plan_run_dir
from common.testing import FakeEngine, run_virtual
from common.timeline import Timeline
from common.watchdog import Watchdog

DAY_S = 86_400.0


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S])
def test_a_wall_clock_that_jumps_changes_no_figure_and_ends_nothing(
    jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at it finds it a day further, or a day back: figures, deadlines and weights are those of a calm run."""
    settings: dict[str, Any] = {"checkpoint": {"every": 1}, "eval": {"every": 1}, "retention": {"groups": 1}}
    (tmp_path / "calm").mkdir()
    calm = run_run(tmp_path / "calm", num_eval=2, **settings)
    now = [time.time()]

    def jumping() -> float:
        now[0] += jump_s
        return now[0]

    monkeypatch.setattr(time, "time", jumping)
    lab = run_run(tmp_path, num_eval=2, **settings)
    assert lab.error is None and lab.metrics == calm.metrics and lab.result == calm.result
    assert [event["t"] for event in lab.all_events] == [event["t"] for event in calm.all_events]
    for line in lab.metrics:
        assert all(value >= 0 for name, value in line.items() if name.endswith(("_s", "_per_s")) and value is not None)
    assert sorted(path.name for path in lab.run_dir.groups.iterdir()) == sorted(
        path.name for path in calm.run_dir.groups.iterdir()
    )


def test_run_directories_of_the_same_second_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that was set back by an hour, or a second run at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "20000101-000000")
    first = plan_run_dir(config_of())
    first.path.mkdir(parents=True)
    assert plan_run_dir(config_of()).path != first.path


def test_a_process_that_stood_still_is_told(tmp_path: Path) -> None:
    """A suspended machine: an hour passes at once, and with it every deadline."""
    events: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        timeline = Timeline(None, loop.time)
        timeline.listen(events.append)
        engine = FakeEngine()
        watchdog = Watchdog(
            30,
            index=0,
            engine=engine,
            timeline=timeline,
            describe=lambda: "who",
        )
        task = loop.create_task(watchdog.run())
        await asyncio.sleep(10)
        loop._jumping.now_s += 3600  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(main())
    (stall,) = [event for event in events if event["kind"] == "stall"]
    assert "this process stood still for 3580 s" in stall["message"]


def test_a_stall_is_told_at_doubling_intervals() -> None:
    """And from the start again after an event."""
    told: list[float] = []

    async def main() -> None:
        timeline = Timeline(None, asyncio.get_running_loop().time)
        timeline.listen(lambda event: told.append(round(event["t"])) if event["kind"] == "stall" else None)
        task = asyncio.create_task(Watchdog(30, index=0, engine=FakeEngine(), timeline=timeline, describe=lambda: "who").run())
        await asyncio.sleep(300)
        timeline.emit("response")
        await asyncio.sleep(310)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(main())
    assert [abs(a - b) <= 1 for a, b in zip(told, [30, 60, 120, 240, 330, 360, 420, 540], strict=True)] == [True] * 8
