"""What the paper reports (arXiv 2606.26997, June 2026): the figures that the reproduction is fitted on or compared with.

Seconds, means of 4 rounds; shares between 0 and 1. A range is over the four workloads, and over R where none is named.
"""

from typing import NamedTuple

WORKLOADS = ("lsat_ar", "sci_xw", "sci_jl", "olyphys")
GROUPS_PER_ROUND = (32, 64, 96)  # R
RESPONSES_PER_GROUP = 8  # K
GROUPS_PER_UPDATE = 2  # U
FRONTIER_WIDTH = 2  # F_w

# Trainer compute by workload and R, of serial, cgp and fgd (the paper's Slime, CGP, CGP+FGD).
COMPUTE_S: dict[tuple[str, int], tuple[float, float, float]] = {
    ("lsat_ar", 32): (195.1, 194.7, 195.9),
    ("lsat_ar", 64): (388.9, 387.6, 391.9),
    ("lsat_ar", 96): (587.4, 589.0, 586.4),
    ("sci_xw", 32): (191.8, 191.7, 192.5),
    ("sci_xw", 64): (379.9, 383.4, 375.9),
    ("sci_xw", 96): (572.2, 573.0, 577.3),
    ("sci_jl", 32): (194.1, 195.2, 192.5),
    ("sci_jl", 64): (384.6, 380.7, 385.7),
    ("sci_jl", 96): (584.5, 584.1, 584.1),
    ("olyphys", 32): (211.5, 210.6, 211.1),
    ("olyphys", 64): (420.7, 425.7, 426.9),
    ("olyphys", 96): (640.0, 640.0, 644.4),
}

# Rollout to train end, as far as the paper gives it, by workload, R and schedule.
R2T_END_S: dict[tuple[str, int, str], float] = {
    ("lsat_ar", 32, "serial"): 363.0,
    ("lsat_ar", 32, "fgd"): 251.0,
    ("lsat_ar", 96, "serial"): 1098.0,
    ("lsat_ar", 96, "fgd"): 647.0,
    ("sci_xw", 96, "cgp"): 659.0,
    ("sci_xw", 96, "fgd"): 642.0,
}


class Range(NamedTuple):
    """From lowest to highest."""

    low: float
    high: float


FIRST_DISPATCH_S = {"serial": Range(509, 543), "cgp": Range(46, 90), "fgd": Range(52, 61)}  # at R = 96
REDUCTION = {32: Range(0.307, 0.329), 64: Range(0.307, 0.423), 96: Range(0.398, 0.423)}  # fgd against serial, by R
CGP_SHARE = Range(0.71, 0.96)  # of the saving: (serial - cgp) / (serial - fgd)
FGD_BELOW_CGP = Range(0.025, 0.114)  # (cgp - fgd) / cgp
WAITING = {"serial": Range(0.47, 0.52), "fgd": Range(0.14, 0.33)}
WAITING_FGD_96 = {"lsat_ar": 0.142, "sci_xw": 0.150, "sci_jl": 0.138, "olyphys": 0.139}
TRACE_S = Range(200, 400)  # first and last group complete, LSAT-AR, R = 96, serial


def compute_s(workload: str, groups_per_round: int) -> float:
    """Mean of the three schedules, which trained the same amount: what differs is the noise of the measurement."""
    figures = COMPUTE_S[workload, groups_per_round]
    return sum(figures) / len(figures)


def compute_per_group_s(workload: str) -> float:
    """Over all R."""
    return sum(compute_s(workload, size) for size in GROUPS_PER_ROUND) / sum(GROUPS_PER_ROUND)
