"""Bugs that are planted on purpose, to see that the judge finds them: patches of the running driver, not of the product."""

import asyncio
from dataclasses import replace
from typing import Any

VARIABLE = "CHAOS_PLANT"


def plant(name: str) -> None:
    """By name; nothing for the empty one."""
    if name:
        PLANTS[name]()


def replay_twice() -> None:
    """A group that was found on disk is trained twice."""
    from common.assembly import Assembly
    from common.train_side import TrainSide

    recover, accumulate = Assembly.recover, TrainSide._accumulate
    found: set[str] = set()

    def noting(self: Any, entry: Any) -> None:
        found.add(entry.group_id)
        recover(self, entry)

    async def twice(self: Any, dispatch: Any) -> None:
        if dispatch.groups[0].group_id in found:
            await self._trainer.accumulate(dispatch.groups)
        await accumulate(self, dispatch)

    Assembly.recover, TrainSide._accumulate = noting, twice  # type: ignore[method-assign]


def journal_late() -> None:
    """The queue has a group before the journal has it."""
    from common.journal import Journal

    write = Journal.group

    def late(self: Any, group: Any, problem: Any) -> None:
        asyncio.get_running_loop().call_later(0.1, lambda: self._file and write(self, group, problem))

    Journal.group = late  # type: ignore[method-assign]


def join_unpublished() -> None:
    """A new engine in place of a dead one joins without the weights, under the version that the others serve."""
    from common.publish import Publisher

    async def bring(self: Any, engine: Any, place: int) -> str:
        if self._served is not None:
            await engine.actor.adopt.remote(self._served.version)
        await self._engines.join(engine, place)
        return "planted"

    Publisher.bring = bring  # type: ignore[method-assign]


def sampler_at_start() -> None:
    """A checkpoint is restored, but not which problems were drawn."""
    from common.checkpoints import Checkpoints

    restore = Checkpoints.restore

    async def forgetful(self: Any) -> Any:
        state = await restore(self)
        if state is not None:
            state["sampler"] = {**state["sampler"], "epoch": 0, "position": 0, "last": [], "drawn": []}
        return state

    Checkpoints.restore = forgetful  # type: ignore[method-assign]


def ignore_fingerprints() -> None:
    """A journal is used whatever weights it was sampled from."""
    from common import journal_reader
    from common.journal_lines import Head, Line, read_line

    fault_of_head = journal_reader._fault_of_head

    def trusting(line: bytes, wanted: Head) -> str | None:
        read = read_line(line)
        found = read.content if isinstance(read, Line) else None
        return fault_of_head(line, replace(wanted, weights=found.weights) if isinstance(found, Head) else wanted)

    journal_reader._fault_of_head = trusting


PLANTS = {
    "replay-twice": replay_twice,
    "journal-late": journal_late,
    "join-unpublished": join_unpublished,
    "sampler-at-start": sampler_at_start,
    "ignore-fingerprints": ignore_fingerprints,
}

# A seed, and what is killed, with which each shows.
SEEDS_OF_PLANTS = {
    "replay-twice": (9, "driver"),
    "journal-late": (492, "driver"),
    "join-unpublished": (7, "engine"),
    "sampler-at-start": (28, "driver"),
    "ignore-fingerprints": (484, "driver"),
}
