"""How fast are the verifiers, and what do answers that never end cost the others? Exit status 1 if a mark is missed.

    python benchmarks/verifier_speed.py [--function package.module:function [--preload MODULE]]

Tasks are built from the real files of ROLLOUTPIPE_TEST_DATA (GSM8K, MATH-500, SciBench, LSAT-AR in equal parts, half of the
answers right); two workers. Marks:

    verdicts a second                  at least 400
    an answer that math-verify does    a verdict within 2 s of its start (`timeout`, where the checker does not decide it
    not finish                         at once), and the next call is answered
    20 that hang among 2,000           95 % of the ordinary verdicts at most 2x later than without them: spread, shuffled, in a
                                       row. (All first is shown without a mark: the first ordinary verdict alone takes 1 ms)
    ordinary verdicts that time out    none
    processes left after close         none

All calls are asked at once; a verdict's time counts from there. Each of these runs has a new pool, so that none has the
caches of another. Take the figures on a quiet machine.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402
from shared import DATA  # noqa: E402

from common.config import RewardConfig  # noqa: E402
from common.protocols import Score  # noqa: E402
from common.records import Verdict  # noqa: E402
from common.rewards.pool import VerifierPool  # noqa: E402

Result = TypeVar("Result")

NUM_ORDINARY, NUM_HANGING, WORKERS, LIMIT_S = 2000, 20, 2, 1.5
REPEATS = 3  # of each arrangement; the median counts
MIN_PER_S, MAX_HANG_S, MIN_SHARE, MAX_LATER = 400, 2.0, 0.95, 2.0

# What math-verify never finishes, or not in time, by name: (gold, answer in the box).
HANGING = {
    "9^{9^9}": ("1", "9^{9^9}"),
    "9^{9^{9^9}}": ("1", "9^{9^{9^9}}"),
    "10^{10^{10^10}}": ("1", "10^{10^{10^{10}}}"),
    "3^{10^9}": ("1", "3^{10^9}"),
    "99999999!": ("1", "99999999!"),
    "((10!)!)!": ("1", "((10!)!)!"),
    "sum to 10^6": ("1", r"\sum_{k=1}^{1000000} \frac{1}{k^2}"),
    "binomial": ("1", r"\binom{1000000}{500000}"),
    "10^6 digits": ("1", "7" * 10**6),
    "improper integral": ("1", r"\int_0^\infty \frac{\sin(x^3)}{x^2+1} dx"),
    "2000 parentheses": ("1", "(" * 2000 + "1" + ")" * 2000),
    "200 braces": ("1", "{" * 200 + "1" + "}" * 200),
    "300 fractions": ("1", r"\frac{1}{" * 300 + "2" + "}" * 300),
    "500 roots": ("1", r"\sqrt{" * 500 + "2" + "}" * 500),
    "3000 boxes": ("1", r"1} \boxed{" * 2999 + "2"),
}

Case = tuple[dict[str, Any], str]
Timed = tuple[float, Score]  # seconds from the first submit to the verdict


def golds() -> dict[str, list[str]]:
    """Plain gold answers by workload."""
    gsm8k = [json.loads(line)["answer"].rpartition("####")[2].strip().replace(",", "") for line in _lines("gsm8k/test.jsonl")]
    math500 = [row["answer"] for row in json.loads((DATA / "math500/math500_test.json").read_text(encoding="utf-8"))]
    books = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((DATA / "sci_xw").glob("*.json"))]
    science = [row["answer_number"].strip().lstrip("+").replace("\u2212", "-").replace(",", "") for book in books for row in book]
    letters = [json.loads(line)["label"] for line in _lines("lsat_ar/agieval_v1_lsat-ar.jsonl")]
    return {"gsm8k": gsm8k, "math500": math500, "sci_xw": science, "lsat_ar": letters}


def _lines(name: str) -> list[str]:
    return (DATA / name).read_text(encoding="utf-8").splitlines()


def make_cases(number: int, workloads: list[str], seed: int = 0) -> list[Case]:
    """Workloads in turn; every second answer is another row's."""
    rng, found = random.Random(seed), golds()
    cases = []
    for i in range(number):
        name = workloads[i % len(workloads)]
        gold = rng.choice(found[name])
        answer = gold if (i // len(workloads)) % 2 else rng.choice(found[name])
        cases.append(({"workload": name, "gold": gold}, f"Let me work it out step by step. So it is $\\boxed{{{answer}}}$."))
    return cases


def hanging_case(name: str) -> Case:
    gold, answer = HANGING[name]
    return {"workload": "math500", "gold": gold}, f"It is $\\boxed{{{answer}}}$."


def run_all(pool: VerifierPool, cases: list[Case]) -> tuple[list[Timed], float]:
    """Ask all at once. Each verdict with its time, and the time of the last."""
    times = [0.0] * len(cases)
    start = time.perf_counter()

    def note(place: int) -> Any:
        return lambda _: times.__setitem__(place, time.perf_counter() - start)

    futures: list[Future[Score]] = []
    for place, case in enumerate(cases):
        future = pool.submit(*case)
        future.add_done_callback(note(place))
        futures.append(future)
    scores = [future.result(600) for future in futures]
    return list(zip(times, scores, strict=True)), max(times)


def arrange(kind: str) -> set[int]:
    """Places of the hanging calls among all."""
    if kind == "spread":
        return {i * (NUM_ORDINARY // NUM_HANGING + 1) + NUM_ORDINARY // NUM_HANGING // 2 for i in range(NUM_HANGING)}
    if kind == "shuffled":
        return set(random.Random(5).sample(range(NUM_ORDINARY + NUM_HANGING), NUM_HANGING))
    first = {"in a row": NUM_ORDINARY // 2, "all first": 0}[kind]
    return set(range(first, first + NUM_HANGING))


class Report:
    """Prints lines with their marks, and remembers whether all were met."""

    def __init__(self) -> None:
        self.is_met = True

    def line(self, name: str, value: str, is_met: bool | None = None) -> None:
        mark = "" if is_met is None else "  met" if is_met else "  MISSED"
        self.is_met = self.is_met and is_met is not False
        print(f"{name:<44}{value:>28}{mark}", flush=True)


def measure_speed(pool: VerifierPool, report: Report) -> None:
    """Verdicts a second of each workload, and of all mixed."""
    names = list(golds())
    run_all(pool, make_cases(400, names, seed=1))  # caches
    for name in names:
        _, seconds = run_all(pool, make_cases(400, [name], seed=2))
        report.line(f"verdicts/s, {name}", f"{400 / seconds:.0f}")
    mixed, seconds = run_all(pool, make_cases(NUM_ORDINARY, names))
    rate = NUM_ORDINARY / seconds
    report.line(f"verdicts/s, mixed ({NUM_ORDINARY:,})", f"{rate:.0f}", rate >= MIN_PER_S)
    counts = Counter(str(score.status) for _, score in mixed)
    report.line("statuses", ", ".join(f"{count} {name}" for name, count in counts.most_common()))


def measure_hanging(pool: VerifierPool, report: Report) -> list[str]:
    """One after the other, each followed by an ordinary call. Returns those that ran into the limit."""
    (ordinary,) = make_cases(1, ["gsm8k"])
    hung = []
    for name in HANGING:
        [(seconds, score)], _ = run_all(pool, [hanging_case(name)])
        [(_, after)], _ = run_all(pool, [ordinary])
        is_met = seconds <= MAX_HANG_S and after.status in (Verdict.OK, Verdict.WRONG)
        is_met = is_met and score.status is not Verdict.ERROR
        report.line(f"hanging: {name}", f"{score.status} after {seconds:.2f} s", is_met)
        if score.status is Verdict.TIMEOUT:
            hung.append(name)
    return hung


def measure_among_others(run: Callable[[list[Case]], list[Timed]], hanging: Case, report: Report) -> None:
    """20 that never end among the 2,000, in four arrangements; `run` serves cases with a new pool."""
    ordinary = make_cases(NUM_ORDINARY, list(golds()))
    for kind in ("spread", "shuffled", "in a row", "all first"):
        places, rest = arrange(kind), iter(ordinary)
        cases = [hanging if i in places else next(rest) for i in range(NUM_ORDINARY + NUM_HANGING)]
        without, among = [], []
        for _ in range(REPEATS):  # side by side
            without.append(run(ordinary))
            among.append(run(cases))
        others = [[one for i, one in enumerate(timed) if i not in places] for timed in among]
        base_s, late_s = typical(without), typical(others)
        share = sum(late <= MAX_LATER * base for late, base in zip(late_s, base_s, strict=True)) / NUM_ORDINARY
        is_met = None if kind == "all first" else share >= MIN_SHARE
        report.line(f"20 hang, {kind}: at most {MAX_LATER:g}x later", f"{share:.1%} of {NUM_ORDINARY:,}", is_met)
        report.line("    ordinary ones done: without, among", f"{max(base_s):.2f}, {max(late_s):.2f} s")
        hung = Counter(str(timed[i][1].status) for timed in among for i in places)
        seconds = max(timed[i][0] for timed in among for i in places)
        is_met = hung == {str(Verdict.TIMEOUT): REPEATS * NUM_HANGING}
        report.line("    the hanging ones", f"{dict(hung)} by {seconds:.1f} s", is_met)
        cut = sum(score.status is Verdict.TIMEOUT for timed in others for _, score in timed)
        report.line("    ordinary verdicts that timed out", str(cut), cut == 0)


def typical(runs: list[list[Timed]]) -> list[float]:
    """The median time of each verdict over the runs."""
    return [statistics.median(seconds for seconds, _ in same) for same in zip(*runs, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--function", help="dotted path of a reward function, instead of the shipped checkers")
    parser.add_argument("--preload", action="append", default=[], help="module to import once for all workers")
    options = parser.parse_args()
    if not DATA.is_dir():
        print(f"real data files are absent ({DATA}); set ROLLOUTPIPE_TEST_DATA to their folder", file=sys.stderr)
        return 2
    report = Report()
    config = RewardConfig(function=options.function, workers=WORKERS, timeout_s=LIMIT_S)
    examples = [task for task, _ in make_cases(4, list(golds()))]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {WORKERS} workers, limit {LIMIT_S:g} s\n")
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    family: list[psutil.Process] = []

    def serve(use: Callable[[VerifierPool], Result]) -> Result:
        """With a new pool."""
        pool = VerifierPool(config, examples=examples, preload=options.preload)
        try:
            pool.start_blocking(60)
            return use(pool)
        finally:
            family.extend(each for each in psutil.Process().children(recursive=True) if each.pid not in before)
            pool.close_blocking()

    start = time.perf_counter()
    serve(lambda pool: report.line("start of the pool", f"{time.perf_counter() - start:.2f} s"))
    serve(lambda pool: measure_speed(pool, report))
    hung = serve(lambda pool: measure_hanging(pool, report))
    if hung:  # the checker decides most of them at once; one that hangs all the same is what the others are tried with
        measure_among_others(lambda cases: serve(lambda pool: run_all(pool, cases)[0]), hanging_case(hung[-1]), report)
    else:
        report.line("20 hang", "none of these hangs; try --function", False)
    left = [process.pid for process in family if process.is_running()]
    report.line(f"processes left, of {len(family)}", str(len(left)), not left)
    return 0 if report.is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
