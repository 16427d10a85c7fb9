"""Whole runs whose engines and trainer die at random moments: they end with the weights of an undisturbed one."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from pool_lab import Engine, Lab, in_lab
from run_lab import model_dir, workload_of

from common.run import Run, RunParts, RunResult
from common.rundir import RunDir, create
from common.testing import FakeVerifier, make_problems

ROUNDS = 4


async def run(lab: Lab, root: Path) -> RunResult:
    run_dir = RunDir(root / "run")
    create(run_dir, lab.config)
    parts = RunParts(
        engine=lab.pool,
        trainer=lab.trainer,
        verifier=FakeVerifier(),
        publisher=lab.publisher,
        decode=str,
        workload=workload_of(20),
        eval_problems=make_problems(103)[100:],
        timeline=lab.timeline,
        model_dir=model_dir(root),
    )
    return await Run(lab.config, parts, run_dir).run()


def ended(root: Path, seed: int | None, num_engines: int) -> tuple[str, Lab]:
    """Checksum of the weights at the end; without a seed undisturbed."""
    root.mkdir()
    draw, sums = random.Random(seed), list[str]()
    settings: dict[str, Any] = {
        "rounds": ROUNDS,
        "group_order": "submission",
        "checkpoint": {"every": 2},
        "eval": {"every": 2, "samples": 2},
        "sampling": {"max_tokens": 16},
        "supervision": {"max_restarts": 99},
    }

    async def test(lab: Lab) -> None:
        task = asyncio.create_task(run(lab, root))
        for _ in range(0 if seed is None else draw.randrange(1, 9)):
            await asyncio.wait((task,), timeout=draw.choice([draw.uniform(0, 4), draw.uniform(0, 40)]))
            if task.done():
                break
            if draw.random() < 0.3:
                lab.trainer.die()
            elif lab.pool.replicas:
                draw.choice(lab.pool.engines).die()  # type: ignore[attr-defined]
        sums.append((await task).final_weights_sha256)

    def make(place: int, number: int) -> Engine:
        return Engine(place, 5, seconds=lambda request: 1 + request.seed % 3)

    lab = in_lab(root, test, num_engines=num_engines, make=make, **settings)
    return sums[0], lab


@pytest.mark.parametrize("num_engines", [1, 2])
def test_runs_whose_engines_and_trainer_die_end_like_an_undisturbed_one(tmp_path: Path, num_engines: int) -> None:
    wanted, quiet = ended(tmp_path / "quiet", None, num_engines)
    assert not quiet.of("fault")
    parts: set[str] = set()
    for seed in range(6):
        found, lab = ended(tmp_path / str(seed), seed, num_engines)
        assert found == wanted, f"seed {seed}"
        rounds = {event["round"]: event["books"] for event in lab.of("round_end")}
        assert sorted(rounds) == list(range(ROUNDS)) and all(books["dropped"] == 0 for books in rounds.values())
        parts |= {event["part"].partition("-")[0] for event in lab.of("fault")}
    assert parts == {"engine", "trainer"}
