"""The grid covers what it says evenly, its work ratios are true, and its table judges by the cells alone."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.simulation.bound import rollout_bound
from common.simulation.run import lengths_of

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FACTORS = ("tail", "num_groups", "verifier", "replicas", "order", "saturation")


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import schedule_grid

    return schedule_grid


@pytest.mark.parametrize(("name", "num_regimes"), [("main", 72), ("second", 54)])
def test_every_level_comes_up_equally_often_at_each_capacity_and_ratio(grid: Any, name: str, num_regimes: int) -> None:
    regimes = grid.design(grid.GRIDS[name])
    assert len(regimes) == num_regimes
    assert len({regime.label for regime in regimes}) > 0.95 * num_regimes
    for factor in FACTORS:
        counts = Counter((one.capacity, one.ratio, getattr(one, factor)) for one in regimes)
        assert len(set(counts.values())) == 1, (factor, counts)


def test_the_second_grid_shares_no_capacity_ratio_size_or_seed_with_the_main_one(grid: Any) -> None:
    main, second = (grid.design(grid.GRIDS[name]) for name in ("main", "second"))
    for factor in ("capacity", "ratio", "num_groups", "verifier", "saturation", "tail"):
        assert not {getattr(one, factor) for one in main} & {getattr(one, factor) for one in second}, factor
    assert not {seed for one in main for seed in one.seeds} & {seed for one in second for seed in one.seeds}


def test_training_takes_the_work_ratio_times_the_sampling_at_its_best(grid: Any) -> None:
    for regime in grid.design(grid.GRIDS["main"])[::9]:
        scenario = regime.scenario(regime.seeds[0], "cgp")
        rounds = [lengths_of(scenario, index) for index in range(3, 6)]
        trainer, num_updates = scenario.trainer, -(-regime.num_groups // regime.per_update)
        one_round_s = trainer.group_s * regime.num_groups + trainer.update_s * num_updates
        training_s = 3 * one_round_s + trainer.token_s * sum(lengths.sum() for lengths in rounds)
        assert training_s == pytest.approx(regime.ratio * sum(rollout_bound(scenario, lengths) for lengths in rounds))


def test_the_widths_are_the_powers_of_two_the_update_and_what_fills_the_engines(grid: Any) -> None:
    regime = next(one for one in grid.design(grid.GRIDS["second"]) if one.num_groups == 48 and one.slots == 72)
    assert regime.widths == sorted({1, 2, 4, 8, 12, 16, 32, 48, regime.per_update})


def small(grid: Any) -> Any:
    regime = grid.design(grid.GRIDS["main"])[0]
    return replace(regime, num_groups=8, update=2)


def test_all_schedules_are_measured_on_the_same_rounds(grid: Any) -> None:
    regime = small(grid)
    grouped = replace(regime, order="grouped")
    fifo, in_order, wide = (
        grid.evaluate(grouped, name, width=width) for name, width in (("cgp", None), ("fgd", None), ("fgd-strict", 8))
    )
    assert fifo.rounds_s == in_order.rounds_s == wide.rounds_s
    assert len(fifo.rounds_s) == 3 * len(regime.seeds)
    assert fifo.rounds_s == grid.evaluate(grouped, "cgp").rounds_s
    assert grid.evaluate(grouped, "fgd-strict", width=1).time_s > fifo.time_s
    learning = grid.evaluate(grouped, "adaptive", seeds=[0])
    assert len(learning.rounds_s) == 3
    assert learning.first_s is not None


def result(grid: Any, number: int, **times: float) -> Any:
    cells = {
        name.replace("_", "-"): grid.Cell(time_s=time_s, rounds_s=(time_s, time_s), first_s=time_s)
        for name, time_s in times.items()
    }
    return grid.Result(regime=grid.design(grid.GRIDS["main"])[number], bound_s=50.0, cells=cells)


@pytest.mark.parametrize(
    ("adaptive", "is_met", "missed"),
    [
        ((93.0, 97.0), True, []),
        ((93.0, 98.5), False, ["mean gain over cgp, bottleneck training"]),
        ((95.0, 97.0), False, ["worst regime", "mean gain over cgp, bottleneck rollout"]),
    ],
)
def test_the_marks_are_missed_where_they_should_be(
    grid: Any, capsys: pytest.CaptureFixture[str], adaptive: tuple[float, float], is_met: bool, missed: list[str]
) -> None:
    import grid_report

    results = [
        result(grid, 0, cgp=100.0, fgd=99.0, strict_2=92.0, adaptive=adaptive[0]),
        result(grid, 18, cgp=100.0, fgd=98.0, strict_2=99.0, adaptive=adaptive[1]),
    ]
    assert [one.regime.bottleneck for one in results] == ["rollout", "training"]
    assert grid_report.report(results) is is_met
    lines = capsys.readouterr().out.splitlines()
    judged = [line for line in lines if line.startswith("MISSED")]
    assert len(judged) == len(missed)
    assert all(name in line for name, line in zip(missed, judged, strict=True))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "schedule_grid.py"), *arguments]
    environment = {"PYTHONPATH": str(BENCHMARKS.parent), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def test_one_regime_from_the_command_line_and_again_with_cells_reused(tmp_path: Path) -> None:
    kept, figure = tmp_path / "cells.json", tmp_path / "grid.svg"
    first = run("--only", "57", "--processes", "1", "--json", str(kept), "--figure", str(figure))
    assert "regime 57" in first.stdout, first.stderr
    (row,) = json.loads(kept.read_text(encoding="utf-8"))["regimes"]
    assert {"serial", "cgp", "fgd", "adaptive", "fgd-last", "strict-1", "strict-32"} <= set(row["cells"])
    assert all(cell["time_s"] > row["bound_s"] for cell in row["cells"].values())
    assert "<svg" in figure.read_text(encoding="utf-8")
    again = run("--only", "57", "--processes", "1", "--schedules", "adaptive", "--reuse", str(kept))
    assert again.stdout.splitlines()[2:-1] == first.stdout.splitlines()[2:-1]  # but for the time it took
    other = run("--only", "58", "--processes", "1", "--schedules", "serial", "--reuse", str(kept))
    assert other.returncode == 1
    assert "has another regime 58" in other.stderr


def test_an_unknown_schedule_is_refused() -> None:
    done = run("--schedules", "cgp,best")
    assert done.returncode == 2
    assert "unknown best; choose of serial" in done.stderr
