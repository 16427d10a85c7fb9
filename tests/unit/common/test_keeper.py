"""Engines that die or fall silent within a round: noticed, named, replaced, and the round goes on (rule 7; pains 1, 2, 20)."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from pool_lab import START_S, Engine, Lab, check_round, in_lab
from round_lab import SCHEDULES, RecordingTrainer

from common.errors import EngineDiedError, EngineError, RunError
from common.evaluation.evaluator import EvalParts, Evaluator
from common.round import RoundResult
from common.testing import FakeVerifier, make_problems

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


async def run_with_kills(lab: Lab, *moments: tuple[float, int], index: int = 0) -> RoundResult:
    """A round in which the engine at a place dies at a moment after its start."""
    task = asyncio.create_task(lab.round(index))
    start_s = lab.now
    for moment_s, place in sorted(moments):
        await asyncio.sleep(max(0.0, start_s + moment_s - lab.now))
        if (engine := lab.pool.replicas.get(place)) is not None:
            engine.die()  # type: ignore[attr-defined]
    return await task


@every_schedule
def test_the_death_of_the_only_engine_costs_time_and_nothing_else(tmp_path: Path, schedule: str) -> None:
    """Pain 2. No retry is allowed, and none is needed: an engine's death is no try of its requests."""

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        result = await run_with_kills(lab, (1.5, 0))
        check_round(lab, result)
        assert (result.books.trained, result.books.dropped, result.books.failed) == (4, 0, 0)

    lab = in_lab(tmp_path, test, schedule=schedule, limits={"max_retries": 0})
    (fault,), (recovered,) = lab.of("fault"), lab.of("recovered")
    assert (fault["part"], fault["detail"]) == ("engine-0", "engine-0 died")
    assert recovered["part"] == "engine-0" and recovered["start"] == fault["t"]
    assert recovered["t"] - fault["t"] == pytest.approx(lab.config.supervision.pause_s + START_S + 1.0)  # of the probe
    assert recovered["detail"].startswith("serves weight version 0, probed within ")
    assert [engine.versions[:2] for engine in lab.engines] == [[0, 0], [0, 0]], "both were probed first"
    replicas = {event["replica"] for event in lab.of("dispatch")}
    assert replicas == {"engine-0"}


