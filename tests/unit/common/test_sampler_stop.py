"""The end of a round or of an evaluation: the engine lets go first, then tasks end, also those that began meanwhile."""

import asyncio
from collections.abc import Hashable, Iterable

from round_lab import config_of

from common.books import Books
from common.open_group import Member
from common.records import Request
from common.sampler import Sampler
from common.testing import FakeEngine, run_virtual
from common.timeline import Timeline


def test_the_engine_lets_go_then_all_tasks_of_that_moment_end() -> None:
    log: list[str] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(name: str) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            log.append(f"{name} is cancelled")
            await asyncio.sleep(1)
            log.append(f"{name} ends")

    class Engine(FakeEngine):
        async def abort(self, request_ids: Iterable[Hashable]) -> None:
            log.append(f"abort {list(request_ids)}")
            tasks.add(asyncio.create_task(serve("late")))
            await asyncio.sleep(1)

    async def main() -> list[str]:
        timeline = Timeline(None, asyncio.get_running_loop().time)
        sampler = Sampler(config_of(), index=0, version=0, engine=Engine(), timeline=timeline, books=Books())
        tasks.add(asyncio.create_task(serve("early")))
        await asyncio.sleep(1)
        member = Member(Request(request_id="r", group_id="g", order=0))
        await sampler.stop([member], tasks)
        return list(log)  # what the loop does at its own end does not count

    found = run_virtual(main())
    assert found[0] == "abort ['r']"
    assert sorted(found[1:3]) == ["early is cancelled", "late is cancelled"]
    assert sorted(found[3:]) == ["early ends", "late ends"]
