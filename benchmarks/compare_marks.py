"""Do the schedules save what they promise, without skipping work? `compare` with serial, cgp and fgd, against the marks.

python benchmarks/compare_marks.py [key=value ...]
"""

import argparse
from typing import Any

from shared import Marks, rolloutpipe, where

MAX_RATIO = 0.70
MAX_WAITING = 0.5
MAX_DIFFERENCE = 0.10


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*")
    overrides = parser.parse_args().overrides
    data = rolloutpipe("compare", "configs/compare.yaml", "--schedules", "serial,cgp,fgd", *overrides)
    serial, _, fgd = data["schedules"]
    print(f"\n{where()}; medians of {len(serial['rounds'])} rounds")
    marks = Marks()
    ratio = _ratio(fgd, serial, "r2t_end_s")
    marks.check("rollout to train end, fgd / serial", f"{ratio:.3f}", f"at most {MAX_RATIO}", ratio <= MAX_RATIO)
    waiting = _ratio(fgd, serial, "waiting_ratio")
    marks.check("waiting ratio, fgd / serial", f"{waiting:.3f}", f"at most {MAX_WAITING}", waiting <= MAX_WAITING)
    tokens = _total(fgd, "tokens") / _total(serial, "tokens")
    marks.check("tokens trained, fgd / serial", f"{tokens:.3f}", "within 10 %", abs(tokens - 1) <= MAX_DIFFERENCE)
    cpu = _cpu_per_token(fgd) / _cpu_per_token(serial)
    marks.check("trainer CPU seconds per token, fgd / serial", f"{cpu:.3f}", "within 10 %", abs(cpu - 1) <= MAX_DIFFERENCE)
    rollout, compute = _ratio(fgd, serial, "rollout_s"), _ratio(fgd, serial, "trainer_compute_s")
    balance = serial["median"]["rollout_s"] / serial["median"]["trainer_compute_s"]
    print(f"alone, rollout takes {balance:.2f} times as long as training")
    print(f"contention: beside each other rollout takes {rollout:.2f}, training {compute:.2f} times as long as alone")
    marks.end()


def _ratio(row: dict[str, Any], base: dict[str, Any], name: str) -> float:
    return float(row["median"][name] / base["median"][name])


def _total(row: dict[str, Any], name: str) -> float:
    return float(sum(one[name] for one in row["rounds"]))


def _cpu_per_token(row: dict[str, Any]) -> float:
    return _total(row, "trainer_cpu_s") / _total(row, "tokens")


if __name__ == "__main__":
    main()
