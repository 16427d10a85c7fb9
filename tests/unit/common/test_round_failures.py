"""The round when something dies, hangs or is stopped (rule 7 of design section 4; pains 1, 2, 8, 14, 20).

`run_round` checks after each round that no task, request or update is left.
"""

import asyncio
import random
from collections.abc import Hashable, Iterable, Sequence

import pytest
from round_lab import SCHEDULES, Lab, RecordingTrainer, ScriptedVerifier, run_round

from common.errors import EngineError, LogprobGapError, RunError, TrainerError
from common.protocols import Health
from common.records import Group, Request
from common.round import RoundResult
from common.testing import FakeEngine, Fault

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


class DeafEngine(FakeEngine):
    """Does not answer to an abort."""

    async def abort(self, request_ids: Iterable[Hashable]) -> None:
        await asyncio.Event().wait()


@every_schedule
def test_a_lost_member_costs_its_group_and_not_the_round(schedule: str) -> None:
    """Rule 7, pain 1: R=4, K=4, member (2, 3) never returns, limit 2 s: shortfall 1, and the drop names it."""
    lab = run_round(schedule=schedule, engine=FakeEngine(faults={"r0/g2/m3": [Fault.HANG]}), limits={"group_timeout_s": 2})
    assert (lab.books.trained, lab.books.dropped, lab.books.cancelled) == (3, 1, 1)
    drop = lab.drops["r0/g2"]
    admitted_s = next(event["t"] for event in lab.of("dispatch") if event["group"] == "r0/g2")
    assert drop["t"] == admitted_s + 2 and drop["reason"] == "timed_out"
    assert drop["detail"] == "r0/g2 still waits for m3 (in an engine for 2 s) after limits.group_timeout_s (2 s)"


def test_a_deadline_tells_verifier_engine_and_waiting_members_apart() -> None:
    """Rule 7: capacity 2; m0 is never scored, m1 never returns, m2 and m3 were not admitted at the deadline."""

    class HangsOnce(ScriptedVerifier):
        async def score(self, task, response):  # type: ignore[no-untyped-def]
            if task["gold"] == 0 and self.calls[0] == 0:
                self.calls[0] += 1
                await asyncio.Event().wait()
            return await super().score(task, response)

    engine = FakeEngine(2, faults={"r0/g0/m1": [Fault.HANG]}, seconds=lambda r: 9.5 if (r.order, r.member) == (0, 2) else 1.0)
    lab = run_round(engine=engine, verifier=HangsOnce(), limits={"group_timeout_s": 8}, groups_per_round=2)
    assert (
        "m0 (with the verifier for 7 s), m1 (in an engine for 8 s), m2 (in an engine for 7 s), m3 (not admitted)"
        in (lab.drops["r0/g0"]["detail"])
    )
    assert lab.books.trained == 1


def test_a_group_is_not_dropped_before_its_deadline() -> None:
    """Rule 7: slow is not lost; every response takes 9 of 10 s."""
    lab = run_round(engine=FakeEngine(seconds=lambda request: 9.0), limits={"group_timeout_s": 10})
    assert lab.books.trained == 4


def test_the_deadline_of_a_group_counts_from_its_first_admission() -> None:
    """Rule 7: capacity 4, so the last group starts after 30 s; its own 12 s are enough."""
    engine = FakeEngine(4, seconds=lambda request: 10.0)
    assert run_round(engine=engine, limits={"group_timeout_s": 12}).books.trained == 4


@pytest.mark.parametrize("num_steps", range(5))
def test_a_verdict_in_the_moment_of_the_deadline_counts_or_does_not(num_steps: int) -> None:
    """Rule 3: the last verdict comes at 8 s, the deadline too; the group is trained or dropped, never both."""

    class Slow(ScriptedVerifier):
        async def score(self, task, response):  # type: ignore[no-untyped-def]
            score = await super().score(task, response)
            for _ in range(num_steps):
                await asyncio.sleep(0)
            return score

    engine = FakeEngine(seconds=lambda request: 1.0)
    lab = run_round(engine=engine, verifier=Slow(seconds=7), limits={"group_timeout_s": 8}, schedule="cgp")
    assert lab.books.trained + lab.books.dropped == 4


