"""Does the pure core stay fast in a round of a million requests? Prints a table; exit status 1 if a mark is missed.

    python benchmarks/core_scale.py

125,000 groups of 8 go through each policy and through the queue. The adaptive policy is told the time, the trainer's speed and
every response's length, so that it learns and plans as it does in a round. Marks:

    all full-size cases but the adaptive ones  under 20 s together
    a full-size adaptive case                  under 12 s
    a request at 10^6 against one at 10^4      at most 1.5 times (grouped), 4 times (shuffled)
    `import common.policies` in a bare Python  under 50 ms

What is measured: CPU seconds from the first submit to the last finish, with the whole round waiting from the start (the worst
case) and 256 slots. What is not: building the requests and groups, which are the caller's. For the same reason they are frozen
(`gc.freeze`), else each full pass of the cyclic collector visits the caller's million objects on the policy's account
(`--no-freeze` shows that). The collector stays on, and its passes over what the policy holds count.

An adaptive round of 10^4 costs more a request than one of 10^6: what it plans with is small, whatever the round (at most 192
groups of 8), so that a large round pays little more for it than a small one.

The mark compares the same million requests as one round and as a hundred rounds of 10^4, so that both pay alike for fetching
the caller's objects from memory and for the collector's regular passes, and what is left is the growth of the core itself.
Column `hot` compares with one and the same round of 10^4 again and again, all of it in the processor's cache: harder, for
information. Each case is repeated and the fastest run counts, as noise of a shared machine only ever adds time.
"""

import argparse
import gc
import platform
import random
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import process_time

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.policies import AdaptiveFrontierDispatch, AdmissionPolicy, FifoAdmission, FrontierGroupDispatch  # noqa: E402
from common.queue import CompleteGroupQueue  # noqa: E402
from common.records import Group, PipelineState, Request  # noqa: E402

GROUP_SIZE = 8
SLOTS = 256
SMALL, LARGE = 10_000, 1_000_000
MAX_TOTAL_S, MAX_ADAPTIVE_S = 20.0, 12.0
MAX_RATIO = {"grouped": 1.5, "shuffled": 4.0}
MAX_IMPORT_MS = 50.0

POLICIES: dict[str, Callable[[], AdmissionPolicy]] = {
    "FifoAdmission": FifoAdmission,
    "FrontierGroupDispatch": FrontierGroupDispatch,
    "FrontierGroupDispatch, strict": lambda: FrontierGroupDispatch(work_conserving=False),
}
ADAPTIVE = "AdaptiveFrontierDispatch"
QUEUE_ORDERS = ("arrival", "submission")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    order: str
    large_s: float
    ratio: float  # cost of a request in one round of 10^6 over that in a hundred of 10^4
    hot_ratio: float  # the same over that in one round of 10^4 again and again

    @property
    def is_met(self) -> bool:
        return self.ratio <= MAX_RATIO[self.order]


def drive_policy(policy: AdmissionPolicy, requests: list[Request]) -> float:
    """Seconds to serve all requests, the oldest group's worth of them finishing at a time."""
    running: deque[Request] = deque()
    start = process_time()
    policy.submit(requests)
    while admitted := policy.admit(SLOTS - len(running)):
        running.extend(admitted)
        for _ in range(min(GROUP_SIZE, len(running))):
            policy.finish(running.popleft().request_id)
    while running:
        policy.finish(running.popleft().request_id)
    seconds = process_time() - start
    counts = policy.snapshot()
    assert (counts.num_waiting, counts.num_in_flight) == (0, 0), counts
    return seconds


def drive_adaptive(policy: AdaptiveFrontierDispatch, requests: list[Request]) -> float:
    """As `drive_policy`, a group's worth every second; response lengths grow with the prompt's."""
    running: deque[Request] = deque()
    now_s, start = 0.0, process_time()
    policy.submit(requests)
    while True:
        policy.observe(observation(now_s))
        running.extend(policy.admit(SLOTS - len(running)))
        if not running:
            break
        now_s += 1.0
        for _ in range(min(GROUP_SIZE, len(running))):
            request = running.popleft()
            policy.finish(request.request_id, 20 * len(request.prompt_ids) + request.prompt_ids[0] * 7919 % 97 + request.member)
    seconds = process_time() - start
    counts = policy.snapshot()
    assert (counts.num_waiting, counts.num_in_flight) == (0, 0), counts
    assert policy.plan is not None
    return seconds


def observation(now_s: float) -> PipelineState:
    """Neither side is much faster than the other."""
    return PipelineState(
        now_s=now_s,
        trainer_backlog_groups=0,
        trainer_groups_per_s=1.0,
        engine_tokens_per_s=2000.0,
        engine_running=SLOTS,
        engine_capacity=SLOTS,
        trainer_tokens_per_s=2000.0,
    )


def drive_queue(queue: CompleteGroupQueue, groups: list[Group]) -> float:
    """Seconds to put every group and take whatever that releases."""
    start = process_time()
    for group in groups:
        queue.put(group)
        while not queue.snapshot().is_closed and queue.take_nowait() is not None:
            pass
    seconds = process_time() - start
    assert queue.snapshot().num_taken == len(groups), queue.snapshot()
    return seconds


