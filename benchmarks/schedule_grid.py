"""Every schedule in every regime of a designed grid, beside the best fixed schedule in hindsight and a bound that none can beat.

    python benchmarks/schedule_grid.py [--processes 2] [--json FILE] [--figure FILE]
    python benchmarks/schedule_grid.py --grid second                       # not used while `adaptive` was designed
    python benchmarks/schedule_grid.py --schedules adaptive --reuse FILE   # the other cells from an earlier --json

Simulated, with the shipped policies and queue. A cell is the mean rollout-to-train-end over the measured rounds of all seeds;
every schedule has the same lengths and verifier times. `adaptive` learns over the rounds before, so it simulates them too.
docs/grid.md says how to read the table. Exits 1 where a mark of the main grid is missed.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from regimes import GRIDS, MEASURED, WARM_UP, Regime, design
from shared import where

from common.simulation.bound import lower_bound
from common.simulation.models import Scenario
from common.simulation.run import lengths_of, simulate, verify_s_of

SCHEDULES = ("serial", "cgp", "fgd", "fgd-strict", "adaptive", "fgd-last")
LAST = "fgd-last"  # fgd whose trainer begins an update with its U-th group


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One schedule in one regime."""

    time_s: float  # mean of rounds_s
    rounds_s: tuple[float, ...]  # measured rounds of all seeds
    first_s: float | None = None  # mean of the first rounds, before anything is learned


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All cells of one regime. fgd-strict has one for each width: `strict-4`."""

    regime: Regime
    bound_s: float
    cells: dict[str, Cell]

    @property
    def fixed(self) -> dict[str, float]:
        """Those that the best fixed schedule is chosen from."""
        return {name: cell.time_s for name, cell in self.cells.items() if name in ("cgp", "fgd") or name.startswith("strict-")}

    @property
    def best(self) -> str:
        """The best fixed schedule in hindsight."""
        return min(self.fixed, key=lambda name: self.fixed[name])

    def over(self, name: str, other: str) -> float:
        """How much longer `name` takes than `other`, in %; below 0: less."""
        return 100 * (self.cells[name].time_s / self.cells[other].time_s - 1)

    def gain(self, name: str, other: str) -> float:
        """The share of the time of `other` that `name` saves, in %."""
        return 100 * (1 - self.cells[name].time_s / self.cells[other].time_s)

    def error(self, name: str, other: str) -> float:
        """Standard error of `over`, in %, from the differences round by round."""
        pairs = zip(self.cells[name].rounds_s, self.cells[other].rounds_s, strict=True)
        differences = [one - two for one, two in pairs]
        return 100 * statistics.stdev(differences) / math.sqrt(len(differences)) / self.cells[other].time_s

    def room(self, other: str) -> float:
        """The share of the time of `other` that a schedule could save at most, in %."""
        return 100 * (1 - self.bound_s / self.cells[other].time_s)

    def first_gain(self, name: str, other: str) -> float:
        """The same in the first round, when nothing was learned yet."""
        return 100 * (1 - (self.cells[name].first_s or 0.0) / (self.cells[other].first_s or 1.0))

    def above_bound(self, name: str) -> float:
        """How far above the bound, in %."""
        return 100 * (self.cells[name].time_s / self.bound_s - 1)

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        cells = {name: asdict(cell) for name, cell in self.cells.items()}
        return {"number": self.regime.number, "label": self.regime.label, "bound_s": self.bound_s, "cells": cells}


def evaluate(
    regime: Regime, schedule: str, *, width: int | None = None, seeds: Sequence[int] | None = None, **changes: object
) -> Cell:
    """Simulate one schedule in one regime: `evaluate(design(MAIN)[4], "fgd-strict", width=8)`.

    changes: fields of the scenario, as `predictor_error=None`.
    """
    starts_at = "last" if schedule == LAST else "first"
    name = "fgd" if schedule == LAST else schedule
    measured: list[float] = []
    first: list[float] = []
    for seed in regime.seeds if seeds is None else seeds:
        scenario = regime.scenario(seed, name, width=width, starts_at=starts_at)
        scenario = replace(scenario, **changes)  # type: ignore[arg-type]
        times = _rounds(scenario)
        measured += times[-MEASURED:]
        first += times[:-MEASURED][:1]
    return Cell(time_s=statistics.fmean(measured), rounds_s=tuple(measured), first_s=statistics.fmean(first) if first else None)


def _rounds(scenario: Scenario) -> list[float]:
    """The first round where it is reported, those that are learned from, and the measured ones."""
    if scenario.schedule == "adaptive":
        return _times(scenario)
    first = _times(replace(scenario, rounds=1)) if scenario.schedule in ("cgp", "fgd") else []
    return first + _times(scenario, first_round=WARM_UP)


def _times(scenario: Scenario, first_round: int = 0) -> list[float]:
    rounds = simulate(scenario, first_round=first_round).rounds
    return [one.r2t_end_s for one in rounds if one.r2t_end_s is not None]


def bound_of(regime: Regime) -> float:
    """Mean bound of the rounds that are measured."""
    bounds = []
    for seed in regime.seeds:
        scenario = regime.scenario(seed, "fgd")
        for index in range(WARM_UP, WARM_UP + MEASURED):
            bounds.append(lower_bound(scenario, lengths_of(scenario, index), verify_s_of(scenario, index)))
    return statistics.fmean(bounds)


def run_regime(regime: Regime, schedules: Sequence[str], predictor_error: float | None) -> Result:
    """All cells asked for."""
    cells: dict[str, Cell] = {}
    for schedule in schedules:
        if schedule == "fgd-strict":
            cells |= {f"strict-{width}": evaluate(regime, schedule, width=width) for width in regime.widths}
        else:
            cells[schedule] = evaluate(regime, schedule, predictor_error=predictor_error)
    return Result(regime=regime, bound_s=bound_of(regime), cells=cells)


def run_grid(regimes: Sequence[Regime], schedules: Sequence[str], predictor_error: float | None, processes: int) -> list[Result]:
    """All regimes, the costly ones first; results in the order of the grid."""
    by_cost = sorted(regimes, key=lambda regime: -regime.num_groups)
    run = partial(run_regime, schedules=schedules, predictor_error=predictor_error)
    if processes == 1:
        results = _counted(map(run, by_cost), len(by_cost))
    else:
        with ProcessPoolExecutor(processes) as pool:
            results = _counted(pool.map(run, by_cost), len(by_cost))
    return sorted(results, key=lambda result: result.regime.number)


def _counted(results: Iterable[Result], num_regimes: int) -> list[Result]:
    done: list[Result] = []
    for result in results:
        done.append(result)
        print(f"\r{len(done)} of {num_regimes}", end="" if len(done) < num_regimes else "\n", file=sys.stderr, flush=True)
    return done


def with_reused(results: Iterable[Result], path: Path) -> list[Result]:
    """Cells that were not simulated now come from an earlier `--json`. Exits where that was another grid."""
    earlier = {row["number"]: row for row in json.loads(path.read_text(encoding="utf-8"))["regimes"]}
    return [_joined(result, earlier.get(result.regime.number, {}), path) for result in results]


def _joined(result: Result, row: dict, path: Path) -> Result:
    if row.get("label") != result.regime.label or abs(row["bound_s"] / result.bound_s - 1) > 1e-9:
        sys.exit(f"--reuse: {path} has another regime {result.regime.number}; run the whole grid with --json again")
    cells = {name: Cell(**{**cell, "rounds_s": tuple(cell["rounds_s"])}) for name, cell in row["cells"].items()}
    return replace(result, cells=cells | result.cells)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Every schedule in every regime, against the best fixed one and a bound.")
    parser.add_argument("--grid", choices=list(GRIDS), default="main")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="numbers of regimes")
    parser.add_argument("--schedules", default=",".join(SCHEDULES), help=f"of {', '.join(SCHEDULES)}")
    parser.add_argument("--predictor-error", default="0.5", help="sigma of the log of predicted lengths, or none: learned")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="print the regimes and end")
    parser.add_argument("--json", type=Path, help="write all cells")
    parser.add_argument("--reuse", type=Path, metavar="FILE", help="an earlier --json: cells of schedules not asked for now")
    parser.add_argument("--figure", type=Path, help="write the heat map (.svg or .png)")
    args = parser.parse_args()
    args.schedules = args.schedules.split(",")
    if unknown := set(args.schedules) - set(SCHEDULES):
        parser.error(f"--schedules: unknown {', '.join(sorted(unknown))}; choose of {', '.join(SCHEDULES)}")
    args.predictor_error = None if args.predictor_error == "none" else float(args.predictor_error)
    return args


def main() -> int:
    import grid_report

    args = parse()
    regimes = design(GRIDS[args.grid])
    regimes = [regime for regime in regimes if not args.only or regime.number in args.only]
    print(f"{where()}\ngrid {args.grid}: {len(regimes)} regimes, predictor error {args.predictor_error}")
    if args.list:
        print(*(f"{regime.number:3}  {regime.label}" for regime in regimes), sep="\n")
        return 0
    started = time.perf_counter()
    results = run_grid(regimes, args.schedules, args.predictor_error, args.processes)
    if args.reuse:
        results = with_reused(results, args.reuse)
    if args.json:
        rows = [result.to_json() for result in results]
        args.json.write_text(json.dumps({"grid": args.grid, "regimes": rows}, indent=1), encoding="utf-8")
    is_met = grid_report.report(results)
    if args.figure:
        import grid_figure

        grid_figure.draw(results, args.figure)
    print(f"\n{time.perf_counter() - started:.0f} s")
    return 0 if is_met or args.grid != "main" else 1


if __name__ == "__main__":
    sys.exit(main())