def test_a_dropped_group_takes_its_verifier_calls_back() -> None:
    """Rule 7: m0 hangs, m1 to m3 are with the verifier at the deadline of 5 s: their workers are free at once."""
    freed_s: list[float] = []

    class Busy(ScriptedVerifier):
        async def score(self, task, response):  # type: ignore[no-untyped-def]
            try:
                return await super().score(task, response)
            except asyncio.CancelledError:
                freed_s.append(asyncio.get_running_loop().time())
                raise

    engine = FakeEngine(4, faults={"r0/g0/m0": [Fault.HANG]})
    lab = run_round(engine=engine, verifier=Busy(seconds=100), limits={"group_timeout_s": 5}, groups_per_round=2)
    assert lab.books.dropped == 2 and lab.ended_s == 6 and freed_s[:3] == [5.0] * 3


def test_a_dropped_frontier_group_makes_room_for_the_next_at_once() -> None:
    """Rule 7: fgd-strict, width 1, free slots: group 1 starts at the deadline of group 0, not when the abort is through."""
    engine = DeafEngine(faults={"r0/g0/m0": [Fault.HANG]})
    lab = run_round(engine=engine, schedule="fgd-strict", frontier_width=1, limits={"group_timeout_s": 5, "close_timeout_s": 3})
    assert min(event["t"] for event in lab.of("dispatch") if event["group"] == "r0/g1") == 5


@every_schedule
def test_the_death_of_the_engine_reaches_the_trainer_with_its_cause(schedule: str) -> None:
    """Rule 7, pain 2: the engine dies at 35 s, when two groups are trained and the second update is open."""

    async def kill(lab: Lab, task: "asyncio.Task[RoundResult]") -> None:
        await asyncio.sleep(35)
        lab.engine.die()

    engine = FakeEngine(4, seconds=lambda request: 10.0)
    lab = run_round(schedule=schedule, engine=engine, trainer=RecordingTrainer(seconds=lambda g: 2.0), meanwhile=kill)
    assert isinstance(lab.error, EngineError) and "no engine is alive: engine 0" in str(lab.error)
    assert isinstance(lab.error.__cause__, EngineError) and "engine 0 died" in str(lab.error.__cause__)
    assert lab.ended_s < 36
    assert lab.trainer.num_aborted == (schedule != "serial")
    assert lab.trainer.trained == ([] if schedule == "serial" else ["r0/g0", "r0/g1"])


def test_an_engine_dead_from_the_start_ends_the_round_at_once() -> None:
    """Rule 7: no retries against a dead engine."""
    engine = FakeEngine()
    engine.is_alive = False
    lab = run_round(engine=engine)
    assert isinstance(lab.error, EngineError) and lab.ended_s == 0 and lab.of("retry") == []


def test_the_death_of_one_of_two_replicas_loses_no_group() -> None:
    """Rules 2, 7: what the dead replica ran is sampled again on the other one."""

    class TwoReplicas(FakeEngine):
        async def health(self) -> list[Health]:
            other = Health(name="engine 1", is_alive=False, weight_version=0, num_running=0, detail="killed")
            return [*await super().health(), other]

    faults = {f"r0/g{order}/m0": [Fault.ERROR] for order in range(4)}
    assert run_round(engine=TwoReplicas(faults=faults)).books.retried == 4


def test_a_trainer_that_computes_learns_of_the_death_after_its_group() -> None:
    """Rule 7: the engine dies at 12 s while a group is accumulated until 60 s; the round ends then and not later."""

    async def kill(lab: Lab, task: "asyncio.Task[RoundResult]") -> None:
        await asyncio.sleep(12)
        lab.engine.die()

    engine = FakeEngine(4, seconds=lambda request: 10.0)
    lab = run_round(engine=engine, trainer=RecordingTrainer(seconds=lambda g: 50.0), meanwhile=kill)
    assert isinstance(lab.error, EngineError) and 59 < lab.ended_s < 62 and lab.trainer.num_aborted == 1


