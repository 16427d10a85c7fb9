"""Where the pool sends a request, and what it does when a replica fails or dies."""

import asyncio
import random
from collections.abc import Coroutine, Hashable, Iterable
from pathlib import Path
from typing import Any

import pytest

from common.errors import DuplicateRequestError, EngineDiedError, EngineError, PublishError
from common.pool import Pool
from common.protocols import Engine, Health
from common.records import FinishReason, Request, Response, Sampling

SPOOL = Path("spool")


class Stub:
    """An engine whose responses and publishes end when the test says so."""

    def __init__(self, name: str, capacity: int) -> None:
        self.name, self.capacity = name, capacity
        self.running: dict[Hashable, asyncio.Future[FinishReason]] = {}
        self.aborted: list[Hashable] = []
        self.published: list[int] = []
        self.publish_gate: asyncio.Event | None = None
        self.publish_error: Exception | None = None
        self.is_alive = True
        self.num_closed = 0

    async def generate(self, request: Request, sampling: Sampling) -> Response:
        if not self.is_alive:
            raise EngineError(f"{self.name} is dead")
        self.running[request.request_id] = asyncio.get_running_loop().create_future()
        try:
            reason = await self.running[request.request_id]
        finally:
            del self.running[request.request_id]
        return Response(
            request_id=request.request_id, token_ids=(), logprobs=(), finish_reason=reason, version_start=0, version_end=0
        )

    def finish(self, request_id: Hashable) -> None:
        self.running[request_id].set_result(FinishReason.STOP)

    async def abort(self, request_ids: Iterable[Hashable]) -> None:
        for request_id in request_ids:
            self.aborted.append(request_id)
            self.running[request_id].set_result(FinishReason.ABORT)

    async def publish(self, version: int, spool: Path) -> None:
        if self.publish_gate is not None:
            await self.publish_gate.wait()
        if self.publish_error is not None:
            raise self.publish_error
        self.published.append(version)

    async def health(self) -> list[Health]:
        return [Health(name=self.name, is_alive=self.is_alive, weight_version=0, num_running=len(self.running))]

    async def close(self) -> None:
        self.num_closed += 1


def stubs(*capacities: int) -> tuple[list[Stub], Pool]:
    engines = [Stub(f"engine-{index}", capacity) for index, capacity in enumerate(capacities)]
    return engines, Pool(engines)


def request(group: int, member: int = 0) -> Request:
    return Request(request_id=(group, member), group_id=group, order=group, member=member)


async def start(pool: Pool, *requests: Request) -> list[asyncio.Task[Response]]:
    tasks = [asyncio.create_task(pool.generate(each, Sampling())) for each in requests]
    await settle()
    return tasks


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_pool_is_an_engine_with_the_sum_of_capacities() -> None:
    _, pool = stubs(3, 5)
    assert isinstance(pool, Engine)
    assert pool.capacity == 8


def test_members_of_a_group_share_a_replica_while_it_has_room() -> None:
    async def check() -> None:
        _, pool = stubs(4, 4)
        tasks = await start(pool, *(request(group, member) for group in range(2) for member in range(3)))
        assert [pool.replica_of((0, member)) for member in range(3)] == [0, 0, 0]
        assert [pool.replica_of((1, member)) for member in range(3)] == [1, 1, 1]
        # One slot is left on each: the fourth member still goes home, the fifth has to go elsewhere.
        tasks += await start(pool, request(0, 3), request(0, 4))
        assert (pool.replica_of((0, 3)), pool.replica_of((0, 4))) == (0, 1)
        await cancel(tasks)

    run(check())


def test_late_member_goes_where_its_group_was_served() -> None:
    async def check() -> None:
        engines, pool = stubs(2, 8)
        tasks = await start(pool, request(0))  # on the larger one, which has most room
        engines[1].finish((0, 0))
        await settle()
        tasks += await start(pool, *(request(group) for group in (1, 2, 3, 4, 5, 6, 7)))  # now the smaller one has more room
        tasks += await start(pool, request(0, 1))
        assert pool.replica_of((0, 1)) == 1
        await cancel(tasks)

    run(check())


def test_no_room_is_an_error_and_a_finished_request_gives_its_slot_back() -> None:
    async def check() -> None:
        engines, pool = stubs(1, 1)
        tasks = await start(pool, request(0), request(1))
        with pytest.raises(EngineError, match="all 2 slots"):
            await pool.generate(request(2), Sampling())
        engines[1].finish((1, 0))
        await tasks[1]
        assert pool.replica_of((1, 0)) is None
        tasks += await start(pool, request(2))
        assert pool.replica_of((2, 0)) == 1
        await cancel(tasks)
        assert pool.replica_of((2, 0)) is None

    run(check())


def test_a_request_in_flight_is_refused_a_second_time() -> None:
    async def check() -> None:
        engines, pool = stubs(2)
        tasks = await start(pool, request(0))
        with pytest.raises(DuplicateRequestError, match="must not be in flight"):
            await pool.generate(request(0), Sampling())
        assert list(engines[0].running) == [(0, 0)]
        await cancel(tasks)

    run(check())


