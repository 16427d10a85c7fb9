"""Planted bugs: each one is found by the checks that the other tests rely on (`round_lab`, `common.testing`)."""

import asyncio
import struct
from pathlib import Path

import pytest
from round_lab import RecordingTrainer, ScriptedVerifier, run_round

from common.assembly import Assembly
from common.errors import BooksError, RunError, StaleGroupError
from common.open_group import Member, OpenGroup
from common.records import Response, Sampling
from common.rollout_side import RolloutSide
from common.sampler import Sampler
from common.spool import SpoolWriter
from common.testing import FakeEngine, Fault, check_engine, run_virtual
from common.watchdog import Watchdog


def test_a_sampler_that_lets_mixed_versions_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 1: without its check the response reaches materialization, and no further."""
    monkeypatch.setattr(Sampler, "_fault_of", lambda self, member, response: "")
    lab = run_round(engine=FakeEngine(faults={"r0/g2/m1": [Fault.MIXED]}), version=7)
    assert isinstance(lab.error, StaleGroupError) and "(request r0/g2/m1), got (6, 7)" in str(lab.error)
    assert "r0/g2" not in lab.trainer.trained


def test_a_group_of_mixed_versions_at_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 1: with both checks gone, the check of the tests still finds it."""
    monkeypatch.setattr(Sampler, "_fault_of", lambda self, member, response: "")
    monkeypatch.setattr("common.materialize._check_versions", lambda version, samples: None)
    with pytest.raises(AssertionError, match=r"r0/g2 was trained with versions"):
        run_round(engine=FakeEngine(faults={"r0/g2/m1": [Fault.MIXED]}), version=7)


def test_a_retry_that_loses_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules 2, 7: nothing runs, yet a group waits: told at once, not at the group's deadline."""

    class Losing(RolloutSide):
        def _lose(self, member: Member, group: OpenGroup, reason: str) -> None:
            member.num_retries += 1

    monkeypatch.setattr("common.round.RolloutSide", Losing)
    lab = run_round(engine=FakeEngine(faults={"r0/g1/m2": [Fault.ERROR]}))
    assert isinstance(lab.error, RunError) and "nothing runs, but 1 groups are open; r0/g1 waits for m2" in str(lab.error)
    assert lab.ended_s < 10


def test_a_slot_that_is_freed_while_the_request_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capacity: more would be admitted than the engine has slots."""

    class Early(RolloutSide):
        @property
        def _in_flight(self) -> dict[str, Member]:
            return {}

        @_in_flight.setter
        def _in_flight(self, value: dict[str, Member]) -> None:
            pass

        async def _serve(self, member: Member, group: OpenGroup) -> None:
            self._admit()
            result = await self._sampler.sample(member, group)
            assert isinstance(result, Response)
            self._accept(member, group, result)
            await self._score(member, group, result)

    monkeypatch.setattr("common.round.RolloutSide", Early)
    with pytest.raises(AssertionError, match="more requests in flight than the engine has slots"):
        run_round(engine=FakeEngine(2))


def test_a_slot_that_is_freed_before_the_engine_has_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capacity: the abort of a dropped group's requests is on its way, but new ones are admitted already."""

    class Remote(FakeEngine):
        async def generate(self, request, sampling):  # type: ignore[no-untyped-def]
            return await asyncio.shield(asyncio.ensure_future(super().generate(request, sampling)))

        async def abort(self, request_ids) -> None:  # type: ignore[no-untyped-def]
            await asyncio.sleep(3)
            await super().abort(request_ids)

    class Hasty(RolloutSide):
        async def _abandon(self, members) -> None:  # type: ignore[no-untyped-def]
            for member in members:
                member.task.cancel()
            await asyncio.wait([member.task for member in members])
            self._admit()
            await super()._abandon(members)

    def run() -> None:
        engine = Remote(4, faults={"r0/g0/m0": [Fault.HANG]}, seconds=lambda request: 9.0)
        run_round(engine=engine, limits={"group_timeout_s": 12}, schedule="cgp", request_order="interleaved")

    run()
    monkeypatch.setattr("common.round.RolloutSide", Hasty)
    with pytest.raises(AssertionError, match=r"still run|more requests in flight"):
        run()


