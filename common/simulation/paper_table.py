"""The paper's settings simulated: a row for each setting and schedule, and how much the order of arrival matters."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from common.config import RequestOrder
from common.metrics import RoundMetrics
from common.simulation.off_policy import one_step_off
from common.simulation.paper import FITTED, Model, PaperSettings, paper_scenario
from common.simulation.paper_figures import COMPUTE_S, R2T_END_S, WAITING_FGD_96
from common.simulation.run import simulate

Row = dict[str, Any]
FIGURES = ("r2t_end_s", "first_dispatch_s", "waiting_ratio", "waiting_ratio_first", "trainer_compute_s")
SPREADS = (0.0, 1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 32.0)
ORDER_SETTINGS = (("sci_xw", 96), ("lsat_ar", 32))


def paper_rows(
    settings: PaperSettings, schedules: Sequence[str], out: Path | None = None, model: Model = FITTED
) -> tuple[list[Row], list[Row]]:
    """Rows of the schedules, and off-policy rows, which are never among them.

    `out`: gets the timeline of each row's first round, as `rolloutpipe report` reads it.
    """
    rows: list[Row] = []
    off_policy: list[Row] = []
    for workload, groups_per_round in COMPUTE_S:
        place: Row = {"workload": workload, "groups_per_round": groups_per_round}
        serial = simulate(paper_scenario(workload, groups_per_round, "serial", settings, model)).rounds
        serial_s = _means(serial)["r2t_end_s"]
        off_policy.append({**place, **_off_policy(serial, serial_s)})
        for schedule in schedules:
            scenario = paper_scenario(workload, groups_per_round, schedule, settings, model)
            figures = _means(serial if schedule == "serial" else simulate(scenario).rounds)
            figures["reduction_vs_serial"] = 1 - figures["r2t_end_s"] / serial_s
            figures["waiting_ratio_with_gap"] = with_gap(figures["waiting_ratio"], figures["r2t_end_s"])
            rows.append({**place, "schedule": schedule, **figures})
            if out is not None:
                directory = out / scenario.name / schedule
                directory.mkdir(parents=True)
                simulate(replace(scenario, rounds=1), path=directory / "timeline.jsonl", has_detail=True)
    return rows, off_policy


def _means(rounds: Sequence[RoundMetrics]) -> dict[str, float]:
    return {name: fmean(getattr(metrics, name) for metrics in rounds) for name in FIGURES}


def _off_policy(serial: Sequence[RoundMetrics], serial_s: float) -> Row:
    """One-step-off asynchronous rounds, of which each side takes as long as it does alone."""
    rollouts, trainings = ([getattr(metrics, name) for metrics in serial] for name in ("rollout_s", "trainer_compute_s"))
    period_s = one_step_off(rollouts, trainings).period_s
    figures = {"period_s": period_s, "reduction_vs_serial": 1 - period_s / serial_s}
    return {"schedule": "one-step-off", "is_off_policy": True, **figures}


def gap_s() -> float:
    """Waiting between rounds, as the paper's ratio for LSAT-AR at R = 96 implies it.

    The ratio is 14.2 %, but total minus compute is 9.4 % of the total: it fits where the window counts so many seconds more.
    """
    total, compute, ratio = R2T_END_S["lsat_ar", 96, "fgd"], COMPUTE_S["lsat_ar", 96][2], WAITING_FGD_96["lsat_ar"]
    return (ratio * total - (total - compute)) / (1 - ratio)


def with_gap(ratio: float, total_s: float) -> float:
    """A waiting ratio over a window that counts `gap_s` of waiting more."""
    return (ratio * total_s + gap_s()) / (total_s + gap_s())


def order_rows(settings: PaperSettings) -> list[Row]:
    """What the order of arrival does to `cgp`; `fgd` is the same under all of them, since it puts the order right."""
    orders = [replace(settings, request_order="grouped", order_spread=spread) for spread in SPREADS]
    orders += [replace(settings, request_order="shuffled"), replace(settings, request_order="interleaved")]
    rows: list[Row] = []
    for workload, groups_per_round in ORDER_SETTINGS:
        serial_s, fgd_s = (
            _means(simulate(paper_scenario(workload, groups_per_round, schedule, settings)).rounds)["r2t_end_s"]
            for schedule in ("serial", "fgd")
        )
        for order in orders:
            scenario = paper_scenario(workload, groups_per_round, "cgp", order)
            figures = _means(simulate(scenario).rounds)
            row = {"workload": workload, "groups_per_round": groups_per_round, "request_order": scenario.request_order}
            row |= {"order_spread": scenario.order_spread, **{name: figures[name] for name in FIGURES[:2]}}
            rows.append({**row, "cgp_share": share_of_saving(serial_s, figures["r2t_end_s"], fgd_s)})
    return rows


def share_of_saving(serial_s: float, cgp_s: float, fgd_s: float) -> float:
    """How much of what fgd saves, cgp saves already."""
    return (serial_s - cgp_s) / (serial_s - fgd_s)


def first_group_share(settings: PaperSettings, request_order: RequestOrder) -> float:
    """When the first group of a serial round of LSAT-AR at R = 96 is complete, as a share of the rollout."""
    scenario = paper_scenario("lsat_ar", 96, "serial", replace(settings, request_order=request_order))
    starts: dict[int, float] = {}
    firsts: dict[int, float] = {}

    def listen(event: Row) -> None:
        if event["kind"] == "round_start":
            starts[event["round"]] = event["t"]
        elif event["kind"] == "group_complete":
            firsts.setdefault(event["round"], event["t"] - starts[event["round"]])

    rounds = simulate(scenario, listen=listen).rounds
    return fmean(firsts.values()) / fmean(metrics.rollout_s or 0.0 for metrics in rounds)


Find = Callable[[str, int, str], Row]


def finder(rows: Sequence[Row]) -> Find:
    """Rows by workload, R and schedule."""
    by_key = {(row["workload"], row["groups_per_round"], row["schedule"]): row for row in rows}
    return lambda workload, groups_per_round, schedule: by_key[workload, groups_per_round, schedule]