def make_round(first_group: int, num_groups: int, order: str) -> tuple[list[Request], list[Group]]:
    """Requests and complete groups of a round; shuffled by a fixed seed."""
    ids = [str(group) for group in range(first_group, first_group + num_groups)]
    requests = [
        Request(request_id=f"{group_id}/{member}", group_id=group_id, order=number, member=member, prompt_ids=prompt)
        for number, (group_id, prompt) in enumerate((group_id, (int(group_id),) * (1 + int(group_id) % 13)) for group_id in ids)
        for member in range(GROUP_SIZE)
    ]
    groups = [Group(group_id=group_id, order=number, weight_version=0, samples=()) for number, group_id in enumerate(ids)]
    if order == "shuffled":
        random.Random(0).shuffle(requests)
        random.Random(0).shuffle(groups)
    return requests, groups


def fastest(run: Callable[[], float], repeats: int) -> float:
    """The least noisy of several runs, each from a clean heap."""
    seconds = []
    for _ in range(repeats):
        gc.collect()
        seconds.append(run())
    return min(seconds)


def measure(order: str, *, num_repeats: int, freeze: bool) -> list[Row]:
    """The rows of one request order."""
    num_groups = SMALL // GROUP_SIZE
    large = make_round(0, LARGE // GROUP_SIZE, order)
    small = [make_round(first, num_groups, order) for first in range(0, LARGE // GROUP_SIZE, num_groups)]
    gc.collect()
    if freeze:
        gc.freeze()
    rows = []
    for name, drive in cases():
        large_s = fastest(lambda: drive(*large), num_repeats)  # noqa: B023
        small_s = fastest(lambda: sum(drive(*part) for part in small), num_repeats)  # noqa: B023
        hot_s = fastest(lambda: drive(*small[0]), 20) * len(small)  # noqa: B023
        rows.append(Row(name=name, order=order, large_s=large_s, ratio=large_s / small_s, hot_ratio=large_s / hot_s))
    gc.unfreeze()
    return rows


def cases() -> Iterator[tuple[str, Callable[[list[Request], list[Group]], float]]]:
    """Name and a run of each policy and of the queue in both its orders."""
    for name, make_policy in POLICIES.items():
        yield name, lambda requests, groups: drive_policy(make_policy(), requests)  # noqa: B023
    yield ADAPTIVE, lambda requests, groups: drive_adaptive(AdaptiveFrontierDispatch(), requests)
    for order in QUEUE_ORDERS:
        yield f"CompleteGroupQueue, {order}", lambda requests, groups: drive_queue(make_queue(len(groups), order), groups)  # noqa: B023


def make_queue(num_groups: int, order: str) -> CompleteGroupQueue:
    """A queue with the paper's two groups an update."""
    return CompleteGroupQueue(groups_per_round=num_groups, groups_per_update=2, weight_version=0, order=order)  # type: ignore[arg-type]


def import_ms(repeats: int = 7) -> float:
    """Milliseconds of `import common.policies` in a bare Python, without its own start."""
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); start = time.perf_counter();"
        "import common.policies; print((time.perf_counter() - start) * 1000)"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT)]
    return min(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(repeats))


def commit() -> str:
    """The commit measured, with a mark if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def hardware() -> str:
    """Processor and number of cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {len(names) or '?'} cores"


def main() -> int:
    parser = argparse.ArgumentParser(description="Scale of the pure core.")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each full-size case (the fastest counts)")
    parser.add_argument("--no-freeze", action="store_true", help="let the collector visit the caller's objects too")
    args = parser.parse_args()
    print(f"commit {commit()}, Python {platform.python_version()}, {hardware()}")
    print(f"{LARGE:,} requests in groups of {GROUP_SIZE}, {SLOTS} slots; fastest of {args.repeats}\n")
    print(f"{'case':32} {'order':9} {'total s':>8} {'us/request':>11} {'10^6 / 10^4':>12} {'at most':>8} {'hot':>6}")
    rows = [row for order in MAX_RATIO for row in measure(order, num_repeats=args.repeats, freeze=not args.no_freeze)]
    for row in rows:
        figures = f"{row.large_s:8.2f} {row.large_s / LARGE * 1e6:11.2f} {row.ratio:12.2f} {MAX_RATIO[row.order]:8.1f}"
        print(f"{row.name:32} {row.order:9} {figures} {row.hot_ratio:6.2f}{'' if row.is_met else '  MISSED'}")
    adaptive_s = max(row.large_s for row in rows if row.name == ADAPTIVE)
    total_s, loaded_ms = sum(row.large_s for row in rows if row.name != ADAPTIVE), import_ms()
    print(f"\nall full-size cases but the adaptive ones together: {total_s:.2f} s (under {MAX_TOTAL_S:.0f})")
    print(f"a full-size adaptive case: {adaptive_s:.2f} s (under {MAX_ADAPTIVE_S:.0f})")
    print(f"import common.policies: {loaded_ms:.1f} ms (under {MAX_IMPORT_MS:.0f})")
    is_met = all(row.is_met for row in rows) and total_s < MAX_TOTAL_S and adaptive_s < MAX_ADAPTIVE_S
    is_met = is_met and loaded_ms < MAX_IMPORT_MS
    print("all marks met" if is_met else "a mark is missed")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