def test_a_group_without_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 7: one lost member would be waited for without end: the virtual loop has no timer left."""

    async def silent(self: Watchdog) -> None:
        await asyncio.Event().wait()

    class Endless(RolloutSide):
        def _start(self, request) -> None:  # type: ignore[no-untyped-def]
            super()._start(request)
            self._groups.open[request.group_id].deadline.cancel()

    monkeypatch.setattr("common.round.RolloutSide", Endless)
    monkeypatch.setattr(Watchdog, "run", silent)
    hung = {"r0/g2/m3": [Fault.HANG] * 9}
    monkeypatch.setattr("round_lab.MAX_S", None)
    monkeypatch.setattr("asyncio.timeout", lambda seconds: _Never())
    with pytest.raises(RuntimeError, match="deadlock: every task waits and no timer is set"):
        run_round(engine=Waiting(faults=hung))


class _Never:
    """`asyncio.timeout` that never comes: the request's own deadline is removed as well."""

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


class Waiting(FakeEngine):
    """Sleeps instead of using `asyncio.timeout`."""

    async def generate(self, request, sampling: Sampling) -> Response:  # type: ignore[no-untyped-def]
        fault = self._next_fault(request.request_id)
        await (asyncio.Event().wait() if fault is Fault.HANG else asyncio.sleep(1))
        return self._respond(request, sampling, 0, 1.0, None, False)


def test_a_group_that_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 3: a drop that is counted although the group was trained."""

    class Doubling(Assembly):
        def _end(self, group: OpenGroup) -> None:
            super()._end(group)
            self._books.dropped += group.order == 2

    monkeypatch.setattr("common.rollout_side.Assembly", Doubling)
    lab = run_round()
    assert isinstance(lab.error, BooksError) and str(lab.error).startswith("groups do not balance: 4 in, 5 out")


def test_a_request_that_is_never_counted_as_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 3: the requests of a dropped group are forgotten."""

    class Forgetting(Assembly):
        def drop(self, group, reason, detail) -> None:  # type: ignore[no-untyped-def]
            before = self._books.cancelled
            super().drop(group, reason, detail)
            self._books.cancelled = before

    monkeypatch.setattr("common.rollout_side.Assembly", Forgetting)
    lab = run_round(engine=FakeEngine(faults={"r0/g1/m0": [Fault.ERROR]}), limits={"max_retries": 0})
    assert isinstance(lab.error, BooksError) and "requests do not balance: 16 in, 13 out" in str(lab.error)


def test_an_incomplete_group_at_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 2: a group that is let go with K - 1 members."""
    monkeypatch.setattr(OpenGroup, "is_complete", property(lambda group: len(group.samples()) == 3 and group.is_open))
    with pytest.raises(AssertionError, match=r"was trained with members \[0, 1, 2\]"):
        run_round(verifier=ScriptedVerifier())


def test_an_update_that_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 7: a failed round that does not abort its update."""

    async def nothing(self: object) -> None:
        pass

    monkeypatch.setattr("common.train_side.TrainSide._abort", nothing)
    trainer = RecordingTrainer()
    trainer.fail_at = "r0/g1"
    with pytest.raises(AssertionError, match="an update was left open"):
        run_round(trainer=trainer)


@pytest.mark.parametrize("keeps_cache", [False, True])
def test_a_prefix_cache_that_outlives_a_publish(keeps_cache: bool, tmp_path: Path) -> None:
    """Rule 6, pain 5: the same prompt must see the new weights after a publish."""
    spools = []
    for version, weight in enumerate((1.0, 2.5)):
        with SpoolWriter(tmp_path / str(version), version) as writer:
            writer.add("w", "float32", (1,), struct.pack("<f", weight))
        spools.append(tmp_path / str(version))
    check = check_engine(FakeEngine(keeps_cache=keeps_cache), spools, (1, 2, 3), Sampling(max_tokens=8))
    if not keeps_cache:
        run_virtual(check)
        return
    with pytest.raises(AssertionError, match="the same prompt must see the new weights"):
        run_virtual(check)
