"""Rounds under random faults, settings and moments: nothing is lost, doubled or left running (rules 1 to 3, 5, 7, 9).

`run_round` checks the rules after each round; here only the cases are made, and what depends on them.
"""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from round_lab import SCHEDULES, Lab, RecordingTrainer, ScriptedVerifier, run_round

from common.errors import EngineError
from common.records import Verdict
from common.round import RoundResult
from common.testing import FakeEngine, Fault, make_problems

slow_and_many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """R, K, U, schedule, orders, filter, limits."""
    num_groups = draw(st.integers(1, 6))
    return {
        "schedule": draw(st.sampled_from(SCHEDULES)),
        "groups_per_round": num_groups,
        "responses_per_group": draw(st.integers(2, 4)),
        "groups_per_update": draw(st.one_of(st.just("round"), st.integers(1, num_groups))),
        "frontier_width": draw(st.one_of(st.none(), st.integers(1, 4))),
        "request_order": draw(st.sampled_from(["grouped", "interleaved", "shuffled"])),
        "group_order": draw(st.sampled_from(["arrival", "submission"])),
        "filter": draw(st.sampled_from(["keep", "drop", "refill"])),
        "max_refills": draw(st.one_of(st.none(), st.integers(0, 3))),
        "seed": draw(st.integers(0, 3)),
        "limits": {
            "max_retries": draw(st.integers(0, 2)),
            "request_timeout_s": draw(st.sampled_from([4.0, 30.0])),
            "group_timeout_s": draw(st.sampled_from([6.0, 60.0])),
            "max_broken_share": 1.0,
        },
    }


@st.composite
def engines(draw: st.DrawFn, *, faults: bool = True) -> FakeEngine:
    """Capacity, uneven response times, and faults of some tries."""
    names = st.builds("r0/g{}/m{}".format, st.integers(0, 8), st.integers(0, 3))
    planted = draw(st.dictionaries(names, st.lists(st.sampled_from(list(Fault)), min_size=1, max_size=3), max_size=6))
    spread = draw(st.sampled_from([1, 3, 7]))
    return FakeEngine(
        draw(st.integers(1, 12)),
        seconds=lambda request: 0.5 + request.seed % spread,
        faults=planted if faults else {},  # type: ignore[arg-type]
    )


values = st.sampled_from([0.0, 0.0, 1.0, 0.5, Verdict.ERROR, Verdict.TIMEOUT])
scripts = st.dictionaries(st.tuples(st.integers(0, 8), st.integers(0, 3)), values, max_size=24)
trainers = st.builds(
    lambda seconds: RecordingTrainer(seconds=lambda group: seconds, finish_s=seconds / 2), st.sampled_from([0.0, 0.3, 5.0])
)


@slow_and_many
@given(shape=shapes(), engine=engines(), script=scripts, trainer=trainers, num_refills=st.integers(0, 4))
def test_books_balance_under_any_faults(
    shape: dict[str, Any], engine: FakeEngine, script: dict[Any, Any], trainer: RecordingTrainer, num_refills: int
) -> None:
    """Rules 1 to 5 and 9: every round ends, and every one that ends keeps the rules."""
    lab = run_round(engine=engine, verifier=ScriptedVerifier(script), trainer=trainer, num_refills=num_refills, **shape)
    books = lab.books
    event(f"dropped {min(books.dropped, 2)}, filtered {min(books.filtered, 2)}, retried {min(books.retried, 2)}")
    if shape["group_order"] == "submission":
        orders = [group.order for group in trainer.groups]
        assert orders == sorted(orders)
    if shape["schedule"] == "serial":
        done_s = lab.of("rollout_done")[0]["t"]
        assert all(found["start"] >= done_s for found in lab.of("compute"))


@slow_and_many
@given(shape=shapes(), engine=engines(), script=scripts, trainer=trainers, moment_s=st.floats(0, 40))
def test_cancelled_at_any_moment_nothing_is_left(
    shape: dict[str, Any], engine: FakeEngine, script: dict[Any, Any], trainer: RecordingTrainer, moment_s: float
) -> None:
    """Rule 7: Ctrl-C. `run_round` finds tasks, requests and open updates that are left."""

    async def cancel(lab: Lab, task: "asyncio.Task[RoundResult]") -> None:
        await asyncio.sleep(moment_s)
        task.cancel()

    lab = run_round(engine=engine, verifier=ScriptedVerifier(script), trainer=trainer, meanwhile=cancel, **shape)
    assert lab.error is None or isinstance(lab.error, asyncio.CancelledError)
    event("ended before" if lab.error is None else "cancelled")
    assert len(trainer.trained) == len(set(trainer.trained))


@slow_and_many
@given(shape=shapes(), engine=engines(), script=scripts, trainer=trainers, moment_s=st.floats(0, 20))
def test_when_the_engine_dies_the_round_ends_with_its_cause(
    shape: dict[str, Any], engine: FakeEngine, script: dict[Any, Any], trainer: RecordingTrainer, moment_s: float
) -> None:
    """Rule 7: the death is told at once, at the latest when the trainer's present call ends."""

    async def kill(lab: Lab, task: "asyncio.Task[RoundResult]") -> None:
        await asyncio.sleep(moment_s)
        if not task.done():
            engine.die()

    lab = run_round(engine=engine, verifier=ScriptedVerifier(script), trainer=trainer, meanwhile=kill, **shape)
    event("survived" if lab.error is None else "died")
    if lab.error is not None:
        assert isinstance(lab.error, EngineError) and "no engine is alive" in str(lab.error)
        assert isinstance(lab.error.__cause__, EngineError)


@slow_and_many
@given(shape=shapes(), engine=engines(), script=scripts, trainer=trainers, order=st.integers(0, 5))
def test_when_the_trainer_fails_the_rollout_ends(
    shape: dict[str, Any], engine: FakeEngine, script: dict[Any, Any], trainer: RecordingTrainer, order: int
) -> None:
    """Rule 7: at any group; nothing goes on sampling for a trainer that is gone."""
    assume(order < shape["groups_per_round"])
    trainer.fail_at = f"r0/g{order}"
    lab = run_round(engine=engine, verifier=ScriptedVerifier(script), trainer=trainer, **shape)
    assert lab.error is None or "planted failure" in str(lab.error)
    assert f"r0/g{order}" not in trainer.trained


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(engine=engines(faults=False), num_groups=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_without_faults_every_group_is_trained(schedule: str, engine: FakeEngine, num_groups: int) -> None:
    """Rules 2, 3: no retry, no drop, each request once."""
    lab = run_round(
        schedule=schedule,
        engine=engine,
        problems=make_problems(num_groups),
        groups_per_round=num_groups,
        groups_per_update=1,
        limits={"group_timeout_s": 1e5},
    )
    assert (lab.books.trained, lab.books.retried) == (num_groups, 0)
    assert len(engine.started) == len(set(engine.started)) == num_groups * 4