@every_schedule
def test_a_trainer_failure_ends_the_rollout_and_aborts_what_is_in_flight(schedule: str) -> None:
    """Rule 7: the third group fails; requests that would run for another 1000 s are ended with the round."""
    trainer = RecordingTrainer()
    trainer.fail_at = "r0/g1"
    slow = 1000.0 if schedule != "serial" else 5.0
    engine = FakeEngine(seconds=lambda request: 1.0 if request.order < 2 else slow)
    lab = run_round(schedule=schedule, engine=engine, trainer=trainer)
    assert isinstance(lab.error, RuntimeError) and "planted failure at r0/g1" in str(lab.error)
    assert lab.ended_s < 20 and trainer.num_aborted == 1 and trainer.trained == []


def test_a_second_failure_while_aborting_does_not_hide_the_first() -> None:
    """Rule 7: the error that a person reads is the first one."""

    class Dying(RecordingTrainer):
        async def abort_update(self) -> None:
            await super().abort_update()
            raise TrainerError("rank 0 is gone")

    trainer = Dying()
    trainer.fail_at = "r0/g0"
    assert "planted failure at r0/g0" in str(run_round(trainer=trainer, schedule="cgp").error)


@pytest.mark.parametrize("call", ["begin_round", "begin_update", "accumulate", "finish_update"])
def test_a_trainer_call_that_never_ends_is_named(call: str) -> None:
    """Rule 7: each trainer call has a deadline."""

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    trainer = RecordingTrainer()
    setattr(trainer, call, hang)
    lab = run_round(trainer=trainer, limits={"update_timeout_s": 50})
    assert isinstance(lab.error, TrainerError)
    assert str(lab.error) == f"trainer call {call} did not end within limits.update_timeout_s (50 s)"


def test_a_trainer_that_hangs_in_abort_too_does_not_hold_the_round() -> None:
    """Rule 7: Ctrl-C with a stuck trainer ends within limits.close_timeout_s, not within update_timeout_s."""

    class Stuck(RecordingTrainer):
        async def accumulate(self, groups: Sequence[Group]) -> None:
            await asyncio.Event().wait()

        async def abort_update(self) -> None:
            self._open = None
            await asyncio.Event().wait()

    async def cancel(lab: Lab, task: "asyncio.Task[RoundResult]") -> None:
        await asyncio.sleep(30)
        task.cancel()

    lab = run_round(trainer=Stuck(), meanwhile=cancel, limits={"close_timeout_s": 8})
    assert isinstance(lab.error, asyncio.CancelledError) and lab.ended_s <= 38.5


def test_an_update_that_was_cancelled_while_it_began_is_aborted() -> None:
    """Rule 7: begin_update takes 5 s and is cancelled in the middle, after the trainer has opened the update."""

    class SlowToBegin(RecordingTrainer):
        async def begin_update(self) -> None:
            await super().begin_update()
            await asyncio.sleep(5)

    async def cancel(lab: Lab, task: "asyncio.Task[RoundResult]") -> None:
        await asyncio.sleep(3)
        task.cancel()

    lab = run_round(trainer=SlowToBegin(), meanwhile=cancel, schedule="cgp")
    assert isinstance(lab.error, asyncio.CancelledError) and lab.trainer.num_aborted == 1


def test_an_engine_that_does_not_answer_an_abort_does_not_hold_the_round() -> None:
    """Rule 7: three tries of 5 s and 8 s for each abort, then the group is dropped."""
    engine = DeafEngine(faults={"r0/g0/m0": [Fault.HANG] * 9})
    lab = run_round(engine=engine, limits={"request_timeout_s": 5, "max_retries": 2, "close_timeout_s": 8})
    assert lab.books.dropped == 1 and 39 <= lab.ended_s < 41


def test_stopping_does_not_wait_for_an_engine_that_does_not_answer() -> None:
    """Rule 7: the trainer fails while requests run; the round ends after close_timeout_s."""
    trainer = RecordingTrainer()
    trainer.fail_at = "r0/g0"
    engine = DeafEngine(seconds=lambda request: 1000.0 if request.order else 1.0)
    lab = run_round(engine=engine, trainer=trainer, limits={"close_timeout_s": 8})
    assert "planted failure" in str(lab.error) and lab.ended_s < 11


