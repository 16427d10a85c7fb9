"""examples/frontier_gate.py: order, limit, cancelled waiters."""

import asyncio
import random

import pytest

from examples.frontier_gate import FrontierGate


async def spin(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


def test_lowest_group_enters_first_whatever_order_the_tasks_start_in() -> None:
    async def run() -> list[int]:
        gate, entered = FrontierGate(2), []

        async def work(group: int) -> None:
            async with gate.slot(group):
                entered.append(group)
                await spin(3)

        groups = [group for group in range(8) for _ in range(3)]
        random.Random(0).shuffle(groups)
        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                tasks.create_task(work(group))
        assert entered[:2] == groups[:2]  # which found free slots
        assert entered[2:] != groups[2:]
        return entered

    entered = asyncio.run(run())
    assert entered[2:] == sorted(entered[2:])


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_cancelled_or_fails_the_slots_are_never_overfull_and_none_is_lost(seed: int) -> None:
    async def run() -> None:
        rng = random.Random(seed)
        num_slots = rng.randrange(1, 5)
        gate, inside = FrontierGate(num_slots), set()

        async def work(number: int, group: int) -> None:
            async with gate.slot(group):
                inside.add(number)
                assert len(inside) <= num_slots
                try:
                    await spin(rng.randrange(5))
                    if rng.random() < 0.1:
                        raise ValueError
                finally:
                    inside.remove(number)

        tasks = []
        for number in range(60):
            tasks.append(asyncio.create_task(work(number, rng.randrange(10))))
            await spin(rng.randrange(3))
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
        async with asyncio.timeout(10):
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(end) for end in ends} <= {type(None), ValueError, asyncio.CancelledError}
            assert gate._turns == {}
            assert gate._inside == set()
            for _ in range(num_slots):  # and all slots are free again
                await gate.slot(0).__aenter__()

    asyncio.run(run())


def test_a_waiter_cancelled_in_the_moment_of_its_turn_passes_the_slot_on() -> None:
    async def run() -> None:
        gate = FrontierGate(1)
        entered: list[int] = []

        async def work(group: int) -> None:
            async with gate.slot(group):
                entered.append(group)

        holder = gate.slot(0)
        await holder.__aenter__()
        first, second = asyncio.create_task(work(1)), asyncio.create_task(work(2))
        await spin(2)
        first.cancel()  # before the slot is free, and before it could run again
        await holder.__aexit__(None, None, None)
        async with asyncio.timeout(5):
            await asyncio.gather(first, second, return_exceptions=True)
        holder = gate.slot(0)
        await holder.__aenter__()
        third, fourth = asyncio.create_task(work(3)), asyncio.create_task(work(4))
        await spin(2)
        await holder.__aexit__(None, None, None)
        third.cancel()  # after it was given the slot
        async with asyncio.timeout(5):
            await asyncio.gather(third, fourth, return_exceptions=True)
        assert entered == [2, 4]

    asyncio.run(run())


def test_rounds_may_number_their_groups_from_zero_again() -> None:
    async def run() -> None:
        gate = FrontierGate(2)
        for _ in range(3):
            async with asyncio.TaskGroup() as tasks:
                for group in (1, 0, 2):
                    tasks.create_task(pass_through(gate, group))
            assert gate._policy.snapshot().num_groups == 0
        async with gate.slot(0):
            assert len(gate._policy._known) == 1  # nothing is kept of earlier rounds

    async def pass_through(gate: FrontierGate, group: int) -> None:
        async with gate.slot(group):
            await spin(2)

    asyncio.run(run())
