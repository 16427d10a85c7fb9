"""What the round controller itself costs: its CPU time as a share of a round that does nothing but wait for its parts.

A round of R=96 groups of K=8 on a fake engine with 64 slots, about 12 s on the real clock; responses, verdicts and updates are
sleeps. Measured is the CPU time of the whole process; what the fakes and the event loop need for the same sleeps without a
controller is measured on its own and subtracted. Exits 1 where the controller needs 2 % of the round or more.

    python benchmarks/controller_overhead.py [--schedules serial,cgp,fgd,adaptive] [--seconds 12]
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared import Marks, where

from common.config import Config
from common.records import Request
from common.requests import group_requests
from common.rollout_side import Parts
from common.round import Round
from common.testing import FakeEngine, FakeTrainer, FakeVerifier, make_problems, run_virtual
from common.timeline import Timeline

NUM_GROUPS, NUM_MEMBERS, CAPACITY = 96, 8, 64
MAX_SHARE = 0.02
VERIFY_S, ACCUMULATE_S, FINISH_S = 0.02, 0.03, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds of this process, and seconds on the clock."""

    cpu_s: float
    wall_s: float


def fakes(seconds: float) -> tuple[FakeEngine, FakeTrainer, FakeVerifier]:
    """Responses of uneven length, so that a round takes about `seconds`."""
    mean_s = seconds * CAPACITY / (NUM_GROUPS * NUM_MEMBERS)
    engine = FakeEngine(CAPACITY, seconds=lambda request: mean_s * (0.5 + request.seed % 101 / 100), length=lambda request: 64)
    trainer = FakeTrainer(seconds=lambda group: ACCUMULATE_S, finish_s=FINISH_S)
    return engine, trainer, FakeVerifier(seconds=VERIFY_S)


async def publish(engine: FakeEngine, trainer: FakeTrainer) -> None:
    """Version 0."""
    with tempfile.TemporaryDirectory() as folder:
        await trainer.export_weights(Path(folder), 0)
        await engine.publish(0, Path(folder))


async def run_round(schedule: str, seconds: float) -> Cost:
    """One round with everything that a run has: deadlines, watchdog, timeline on disk."""
    engine, trainer, verifier = fakes(seconds)
    await publish(engine, trainer)
    config = Config.model_validate(
        {
            "model": {"path": "unused"},
            "schedule": schedule,
            "groups_per_round": NUM_GROUPS,
            "responses_per_group": NUM_MEMBERS,
            "groups_per_update": 8,
            "request_order": "interleaved",
            "filter": "keep",
        }
    )
    with tempfile.TemporaryDirectory() as folder, Timeline(Path(folder) / "timeline.jsonl") as timeline:
        parts = Parts(engine=engine, trainer=trainer, verifier=verifier, decode=str, timeline=timeline)
        start = Cost(cpu_s=time.process_time(), wall_s=time.monotonic())
        result = await Round(config, parts, index=0, version=0).run(make_problems(NUM_GROUPS))
        cost = Cost(cpu_s=time.process_time() - start.cpu_s, wall_s=time.monotonic() - start.wall_s)
    assert result.books.trained == NUM_GROUPS and result.books.retried == 0
    return cost


async def run_fakes(seconds: float) -> Cost:
    """The same sleeps without a controller: 64 workers serve all requests, and the trainer takes group after group."""
    engine, trainer, verifier = fakes(seconds)
    await publish(engine, trainer)
    config = Config.model_validate({"model": {"path": "unused"}})
    sampling, problems = config.sampling.build(), make_problems(NUM_GROUPS)
    groups = [group_requests(0, order, problem.prompt_ids, NUM_MEMBERS, 0) for order, problem in enumerate(problems)]
    requests: Iterator[Request] = (request for group in groups for request in group)

    async def work() -> None:
        for request in requests:
            response = await engine.generate(request, sampling)
            await verifier.score(problems[request.order].task, str(response.token_ids))

    async def train() -> None:
        for _ in range(NUM_GROUPS // 8):
            await trainer.begin_update()
            for _ in range(8):
                await asyncio.sleep(ACCUMULATE_S)
            await trainer.finish_update()

    start = Cost(cpu_s=time.process_time(), wall_s=time.monotonic())
    await asyncio.gather(train(), *(work() for _ in range(CAPACITY)))
    return Cost(cpu_s=time.process_time() - start.cpu_s, wall_s=time.monotonic() - start.wall_s)


def main() -> None:
    """Prints the table; exits 1 where a schedule is over the mark."""
    parser = argparse.ArgumentParser(description="CPU time of the round controller as a share of a round.")
    parser.add_argument("--schedules", default="serial,cgp,fgd,adaptive", help="comma-separated")
    parser.add_argument("--seconds", type=float, default=12.0, help="of sampling in a round")
    options = parser.parse_args()
    num_requests = NUM_GROUPS * NUM_MEMBERS
    print(f"controller overhead: {where()}")
    print(f"R={NUM_GROUPS}, K={NUM_MEMBERS}, {CAPACITY} slots, {num_requests} requests\n")
    run_virtual(run_round("cgp", options.seconds))  # what is done once in a process is no cost of a round
    alone = asyncio.run(run_fakes(options.seconds))
    print(f"{'':12}{'round s':>9}{'CPU s':>9}{'controller s':>14}{'share':>9}{'us/request':>12}")
    print(f"{'fakes alone':12}{alone.wall_s:9.2f}{alone.cpu_s:9.3f}")
    shares: dict[str, float] = {}
    for schedule in options.schedules.split(","):
        cost = asyncio.run(run_round(schedule, options.seconds))
        own_s = max(cost.cpu_s - alone.cpu_s, 0.0)
        shares[schedule] = own_s / cost.wall_s
        print(
            f"{schedule:12}{cost.wall_s:9.2f}{cost.cpu_s:9.3f}{own_s:14.3f}{shares[schedule]:9.2%}"
            f"{own_s / num_requests * 1e6:12.0f}"
        )
    print()
    marks = Marks()
    for schedule, share in shares.items():
        marks.check(f"controller share under {schedule}", f"{share:.2%}", f"< {MAX_SHARE:.0%}", share < MAX_SHARE)
    marks.end()


if __name__ == "__main__":
    main()