def test_what_a_dead_engine_ran_moves_to_the_other_at_once(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        check_round(lab, await run_with_kills(lab, (1.5, 1)))

    lab = in_lab(
        tmp_path, test, num_engines=2, make=lambda place, number: Engine(place, seconds=lambda r: 2.0), groups_per_round=8
    )
    (fault,) = lab.of("fault")
    moved = lab.of("retry")
    assert len(moved) == 8 and all(event["t"] == fault["t"] for event in moved)
    first = next(event["t"] for event in lab.of("dispatch") if event["t"] > fault["t"])
    assert first - fault["t"] < 2, "the other engine's next free slot"


def test_a_request_that_finds_no_room_because_an_engine_was_lost_has_not_been_tried(tmp_path: Path) -> None:
    """Sixteen are admitted; before the second of them is placed, half of the slots are gone."""

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        lab.timeline.listen(lambda event: lab.pool.lose(1, "planted") if event["kind"] == "dispatch" else None)
        result = await lab.round()
        check_round(lab, result)
        assert result.books.trained == 4

    lab = in_lab(tmp_path, test, num_engines=2, limits={"max_retries": 0}, supervision={"max_restarts": 0})
    assert any("no engine has room: all 8 slots of the pool are taken" in event["reason"] for event in lab.of("retry"))


def test_capacity_that_returns_is_used_at_once(tmp_path: Path) -> None:
    """The other engine is busy for a long time; what waits starts when the replacement joins, not when a request ends."""

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        check_round(lab, await run_with_kills(lab, (1.5, 1)))

    def make(place: int, number: int) -> Engine:
        return Engine(place, seconds=lambda request: 500.0 if place == 0 and request.group_id == "r0/g0" else 1.5)

    lab = in_lab(tmp_path, test, num_engines=2, make=make, responses_per_group=8)
    (recovered,) = lab.of("recovered")
    again = [event["t"] for event in lab.of("dispatch") if event["t"] > lab.of("fault")[0]["t"]]
    assert len(again) == 24 and set(again) == {recovered["t"], recovered["t"] + 1.5, recovered["t"] + 3.0}


def test_a_replacement_is_probed_although_the_trainer_has_moved_on(tmp_path: Path) -> None:
    """U=1: the trainer has stepped when the engine dies, so its log-probs are no longer those of what is served."""
    asked: list[float] = []

    class Trainer(RecordingTrainer):
        async def logprobs(self, *args: Any) -> Any:
            asked.append(asyncio.get_running_loop().time())
            return await super().logprobs(*args)

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        await run_with_kills(lab, (6.5, 0))

    slow = lambda place, number: Engine(place, 4, seconds=lambda request: 2.0)  # noqa: E731
    lab = in_lab(tmp_path, test, trainer=Trainer(), make=slow, groups_per_update=1)
    assert lab.of("update")[0]["t"] < lab.of("fault")[0]["t"] < lab.of("recovered")[0]["t"] < lab.of("update")[-1]["t"]
    assert len(asked) == 2, "at the publish of version 0 and of version 1 alone"


def test_an_engine_that_serves_wrong_weights_never_joins(tmp_path: Path) -> None:
    """Rule 6 holds for replacements: the first one keeps random weights, the second is right."""

    class Deaf(Engine):
        async def publish(self, version: int, spool: Path) -> None:
            weight = self._weight
            await super().publish(version, spool)
            self._weight = weight

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        check_round(lab, await run_with_kills(lab, (1.5, 0)))

    lab = in_lab(tmp_path, test, make=lambda place, number: (Deaf if number == 1 else Engine)(place))
    assert "does not serve the weights it was given" in lab.of("fault")[1]["detail"]
    assert all(str(name).startswith("probe/") for name in lab.engines[1].started) and lab.engines[2].started


def test_an_engine_that_falls_silent_is_lost_after_silent_s(tmp_path: Path) -> None:
    """Its process lives, and answers nothing: its requests would wait for their deadline of 600 s."""

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        lab.engines[0].is_silent = True
        result = await lab.round()
        check_round(lab, result)
        assert result.books.trained == 4

    lab = in_lab(tmp_path, test, supervision={"silent_s": 40})
    (fault,) = lab.of("fault")
    assert fault["detail"] == "it has not answered for supervision.silent_s (40 s)" and 40 <= fault["t"] <= 60


def test_a_slow_start_ends_the_round_with_its_cause(tmp_path: Path) -> None:
    """Rule 7: the replacement never comes up; after no_engine_s the round ends and says why there is no engine."""

    async def hang(place: int, number: int) -> None:
        await asyncio.Event().wait()

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        with pytest.raises(EngineError, match=r"no engine came back within supervision.no_engine_s \(300 s\): engine-0: .*died"):
            await run_with_kills(lab, (1.5, 0))
        assert 300 < lab.now < 310

    in_lab(tmp_path, test, start=hang, supervision={"no_engine_s": 300})


def test_starts_that_fail_again_and_again_end_the_round_with_the_last_cause(tmp_path: Path) -> None:
    async def fail(place: int, number: int) -> None:
        await asyncio.sleep(3)
        raise EngineError("engine-0: out of memory; see engine-0.log")

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        with pytest.raises(EngineError, match=r"alive: engine-0: engine-0 died 3 times .*max_restarts 2.*out of memory"):
            await run_with_kills(lab, (1.5, 0))

    lab = in_lab(tmp_path, test, start=fail, supervision={"max_restarts": 2})
    assert len(lab.of("fault")) == 3 and not lab.of("recovered")


def test_without_restarts_the_round_ends_at_once(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        with pytest.raises(
            EngineError, match=r"no engine is alive: engine-0: engine-0 died, and is not started again .*: engine-0 died"
        ):
            await run_with_kills(lab, (1.5, 0))
        assert lab.now < 4  # died at 2.5, while a group was accumulated

    in_lab(tmp_path, test, supervision={"max_restarts": 0})


def test_a_place_that_is_given_up_leaves_the_round_to_the_others(tmp_path: Path) -> None:
    async def fail(place: int, number: int) -> None:
        raise EngineError("no such device")

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        check_round(lab, await run_with_kills(lab, (1.5, 0)))
        await lab.settled()
        check_round(lab, await lab.round(1))
        assert [state.is_alive for state in await lab.pool.health()] == [False, True]

    lab = in_lab(tmp_path, test, num_engines=2, start=fail, supervision={"max_restarts": 1})
    assert "and is not started again (supervision.max_restarts 1)" in lab.of("fault")[-1]["detail"]


def test_a_prompt_that_kills_engines_costs_its_group_and_not_the_run(tmp_path: Path) -> None:
    """Two requests run at a time, so at most its neighbour goes with it."""

    def make(place: int, number: int) -> Engine:
        return Engine(place, 2, poison="r0/g1/m2")

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        result = await lab.round()
        check_round(lab, result)
        assert result.books.dropped == 1 and result.books.trained == 3
        await lab.settled()
        check_round(lab, await lab.round(1))

    lab = in_lab(tmp_path, test, make=make, supervision={"max_restarts": 3})
    (drop,) = lab.of("group_drop")
    assert drop["group"] == "r0/g1" and "r0/g1/m2 failed 0 times, 3 engines died with it, last: engine-0 died" in drop["detail"]
    assert len(lab.of("fault")) == 3


def test_a_group_gets_its_time_anew_when_an_engine_has_died_with_it(tmp_path: Path) -> None:
    """A restart of 300 s must not use up the 30 s of a group; a member that hangs still does."""

    async def slow(place: int, number: int) -> None:
        await asyncio.sleep(300)

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        result = await run_with_kills(lab, (0.5, 0))
        assert (result.books.trained, result.books.dropped) == (4, 0)

    in_lab(tmp_path, test, make=lambda place, number: Engine(place, 16), start=slow, limits={"group_timeout_s": 30})


def test_the_watchdog_says_that_an_engine_is_being_started(tmp_path: Path) -> None:
    """Pain 20."""

    async def slow(place: int, number: int) -> None:
        await asyncio.sleep(100)

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        await run_with_kills(lab, (0.5, 0))

    lab = in_lab(tmp_path, test, start=slow, limits={"stall_s": 30})
    assert lab.of("stall")[0]["message"].endswith(
        "engines: engine-0 dead, 0 running, version -1 (another is being started: engine-0 died)"
    )


@pytest.mark.parametrize("num_engines", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_rounds_survive_any_deaths_of_engines(tmp_path: Path, seed: int, num_engines: int) -> None:
    """Three rounds, engines killed at random moments: in rollouts, between, while others start. Weights as without any."""
    draw = random.Random(seed)

    def make(place: int, number: int) -> Engine:
        return Engine(place, 3, seconds=lambda request: 1 + request.seed % 5)

    async def rounds(lab: Lab, kills: bool) -> None:
        await lab.publisher.publish(0)
        for index in range(3):
            moments = [(draw.uniform(0, 60), draw.randrange(num_engines)) for _ in range(draw.randrange(4))] if kills else []
            result = await run_with_kills(lab, *moments, index=index)
            check_round(lab, result)
            assert result.books.trained == 4

    settings: dict[str, Any] = {"group_order": "submission", "supervision": {"max_restarts": 99}, "make": make}
    disturbed = in_lab(tmp_path, lambda lab: rounds(lab, True), num_engines=num_engines, **settings)
    quiet = in_lab(tmp_path, lambda lab: rounds(lab, False), num_engines=num_engines, **settings)
    assert disturbed.trainer.weight == quiet.trainer.weight and not quiet.of("fault")


def test_an_evaluation_survives_the_death_of_its_engine(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        parts = EvalParts(engine=lab.pool, verifier=FakeVerifier(), decode=str, timeline=lab.timeline, problems=make_problems(20))
        task = asyncio.create_task(Evaluator(lab.config, parts, version=0).run())
        await asyncio.sleep(1.5)
        lab.engines[0].die()
        evaluation = await task
        assert (evaluation.figures.samples, evaluation.figures.errors) == (40, 0)

    lab = in_lab(tmp_path, test, eval={"samples": 2}, limits={"max_retries": 0})
    assert len(lab.of("eval_retry")) == 8 and len(lab.of("recovered")) == 1


def test_an_evaluation_whose_engine_does_not_come_back_ends_with_the_cause(tmp_path: Path) -> None:
    async def fail(place: int, number: int) -> None:
        raise EngineError("no such device")

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        parts = EvalParts(engine=lab.pool, verifier=FakeVerifier(), decode=str, timeline=lab.timeline, problems=make_problems(20))
        task = asyncio.create_task(Evaluator(lab.config, parts, version=0).run())
        await asyncio.sleep(1.5)
        lab.engines[0].die()
        with pytest.raises(EngineError, match=r"no engine is alive: engine-0: .*no such device"):
            await task

    in_lab(tmp_path, test, start=fail, supervision={"max_restarts": 2})


@pytest.mark.parametrize("moment_s", [0.5, 5.0, 21.5, 22.5])
def test_closing_leaves_nothing_whatever_the_keeper_is_at(tmp_path: Path, moment_s: float) -> None:
    """In the pause, while an engine starts, while it is probed, when it has joined. `in_lab` looks for what is left."""

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        lab.engines[0].die()
        await asyncio.sleep(moment_s)

    in_lab(tmp_path, test)


def test_an_engine_closed_with_the_run_is_not_started_again(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        await lab.keeper.close()
        lab.engines[0].die()
        await asyncio.sleep(100)
        lab.pool.lose(0, "whoever asked it has found out")
        await asyncio.sleep(100)
        assert len(lab.engines) == 1 and not lab.of("fault") and not lab.pool.is_recovering
        lab.engines[0].is_closed = True  # it is the caller's

    in_lab(tmp_path, test)


def test_an_engine_that_starts_late_joins_in_the_middle_of_a_round(tmp_path: Path) -> None:
    """`rollout.min_replicas`: the run has begun without it."""

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        check_round(lab, await lab.round())

    make = lambda place, number: Engine(place, 2, seconds=lambda request: 5.0)  # noqa: E731
    lab = in_lab(tmp_path, test, make=make, late={1: 10.0}, groups_per_round=8)
    assert {event["replica"] for event in lab.of("dispatch")} == {"engine-0", "engine-1"} and not lab.of("fault")
    assert next(event["t"] for event in lab.of("dispatch") if event["replica"] == "engine-1") > 10


def test_engines_are_added_and_removed_between_and_within_rounds(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        assert await lab.keeper.add() == 1 and lab.pool.capacity == 16
        task = asyncio.create_task(lab.round(0))
        await asyncio.sleep(0.5)
        added = asyncio.create_task(lab.keeper.add())
        removed = asyncio.create_task(lab.keeper.remove(0))
        check_round(lab, await task)
        assert await added == 2
        await removed
        assert lab.engines[0].is_closed and list(lab.pool.replicas) == [1, 2]
        check_round(lab, await lab.round(1))
        assert not lab.of("fault") and not lab.of("retry"), "what ran there was allowed to end"

    in_lab(tmp_path, test, make=lambda place, number: Engine(place, seconds=lambda request: 4.0))


def test_an_engine_that_dies_while_it_leaves_is_not_replaced(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        task = asyncio.create_task(lab.round(0))
        await asyncio.sleep(0.5)
        removed = asyncio.create_task(lab.keeper.remove(0))
        await asyncio.sleep(0.2)
        lab.engines[0].die()
        await removed
        check_round(lab, await task)
        await asyncio.sleep(100)
        assert len(lab.engines) == 2 and list(lab.pool.replicas) == [1]

    in_lab(tmp_path, test, num_engines=2, make=lambda place, number: Engine(place, seconds=lambda request: 4.0))


def test_who_serves_another_version_may_not_join(tmp_path: Path) -> None:
    """Rule 1."""

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        stranger = Engine(1)
        await stranger.publish(3, lab.publisher._exported.spool)  # type: ignore[union-attr]
        with pytest.raises(EngineError, match="serves weight version 3, the pool version 0"):
            await lab.pool.join(stranger, 1)
        with pytest.raises(EngineError, match="serves weight version -1, the pool version 0"):
            await lab.pool.join(Engine(1), 1)
        assert lab.pool.capacity == 8

    in_lab(tmp_path, test)


def test_an_error_of_the_round_does_not_cost_the_engine_that_has_just_joined(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        with pytest.raises(RunError, match="planted"):
            task = asyncio.create_task(lab.round())
            await asyncio.sleep(1.5)
            lab.engines[0].die()
            await asyncio.sleep(1)
            lab.trainer.begin_update = _fail  # type: ignore[method-assign]
            await task
        await lab.settled()
        assert lab.pool.capacity == 8

    async def _fail() -> None:
        raise RunError("planted")

    in_lab(tmp_path, test, schedule="serial")


def test_requests_of_a_lost_engine_end_at_once_also_where_it_never_answers() -> None:
    from common.pool import Pool
    from common.records import Request, Sampling
    from common.testing import run_virtual

    async def test() -> None:
        engine = Engine(0)
        engine.is_silent = True
        pool = Pool([engine])
        task = asyncio.create_task(pool.generate(Request(request_id="a", group_id="g", order=0), Sampling()))
        await asyncio.sleep(1)
        pool.lose(0, "planted")
        with pytest.raises(EngineDiedError, match="engine-0 is lost: planted"):
            await task
        assert asyncio.get_running_loop().time() == 1 and not pool._placed

    run_virtual(test())
