"""Kill processes of many runs and see that nothing is lost: `python benchmarks/chaos` (`make chaos`).

    --seeds 0-29        runs with fake engines and trainers in real processes
    --plants            each planted bug with a seed that shows it; exits 0 where all are found
    --plant NAME        a planted bug with these seeds; exits 0 where it is found
    --real              vLLM and FSDP2 on the quickstart's model
    --keep              keep the directories of runs that went well
A seed repeats its run: the same configuration, the same strikes at the same counts of events (not at the same microsecond).
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCHMARKS.parent), str(BENCHMARKS)]

from chaos.harness import Outcome, RunUnderFire  # noqa: E402
from chaos.plants import PLANTS, SEEDS_OF_PLANTS  # noqa: E402
from chaos.scenario import make_real_scenario, make_scenario  # noqa: E402
from chaos.times import table  # noqa: E402


def main() -> None:
    """Run, print, exit 1 where a run was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-29", help="for example 0-29 or 3,7")
    parser.add_argument("--real", action="store_true", help="vLLM and FSDP2 on the quickstart's model")
    parser.add_argument("--nodes", choices=["yes", "no"], help="a cluster of nodes, whatever the seed says")
    parser.add_argument(
        "--kinds", default="", help="what is struck, in this order, whatever the seed says: engine,rank,driver ..."
    )
    parser.add_argument("--plant", default="", choices=["", *PLANTS], help="a bug; found is then as it should be")
    parser.add_argument("--plants", action="store_true", help="each planted bug with the seed that shows it")
    parser.add_argument("--dir", type=Path, help="where the runs lie; default: a temporary directory")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--no-compare", action="store_true", help="only the judge: no other run of the same configuration")
    parser.add_argument("--json", type=Path, help="what was struck and found, by seed")
    arguments = parser.parse_args()
    if arguments.plants:
        sys.exit(run_plants())
    root = arguments.dir or Path(tempfile.mkdtemp(prefix="chaos-"))
    start_s = time.monotonic()
    outcomes = []
    for seed in seeds(arguments.seeds):
        nodes = None if arguments.nodes is None else arguments.nodes == "yes"
        scenario = make_scenario(seed, nodes=nodes, kinds=[kind for kind in arguments.kinds.split(",") if kind])
        scenario = make_real_scenario(seed) if arguments.real else replace(scenario, plant=arguments.plant)
        home = root / f"seed-{seed}"
        shutil.rmtree(home, ignore_errors=True)
        print(f"seed {seed}: {scenario}", flush=True)
        outcome = RunUnderFire(scenario, home, compares=not arguments.no_compare).go()
        outcomes.append((outcome, home))
        show(outcome, home)
    failed = [outcome.scenario.seed for outcome, _ in outcomes if outcome.findings]
    print("\n".join(["", *table(outcomes)]))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(outcome) for outcome, _ in outcomes], indent=1))
    num_strikes = sum(len(outcome.strikes) for outcome, _ in outcomes)
    if arguments.plant:
        print(f"\n{arguments.plant}: {'found' if failed else 'NOT FOUND'}")
        sys.exit(0 if failed else 1)
    print(f"\n{len(outcomes)} runs, {num_strikes} kills, {time.monotonic() - start_s:.0f} s; failed: {failed or 'none'}")
    if not failed and not arguments.keep:
        shutil.rmtree(root, ignore_errors=True)
    sys.exit(1 if failed else 0)


def run_plants() -> int:
    """0 where each is found."""
    missed = []
    for plant, (seed, kind) in SEEDS_OF_PLANTS.items():
        words = ["--seeds", str(seed), "--kinds", kind, "--nodes", "no", "--no-compare", "--plant", plant]
        if subprocess.run([sys.executable, __file__, *words], check=False).returncode != 0:
            missed.append(plant)
    print(f"planted bugs that were not found: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


def show(outcome: Outcome, home: Path) -> None:
    """A line, or what was found and how to repeat it."""
    struck = " ".join(strike["target"] for strike in outcome.strikes) or "nothing"
    head = f"{'FAILED' if outcome.findings else 'ok    '}  {outcome.seconds:.0f} s, {outcome.num_starts} starts, killed: {struck}"
    print(f"  {head}; final weights against: {outcome.compared or 'not compared'}", flush=True)
    for line in outcome.findings[:12]:
        print(f"    {line}")
    if outcome.findings:
        real = " --real" if outcome.scenario.is_real else ""
        again = f"{Path(sys.executable).name} benchmarks/chaos --seeds {outcome.scenario.seed}{real}"
        print(f"    again: {again}; its files: {home}", flush=True)


def seeds(text: str) -> list[int]:
    """`0-3,7` as numbers."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


if __name__ == "__main__":
    main()
