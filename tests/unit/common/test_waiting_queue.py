"""The asyncio wrapper of the complete-group queue: it adds the wait and the serial gate, and loses nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from common.errors import DuplicateGroupError, EngineError, QueueClosedError, RoundFinished
from common.queue import CompleteGroupQueue
from common.records import Reason
from common.testing import run_virtual
from common.waiting_queue import WaitingQueue


@dataclass(frozen=True)
class Whole:
    group_id: str
    weight_version: int = 7
    order: int = 0


def make(num_groups: int = 3, *, is_open: bool = True) -> WaitingQueue:
    core = CompleteGroupQueue(groups_per_round=num_groups, groups_per_update=1, weight_version=7)
    return WaitingQueue(core, is_open=is_open)


def in_loop(body: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await body()

    run_virtual(run())


def test_take_waits_until_a_group_is_put() -> None:
    """Nothing comes out before something went in."""

    async def body() -> None:
        queue = make()
        waiter = asyncio.create_task(queue.take())
        await asyncio.sleep(5)
        assert not waiter.done()
        queue.put(Whole("a"))
        assert (await waiter).groups == (Whole("a"),)

    in_loop(body)


@pytest.mark.parametrize("num_steps", range(4))
def test_a_cancelled_take_has_taken_nothing(num_steps: int) -> None:
    """Cancelled before, at and after the put: the group is handed out exactly once."""

    async def body() -> None:
        queue = make()
        waiter = asyncio.create_task(queue.take())
        await asyncio.sleep(1)
        queue.put(Whole("a"))
        for _ in range(num_steps):
            await asyncio.sleep(0)
        was_done = waiter.done()
        waiter.cancel()
        await asyncio.wait((waiter,))
        assert waiter.cancelled() == (not was_done)
        assert queue.snapshot().num_taken == was_done
        if not was_done:
            assert (await queue.take()).groups == (Whole("a"),)

    in_loop(body)


def test_fail_wakes_a_waiter_with_the_error_itself() -> None:
    """Rule 7, pain 2: the cause arrives, at once and at every later call."""

    async def body() -> None:
        queue, error = make(), EngineError("the engine died")
        queue.put(Whole("a"))
        await queue.take()
        waiter = asyncio.create_task(queue.take())
        await asyncio.sleep(1)
        queue.fail(error)
        for attempt in (waiter, queue.take()):
            with pytest.raises(EngineError) as caught:
                await attempt
            assert caught.value is error
        assert asyncio.get_running_loop().time() == 1

    in_loop(body)


def test_fail_wakes_a_waiter_at_the_serial_gate() -> None:
    """Rule 7: the gate is shut, groups lie behind it, the producer dies."""

    async def body() -> None:
        queue = make(is_open=False)
        queue.put(Whole("a"))
        waiter = asyncio.create_task(queue.take())
        await asyncio.sleep(1)
        assert not waiter.done()
        queue.fail(EngineError("the engine died"))
        with pytest.raises(EngineError, match="the engine died"):
            await waiter

    in_loop(body)


def test_the_gate_holds_complete_groups_until_it_opens() -> None:
    """Schedule `serial`: put, dropped or not, nothing passes before `open`; then everything does, in order."""

    async def body() -> None:
        queue = make(is_open=False)
        waiter = asyncio.create_task(queue.take())
        queue.put(Whole("a"))
        queue.drop("b", Reason.FAILED)
        queue.put(Whole("c"))
        await asyncio.sleep(5)
        assert not waiter.done() and queue.snapshot().num_waiting == 2
        queue.open()
        assert [(await waiter).groups[0].group_id, (await queue.take()).groups[0].group_id] == ["a", "c"]
        with pytest.raises(RoundFinished):
            await queue.take()

    in_loop(body)


def test_a_drop_wakes_a_waiter_for_whom_nothing_will_come() -> None:
    """Rule 3: the last missing group is dropped."""

    async def body() -> None:
        queue = make(1)
        waiter = asyncio.create_task(queue.take())
        await asyncio.sleep(1)
        queue.drop("a", Reason.TIMED_OUT)
        with pytest.raises(RoundFinished):
            await waiter

    in_loop(body)


def test_a_refill_is_waited_for() -> None:
    """Rule 3: extend before the drop keeps the round open."""

    async def body() -> None:
        queue = make(1)
        queue.extend(1)
        queue.drop("a", Reason.FILTERED)
        waiter = asyncio.create_task(queue.take())
        await asyncio.sleep(1)
        assert not waiter.done()
        queue.put(Whole("refill"))
        assert (await waiter).groups[0].group_id == "refill"

    in_loop(body)


def test_the_rules_are_those_of_the_queue() -> None:
    """Rule 10: errors of the core pass through, and change nothing."""

    async def body() -> None:
        queue = make()
        queue.put(Whole("a"))
        with pytest.raises(DuplicateGroupError):
            queue.put(Whole("a"))
        queue.fail(EngineError("gone"))
        with pytest.raises(QueueClosedError, match="gone"):
            queue.put(Whole("b"))

    in_loop(body)
