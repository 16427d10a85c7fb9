"""Do the schedules save what they promise, without skipping work? `compare` with serial, cgp, fgd and adaptive, against marks.

Twice, the second time in the opposite order, so that a machine whose speed drifts favours none; medians over both.

python benchmarks/compare_marks.py [key=value ...]
"""

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from shared import Marks, rolloutpipe, where

SCHEDULES = ("serial", "cgp", "fgd", "adaptive")
FIGURES = ("r2t_end_s", "first_dispatch_s", "waiting_ratio", "rollout_s", "trainer_compute_s", "trainer_cpu_s")
MAX_RATIO = 0.70
MAX_WAITING = 0.5
MAX_DIFFERENCE = 0.10
MAX_ADAPTIVE = 1.02  # of fgd; below that, two passes of one schedule differ as much


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*")
    overrides = parser.parse_args().overrides
    passes = [_compare(order, overrides) for order in (SCHEDULES, SCHEDULES[::-1])]
    serial, cgp, fgd, adaptive = ([round_ for one in passes for round_ in one[name]] for name in SCHEDULES)
    print(f"\n{where()}; medians of {len(serial)} rounds, in two passes of opposite order")
    print(f"{'schedule':10}" + "".join(f"{name:>20}" for name in FIGURES))
    for name, rounds in zip(SCHEDULES, (serial, cgp, fgd, adaptive), strict=True):
        print(f"{name:10}" + "".join(f"{_median(rounds, figure):20.3f}" for figure in FIGURES))
    print(f"rollout to train end, cgp / serial: {_ratio(cgp, serial, 'r2t_end_s'):.3f}")
    for number, one in enumerate(passes, 1):
        for name in ("fgd", "adaptive"):
            print(f"rollout to train end, {name} / serial, pass {number}: {_ratio(one[name], one['serial'], 'r2t_end_s'):.3f}")
    marks = Marks()
    ratio = _ratio(fgd, serial, "r2t_end_s")
    marks.check("rollout to train end, fgd / serial", f"{ratio:.3f}", f"at most {MAX_RATIO}", ratio <= MAX_RATIO)
    waiting = _ratio(fgd, serial, "waiting_ratio")
    marks.check("waiting ratio, fgd / serial", f"{waiting:.3f}", f"at most {MAX_WAITING}", waiting <= MAX_WAITING)
    tokens = _total(fgd, "tokens") / _total(serial, "tokens")
    marks.check("tokens trained, fgd / serial", f"{tokens:.3f}", "within 10 %", abs(tokens - 1) <= MAX_DIFFERENCE)
    cpu = _cpu_per_token(fgd) / _cpu_per_token(serial)
    marks.check("trainer CPU seconds per token, fgd / serial", f"{cpu:.3f}", "within 10 %", abs(cpu - 1) <= MAX_DIFFERENCE)
    ratio = _ratio(adaptive, fgd, "r2t_end_s")
    marks.check("rollout to train end, adaptive / fgd", f"{ratio:.3f}", f"at most {MAX_ADAPTIVE}", ratio <= MAX_ADAPTIVE)
    rollout, compute = _ratio(fgd, serial, "rollout_s"), _ratio(fgd, serial, "trainer_compute_s")
    balance = _median(serial, "rollout_s") / _median(serial, "trainer_compute_s")
    print(f"alone, rollout takes {balance:.2f} times as long as training")
    print(f"contention: beside each other rollout takes {rollout:.2f}, training {compute:.2f} times as long as alone")
    marks.end()


Rounds = list[dict[str, Any]]


def _compare(order: Sequence[str], overrides: list[str]) -> dict[str, Rounds]:
    """Rounds by schedule."""
    data = rolloutpipe("compare", "configs/compare.yaml", "--schedules", ",".join(order), *overrides)
    return {row["schedule"]: row["rounds"] for row in data["schedules"]}


def _median(rounds: Rounds, name: str) -> float:
    return float(statistics.median(one[name] for one in rounds))


def _ratio(rounds: Rounds, base: Rounds, name: str) -> float:
    return _median(rounds, name) / _median(base, name)


def _total(rounds: Rounds, name: str) -> float:
    return float(sum(one[name] for one in rounds))


def _cpu_per_token(rounds: Rounds) -> float:
    return _total(rounds, "trainer_cpu_s") / _total(rounds, "tokens")


if __name__ == "__main__":
    main()
