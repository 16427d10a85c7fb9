"""How near the simulated settings come to the paper: each figure beside the mark that it has to meet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.simulation.paper_figures import (
    CGP_SHARE,
    COMPUTE_S,
    FGD_BELOW_CGP,
    FIRST_DISPATCH_S,
    R2T_END_S,
    REDUCTION,
    WAITING,
    WAITING_FGD_96,
    WORKLOADS,
    Range,
)
from common.simulation.paper_table import Find, Row, finder, gap_s, share_of_saving

POINTS = 0.03  # of a reduction
WIDENED = 0.15  # of a first dispatch
CLOSE = 0.04  # of a total


@dataclass(frozen=True, slots=True)
class Mark:
    """`value` against `mark`, in words."""

    name: str
    value: str
    mark: str
    is_met: bool


def marks(rows: Sequence[Row]) -> list[Mark]:
    """Needs the rows of serial, cgp and fgd."""
    find = finder(rows)
    return [*_reductions(find), *_first_dispatches(find), *_totals(find), _cgp_shares(find)]


def further_figures(rows: Sequence[Row]) -> list[Mark]:
    """Figures of the paper without a mark, also those that cannot be met."""
    find = finder(rows)
    below = [1 - find(*key, "fgd")["r2t_end_s"] / find(*key, "cgp")["r2t_end_s"] for key in COMPUTE_S]
    compute = [find(*key, "fgd")["trainer_compute_s"] / COMPUTE_S[key][2] - 1 for key in COMPUTE_S]
    worst = max(compute, key=abs)
    found = [
        _range("fgd below cgp, all settings", below, FGD_BELOW_CGP, _percent),
        Mark("trainer compute of fgd, all settings", f"within {abs(worst):.1%}", "the table", abs(worst) < POINTS),
    ]
    for name, label in (("waiting_ratio", "wait / (wait + compute)"), ("waiting_ratio_with_gap", f"and {gap_s():.0f} s of gap")):
        for schedule, allowed in WAITING.items():
            values = [find(*key, schedule)[name] for key in COMPUTE_S]
            found.append(_range(f"waiting of {schedule}, {label}", values, allowed, _percent))
        values = [find(workload, 96, "fgd")[name] for workload in WORKLOADS]
        paper = list(WAITING_FGD_96.values())
        is_met = all(abs(ours - theirs) < POINTS for ours, theirs in zip(values, paper, strict=True))
        found.append(Mark(f"waiting of fgd, R=96, {label}", _list(values), f"{_list(paper)}, within 3 points", is_met))
    return found


def _reductions(find: Find) -> list[Mark]:
    found = []
    for groups_per_round, allowed in REDUCTION.items():
        values = [find(workload, groups_per_round, "fgd")["reduction_vs_serial"] for workload in WORKLOADS]
        name = f"reduction of fgd, R={groups_per_round}, four workloads"
        found.append(_range(name, values, allowed, _percent, Range(allowed.low - POINTS, allowed.high + POINTS)))
    for groups_per_round in (32, 96):
        serial_s, fgd_s = (R2T_END_S["lsat_ar", groups_per_round, schedule] for schedule in ("serial", "fgd"))
        ours, theirs = find("lsat_ar", groups_per_round, "fgd")["reduction_vs_serial"], 1 - fgd_s / serial_s
        name, mark = f"reduction of fgd, R={groups_per_round}, lsat_ar", f"{theirs:.1%}, within 3 points"
        found.append(Mark(name, f"{ours:.1%}", mark, abs(ours - theirs) <= POINTS))
    return found


def _first_dispatches(find: Find) -> list[Mark]:
    found = []
    for schedule, allowed in FIRST_DISPATCH_S.items():
        values = [find(workload, 96, schedule)["first_dispatch_s"] for workload in WORKLOADS]
        wide = Range(allowed.low * (1 - WIDENED), allowed.high * (1 + WIDENED))
        found.append(_range(f"first dispatch of {schedule}, R=96, four workloads", values, allowed, _seconds, wide))
    return found


def _totals(find: Find) -> list[Mark]:
    found = []
    for key in (("sci_xw", 96, "cgp"), ("sci_xw", 96, "fgd")):
        ours, theirs = find(*key)["r2t_end_s"], R2T_END_S[key]
        is_met = abs(ours / theirs - 1) <= CLOSE
        found.append(Mark(f"total of {key[2]}, R={key[1]}, {key[0]}", _seconds(ours), f"{theirs:.0f} s, within 4 %", is_met))
    return found


def _cgp_shares(find: Find) -> Mark:
    values = [share_of_saving(*(find(*key, name)["r2t_end_s"] for name in ("serial", "cgp", "fgd"))) for key in COMPUTE_S]
    return _range("share of the saving due to cgp, all settings", values, CGP_SHARE, _percent)


def _range(name: str, values: Sequence[float], paper: Range, text: Callable[[float], str], allowed: Range | None = None) -> Mark:
    """All values within `allowed`, else within the paper's own range."""
    low, high = allowed or paper
    mark = f"{text(paper.low)} to {text(paper.high)}" + (f", widened to {text(low)} to {text(high)}" if allowed else "")
    is_met = low <= min(values) and max(values) <= high
    return Mark(name, f"{text(min(values))} to {text(max(values))}", mark, is_met)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _seconds(value: float) -> str:
    return f"{value:.0f} s"


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{100 * value:.1f}" for value in values) + " %"