def test_an_engine_that_loses_a_request_and_does_not_say_how_it_is_ends_the_round() -> None:
    """Rule 7: the health call has a deadline, too."""

    class Mute(FakeEngine):
        async def generate(self, request, sampling):  # type: ignore[no-untyped-def]
            raise EngineError("connection lost")

        async def health(self) -> list[Health]:
            if asyncio.get_running_loop().time() < 8:
                await asyncio.Event().wait()
            return []

    lab = run_round(engine=Mute(), limits={"close_timeout_s": 8})
    assert isinstance(lab.error, EngineError) and str(lab.error) == "no engine answers; last: connection lost"


def test_an_engine_without_slots_is_an_error_and_not_a_wait() -> None:
    """Rule 7: a pool whose replicas are all lost has capacity 0; nothing would ever be admitted again."""

    class NoSlots(FakeEngine):
        @property
        def capacity(self) -> int:
            return 0

    lab = run_round(engine=NoSlots())
    assert isinstance(lab.error, RunError) and lab.ended_s == 0
    assert "round 0: nothing runs, but 4 groups are open; r0/g0 waits for m0 (not admitted)" in str(lab.error)
    assert str(lab.error).endswith("the engine's capacity is 0")


def test_an_error_in_a_callback_of_the_round_ends_it() -> None:
    """Rule 7: a verifier pool that is closed, for example, must not be waited for."""

    class Closed(ScriptedVerifier):
        async def score(self, task, response):  # type: ignore[no-untyped-def]
            raise RunError("verifier: the pool is closed")

    lab = run_round(verifier=Closed())
    assert isinstance(lab.error, RunError) and "the pool is closed" in str(lab.error) and lab.ended_s < 2


@every_schedule
@pytest.mark.parametrize("seed", range(25))
def test_cancelled_at_any_moment_it_leaves_nothing_running(schedule: str, seed: int) -> None:
    """Rule 7 (Ctrl-C): 25 moments within the round, some with lost members; no request, task or update is left."""
    moment = random.Random(seed).uniform(0, 30)

    async def cancel(lab: Lab, task: "asyncio.Task[RoundResult]") -> None:
        await asyncio.sleep(moment)
        task.cancel()

    faults = {"r0/g0/m1": [Fault.HANG], "r0/g2/m0": [Fault.ERROR], "r0/g1/m0": [Fault.STALE]} if seed % 2 else {}
    engine = FakeEngine(3, faults=faults, seconds=lambda request: 1 + request.seed % 5)
    trainer = RecordingTrainer(seconds=lambda group: 4.0)
    lab = run_round(
        schedule=schedule,
        engine=engine,
        trainer=trainer,
        meanwhile=cancel,
        limits={"request_timeout_s": 9, "group_timeout_s": 15},
    )
    started = len(lab.engine.started)
    assert lab.error is None or isinstance(lab.error, asyncio.CancelledError)
    assert lab.error is not None or lab.ended_s <= moment
    assert len(lab.engine.started) == started


def test_the_watchdog_says_who_waits_for_whom() -> None:
    """Rule 7, pain 20: one member hangs from 0 s on; 30 s after the last event the message has all that helps."""
    engine = FakeEngine(faults={"r0/g2/m3": [Fault.HANG]})
    lab = run_round(engine=engine, limits={"stall_s": 30, "group_timeout_s": 100})
    quiet_from = max(event["t"] for event in lab.events if event["t"] < 30)
    first = lab.of("stall")[0]
    assert first["t"] == pytest.approx(quiet_from + 30)
    assert first["message"] == (
        "nothing happened for 30 s; round 0: 3 of 4 groups complete, 0 filtered, 0 dropped, "
        "3 with the trainer, which is waiting for a "
        "complete group; requests in flight: 1, oldest r0/g2/m3 for 35 s; with the verifier: 0; not admitted: 0; "
        "engines: engine 0 alive, 1 running, version 0"
    )


def test_the_watchdog_tells_again_and_is_silent_while_something_happens() -> None:
    """Rule 7: after 30 s of silence, then at doubling intervals (30, 60, 120 s); none where events are never 30 s apart."""
    hung = FakeEngine(faults={"r0/g2/m3": [Fault.HANG]})
    assert len(run_round(engine=hung, limits={"stall_s": 30, "group_timeout_s": 100}).of("stall")) == 2
    slow = FakeEngine(1, seconds=lambda request: 29.0)
    assert run_round(engine=slow, limits={"stall_s": 30}, groups_per_update=4).of("stall") == []