def test_capacity_is_never_exceeded_and_nothing_is_lost() -> None:
    async def check(seed: int) -> None:
        draw = random.Random(seed)
        engines, pool = stubs(*(draw.randint(1, 4) for _ in range(draw.randint(1, 4))))
        waiting = [request(group, member) for group in range(10) for member in range(4)]
        draw.shuffle(waiting)
        tasks: list[asyncio.Task[Response]] = []
        num_running = 0
        while waiting or num_running:
            while waiting and num_running < pool.capacity and draw.random() < 0.8:
                tasks += await start(pool, waiting.pop())
                num_running += 1
            assert all(len(engine.running) <= engine.capacity for engine in engines)
            assert sum(len(engine.running) for engine in engines) == num_running
            busy = [engine for engine in engines if engine.running]
            if busy:
                engine = draw.choice(busy)
                engine.finish(draw.choice(list(engine.running)))
                num_running -= 1
                await settle()
        assert len({task.result().request_id for task in tasks}) == 40

    for seed in range(30):
        run(check(seed))


def test_abort_reaches_the_replica_that_holds_each_id_and_ignores_the_rest() -> None:
    async def check() -> None:
        engines, pool = stubs(2, 2)
        tasks = await start(pool, request(0), request(1), request(2))
        await pool.abort([(0, 0), (1, 0), (9, 9)])
        assert (engines[0].aborted, engines[1].aborted) == ([(0, 0)], [(1, 0)])
        assert [(await task).finish_reason for task in tasks[:2]] == [FinishReason.ABORT] * 2
        await cancel(tasks[2:])

    run(check())


def test_publish_returns_only_when_every_replica_has_acknowledged() -> None:
    async def check() -> None:
        engines, pool = stubs(1, 1)
        engines[1].publish_gate = asyncio.Event()
        task = asyncio.create_task(pool.publish(3, SPOOL))
        await settle()
        assert engines[0].published == [3]
        assert not task.done()
        engines[1].publish_gate.set()
        await task
        assert engines[1].published == [3]

    run(check())


def test_failed_publish_names_the_replica_after_the_others_have_settled() -> None:
    async def check() -> None:
        engines, pool = stubs(1, 1)
        engines[0].publish_error = PublishError("tensor lm_head.weight is missing")
        engines[1].publish_gate = asyncio.Event()
        task = asyncio.create_task(pool.publish(1, SPOOL))
        await settle()
        assert not task.done()
        engines[1].publish_gate.set()
        with pytest.raises(PublishError, match=r"version 1 did not reach replica 0 of 2: tensor lm_head.weight is missing"):
            await task
        assert engines[1].published == [1]

    run(check())


def test_publish_lets_groups_find_a_new_home() -> None:
    async def check() -> None:
        engines, pool = stubs(2, 2)
        tasks = await start(pool, request(0))
        engines[0].finish((0, 0))
        await tasks[0]
        await pool.publish(1, SPOOL)
        tasks = await start(pool, request(1), request(0))
        assert (pool.replica_of((1, 0)), pool.replica_of((0, 0))) == (0, 1)
        await cancel(tasks)

    run(check())


def test_dead_replica_is_not_used_again() -> None:
    async def check() -> None:
        engines, pool = stubs(4, 2)
        engines[0].is_alive = False
        with pytest.raises(EngineError, match="engine-0 is dead"):
            await pool.generate(request(0), Sampling())
        assert pool.capacity == 2
        assert pool.engines == (engines[1],)
        tasks = await start(pool, request(0))  # its group had its home on the dead one
        assert pool.replica_of((0, 0)) == 1
        await pool.publish(1, SPOOL)
        assert (engines[0].published, engines[1].published) == ([], [1])
        assert [state.is_alive for state in await pool.health()] == [False, True]
        await cancel(tasks)

    run(check())


def test_pool_without_a_live_replica_says_so() -> None:
    async def check() -> None:
        engines, pool = stubs(1)
        engines[0].is_alive = False
        with pytest.raises(EngineError, match="engine-0 is dead"):
            await pool.generate(request(0), Sampling())
        with pytest.raises(EngineError, match="no engine of the pool is alive"):
            await pool.generate(request(0), Sampling())
        with pytest.raises(PublishError, match="no engine is alive"):
            await pool.publish(1, SPOOL)

    run(check())


def test_an_engine_that_lost_one_request_stays_in_the_pool() -> None:
    async def check() -> None:
        engines, pool = stubs(2)
        tasks = await start(pool, request(0))
        engines[0].running[(0, 0)].set_exception(EngineError("lost"))
        with pytest.raises(EngineError, match="lost"):
            await tasks[0]
        assert pool.capacity == 2

    run(check())


def test_a_replica_that_died_ends_all_its_requests_and_none_of_the_others() -> None:
    async def check() -> None:
        engines, pool = stubs(2, 2)
        told: list[int] = []
        pool.listen(lambda: told.append(pool.capacity))
        tasks = await start(pool, request(0), request(0, 1), request(1))
        engines[0].running[(0, 0)].set_exception(EngineDiedError("engine-0 died"))
        for task in tasks[:2]:
            with pytest.raises(EngineDiedError, match="engine-0"):
                await task
        assert not tasks[2].done() and told == [2] and not pool.is_recovering
        await cancel(tasks)

    run(check())


