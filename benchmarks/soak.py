"""Does anything grow? 200 toy rounds in real processes with fake engines and trainer; memory, open files and threads of each.

    python benchmarks/soak.py [--rounds 200] [--real CONFIG]

Mark: from round 20 on, no process's resident memory, open files or threads grow by more than 3 %. What counts are medians over a
tenth of the rounds, the first and the last after round 20, so that one moment says nothing. `--real` runs that configuration
instead, with vLLM and FSDP2.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from shared import ROOT, Marks, where

sys.path.insert(0, str(ROOT))

from chaos.harness import write_model
from chaos.processes import Home
from chaos.scenario import Scenario, make_scenario

WARM_UP = 20
MOST = 0.03
COLUMNS = ("memory MiB", "files", "threads")
Samples = dict[str, dict[int, tuple[float, float, float]]]  # by process and round


def main() -> None:
    """Run, print a line for each process, and exit 1 where one grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--real", type=Path)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="soak-"))
    scenario = toy_scenario(arguments.rounds)
    home = Home(root / "home", scenario)
    start_s = time.monotonic()
    process = start(home, scenario, arguments.real)
    try:
        samples = watch(home, process)
    finally:
        home.kill_left()
    if process.wait() != 0:
        sys.exit(f"the run failed: {(home.path / 'driver.log').read_text()[-1000:]}")
    print(f"\n{where()}; {arguments.rounds} rounds in {time.monotonic() - start_s:.0f} s")
    marks = Marks()
    show(samples, arguments.rounds, marks)
    shutil.rmtree(root)
    marks.end()


def toy_scenario(rounds: int) -> Scenario:
    """Adaptive, with refills and checkpoints: what keeps the most state."""
    settings = make_scenario(0, nodes=False).settings
    sizes = {"rounds": rounds, "groups_per_round": 4, "responses_per_group": 3, "groups_per_update": 2, "filter": "refill"}
    settings = {**settings, **sizes, "schedule": "adaptive", "group_order": "arrival", "checkpoint": {"every": 10}}
    settings = {**settings, "name": "soak", "rollout": {"replicas": 2, "capacity": 4}, "retention": {"groups": 20}}
    return Scenario(seed=0, settings=settings)


def start(home: Home, scenario: Scenario, real: Path | None) -> subprocess.Popen[bytes]:
    """The driver."""
    where_to = [f"run_dir={home.run_dir}", f"rounds={scenario.settings['rounds']}"]
    if real is not None:
        return home.start(["common.cli", "train", str(real.resolve()), *where_to], home.path / "driver.log")
    config = home.path / "config.yaml"
    config.write_text(json.dumps({**scenario.settings, "model": {"path": str(write_model(home.path / "model"))}}))
    return home.start(["chaos.driver", "train", str(config), *where_to], home.path / "driver.log")


def watch(home: Home, process: subprocess.Popen[bytes]) -> Samples:
    """After each round, all processes."""
    samples: Samples = defaultdict(dict)
    num_rounds = 0
    while process.poll() is None:
        time.sleep(0.05)
        finished = rounds_finished(home.run_dir / "timeline.jsonl")
        if finished > num_rounds:
            num_rounds = finished
            for each in home.left():
                if (name := name_of(each)) is not None:
                    samples[name][num_rounds] = measure(each)
    return samples


def rounds_finished(timeline: Path) -> int:
    """So many `round_end`s."""
    return timeline.read_bytes().count(b'"kind":"round_end"') if timeline.exists() else 0


def name_of(process: psutil.Process) -> str | None:
    """What stands in the table."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return None
    text = " ".join(words)
    for mark, name in (
        ("chaos.driver", "driver"),
        ("common.cli", "driver"),
        ("common.rewards.nursery", "verifier"),
        ("gcs_server", "Ray gcs"),
        ("raylet/raylet", "Ray raylet"),
        ("ray::", words[0].split(".")[0] if words else ""),
    ):
        if mark in text:
            return f"{name} {process.pid}"
    return f"{Path(words[-1] if words else '?').name[:30]} {process.pid}"


def measure(process: psutil.Process) -> tuple[float, float, float]:
    """Resident MiB, open files, threads."""
    try:
        with process.oneshot():
            return process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
    except psutil.Error:
        return float("nan"), float("nan"), float("nan")


def show(samples: Samples, rounds: int, marks: Marks) -> None:
    """A line for each process that lived from the warm-up to the end."""
    span = max(1, (rounds - WARM_UP) // 10)
    print(f"\nmedians of rounds {WARM_UP + 1} to {WARM_UP + span}, and of the last {span}\n")
    print("| process | " + " | ".join(COLUMNS) + " |\n| --- | --- | --- | --- |")
    growths: dict[str, float] = dict.fromkeys(COLUMNS, 0.0)
    for name, by_round in sorted(samples.items()):
        first = [values for number, values in by_round.items() if WARM_UP < number <= WARM_UP + span]
        last = [values for number, values in by_round.items() if number > rounds - span]
        if not first or not last:
            continue
        cells = []
        for column, before, after in zip(COLUMNS, _medians(first), _medians(last), strict=True):
            growth = after / before - 1
            growths[column] = max(growths[column], growth)
            cells.append(f"{before:.0f} -> {after:.0f} ({100 * growth:+.1f} %)")
        print(f"| {name} | {' | '.join(cells)} |")
    print()
    for column, growth in growths.items():
        marks.check(f"most growth of {column}", f"{100 * growth:.1f} %", f"at most {100 * MOST:.0f} %", growth <= MOST)


def _medians(rows: list[tuple[float, float, float]]) -> list[Any]:
    return [median(column) for column in zip(*rows, strict=True)]


if __name__ == "__main__":
    main()