def test_the_watchdog_names_a_verifier_that_hangs() -> None:
    """Rule 7: no request is in flight; the verifier has all responses and keeps them for 70 s."""
    lab = run_round(verifier=ScriptedVerifier(seconds=70), limits={"stall_s": 30})
    assert "requests in flight: 0; with the verifier: 16, oldest r0/g0/m0 for 30 s" in lab.of("stall")[0]["message"]


@pytest.mark.parametrize("fault", ["hangs", "raises"])
def test_the_watchdog_survives_an_engine_without_health(fault: str) -> None:
    """Rule 7: the message comes all the same, within 1.5 s more."""

    class Mute(FakeEngine):
        async def health(self) -> list[Health]:
            if self.started and self._running:
                if fault == "raises":
                    raise EngineError("gone")
                await asyncio.Event().wait()
            return await super().health()

    lab = run_round(engine=Mute(faults={"r0/g0/m0": [Fault.HANG]}), limits={"stall_s": 30, "group_timeout_s": 100})
    stalls = lab.of("stall")
    assert len(stalls) == 2 and all(stall["message"].endswith("engines: do not answer") for stall in stalls)


def test_a_broken_response_drops_its_group_and_many_stop_the_run() -> None:
    """Pain 14: 1 of 1000 responses without a log-prob is dropped and counted; 50 of 1000 stop the run at 2 %."""
    shape = {"groups_per_round": 100, "responses_per_group": 10, "groups_per_update": "round"}
    limits = {"max_broken_share": 0.02}
    lab = run_round(engine=FakeEngine(64, faults={"r0/g7/m3": [Fault.NAN]}), limits=limits, **shape)
    assert (lab.books.broken, lab.books.dropped, lab.books.trained) == (1, 1, 99)
    assert "r0/g7/m3 came back with missing or NaN log-probs" in lab.drops["r0/g7"]["detail"]
    many = {f"r0/g{order}/m3": [Fault.NAN] for order in range(50)}
    lab = run_round(engine=FakeEngine(64, faults=many), limits=limits, **shape)
    assert isinstance(lab.error, RunError) and "above limits.max_broken_share (0.02, of 1000 in the round)" in str(lab.error)


@pytest.mark.parametrize("logprobs", [(None,), (float("-inf"),), (float("nan"),), ()])
def test_missing_and_infinite_logprobs_are_broken_too(logprobs: tuple[float, ...]) -> None:
    """Pain 14: a null that came over the wire, an infinite one, or one too few."""

    class Broken(FakeEngine):
        def _respond(self, request: Request, *rest):  # type: ignore[no-untyped-def]
            from dataclasses import replace

            response = super()._respond(request, *rest)
            return replace(response, logprobs=logprobs) if request.request_id == "r0/g1/m1" else response

    lab = run_round(engine=Broken(length=lambda request: 1), limits={"max_broken_share": 1})
    assert (lab.books.broken, lab.books.trained) == (1, 3)


def test_a_gap_between_sampler_and_trainer_stops_the_run() -> None:
    """Pain 13: the trainer's weights differ from those served; the gap is told on the first update."""

    async def drift(lab: Lab, task: "asyncio.Task[RoundResult]") -> None:
        lab.trainer.weight += 0.25

    lab = run_round(meanwhile=drift, limits={"max_logprob_gap": 0.1})
    assert isinstance(lab.error, LogprobGapError) and "on the first update of round 0, above" in str(lab.error)
    assert run_round(limits={"max_logprob_gap": 0.1}).error is None


def test_the_gap_counts_on_the_first_update_only() -> None:
    """Design section 3: after the first step the weights differ on purpose."""
    lab = run_round(limits={"max_logprob_gap": 0.001}, groups_per_update=1)
    assert lab.error is None
    assert [event["metrics"]["logprob_gap_max"] > 0.001 for event in lab.of("update")] == [False, True, True, True]