def test_a_replacement_starts_empty_whatever_the_lost_one_still_ran() -> None:
    async def check() -> None:
        engines, pool = stubs(2)
        pool.on_loss = lambda index, engine, cause, is_fault: True
        tasks = await start(pool, request(0), request(1))
        pool.lose(0, "planted")
        assert pool.is_recovering and pool.capacity == 0
        new = Stub("engine-0", 3)
        await pool.join(new, 0)  # before the lost requests have been told
        assert not pool.is_recovering and pool.capacity == 3
        more = await start(pool, *(request(2, member) for member in range(3)))
        assert len(new.running) == 3
        with pytest.raises(EngineError, match="all 3 slots"):
            await pool.generate(request(3), Sampling())
        await asyncio.gather(*tasks, return_exceptions=True)
        await cancel(more)
        assert engines[0].running == {}

    run(check())


def test_a_request_that_its_caller_gives_up_is_no_death() -> None:
    """Cancelled in the very moment in which its replica is lost: the caller is obeyed."""

    async def check() -> None:
        _, pool = stubs(2)
        (task,) = await start(pool, request(0))
        pool.lose(0, "planted")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() and pool.replica_of((0, 0)) is None

    run(check())


def test_a_place_that_is_taken_or_a_dead_engine_is_refused() -> None:
    async def check() -> None:
        _, pool = stubs(2)
        with pytest.raises(EngineError, match="place 0 is taken"):
            await pool.join(Stub("new", 1), 0)
        dead = Stub("new", 1)
        dead.is_alive = False
        with pytest.raises(EngineDiedError, match="new is dead"):
            await pool.join(dead, 1)
        assert pool.free_place() == 1

    run(check())


def test_a_replica_that_leaves_ends_what_it_runs_and_takes_nothing_new() -> None:
    async def check() -> None:
        engines, pool = stubs(2, 2)
        tasks = await start(pool, request(0))
        leaving = asyncio.create_task(pool.leave(0))
        await settle()
        tasks += await start(pool, request(0, 1), request(1))
        assert [len(engine.running) for engine in engines] == [1, 2] and not leaving.done()
        with pytest.raises(EngineError, match="no engine serves at place 0"):
            await pool.leave(0)
        engines[0].finish((0, 0))
        assert await leaving is engines[0] and (await tasks[0]).finish_reason is FinishReason.STOP
        assert pool.engines == (engines[1],)
        await cancel(tasks)

    run(check())


def test_capacity_is_never_exceeded_while_replicas_come_and_go() -> None:
    async def check(seed: int) -> None:
        draw = random.Random(seed)
        engines, pool = stubs(*(draw.randint(1, 4) for _ in range(3)))
        pool.on_loss = lambda index, engine, cause, is_fault: True
        waiting = [request(group, member) for group in range(12) for member in range(4)]
        tasks: dict[asyncio.Task[Response], Request] = {}
        done: set[Hashable] = set()
        leaving: list[asyncio.Task[Any]] = []
        while len(done) < 48:
            while waiting and len(pool._placed) < pool.capacity + sum(len(e.running) for e in engines if e not in pool.engines):
                if sum(len(e.running) for e in pool.engines) >= pool.capacity:  # type: ignore[attr-defined]
                    break
                each = waiting.pop()
                tasks |= dict.fromkeys(await start(pool, each), each)
            assert all(len(engine.running) <= engine.capacity for engine in engines)
            choice, served = draw.random(), list(pool.replicas)
            if choice < 0.1 and served:
                pool.lose(draw.choice(served), "planted")
            elif choice < 0.15 and len(served) > 1:
                leaving.append(asyncio.create_task(pool.leave(draw.choice(served))))
            elif choice < 0.35 or not served:
                engines.append(Stub("new", draw.randint(1, 4)))
                lost = sorted(pool._expected)
                await pool.join(engines[-1], draw.choice(lost) if lost else pool.free_place())
            elif busy := [engine for engine in engines if engine.running]:
                engine = draw.choice(busy)
                engine.finish(draw.choice(list(engine.running)))
            await settle()
            for task in [task for task in tasks if task.done()]:
                each = tasks.pop(task)
                if task.exception() is None:
                    assert each.request_id not in done
                    done.add(each.request_id)
                else:
                    assert isinstance(task.exception(), EngineDiedError)
                    waiting.append(each)
        await cancel(leaving)
        assert not pool._placed and all(not engine.running for engine in engines)

    for seed in range(40):
        run(check(seed))


def test_close_reaches_every_replica() -> None:
    async def check() -> None:
        engines, pool = stubs(1, 1, 1)
        await pool.close()
        assert [engine.num_closed for engine in engines] == [1, 1, 1]

    run(check())


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(EngineError, match="at least one engine"):
        Pool([])
