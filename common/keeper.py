"""The keeper: notices engines that die or fall silent, and starts others in their place.

    serving ── died | silent | failed in a publish ──> lost (`fault`) ── pause ──> started ──> given the served weights and probed
       ^                                                  ^                          │ failed                │
       │                                                  └──────────────────────────┴───────────────────────┤
       └─────────────────────────────────── joined (`recovered`) <───────────────────────────────────────────┘

A death is noticed by a call to the engine that never returns, so at once; silence by one that should. How often an engine is
started again is bounded (`common.restarts`): one that is lost too often leaves its place empty, and the pool goes on with the
others. Where none is left and none is on its way, whoever waits for an engine is told the last cause.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from common.config import Config
from common.errors import EngineDiedError, EngineError, RunError
from common.pool import Pool
from common.protocols import Engine
from common.restarts import RestartBudget
from common.timeline import Timeline

_BEATS = 4  # questions within supervision.silent_s


class KeptEngine(Engine, Protocol):
    """An engine that can be watched."""

    async def watch(self) -> None:
        """Never returns. Raises EngineDiedError at once where its process, or one that it needs, ends."""
        ...

    async def beat(self) -> None:
        """Return when the engine has answered. Raises EngineError where it is dead."""
        ...


class Bringer(Protocol):
    """Gives new engines their weights: `common.publish.Publisher`, or an evaluation's model."""

    async def bring(self, engine: Engine, place: int) -> str:
        """Let it join the pool at this place, with what the others serve. Says what was done; raises what has kept it out."""
        ...


Start = Callable[[int], Awaitable[KeptEngine]]  # a new engine for a place, without weights; where cancelled, none is left


class Keeper:
    """Keeps the pool's places filled from `keep` until `close`. Made and used within one running loop."""

    def __init__(self, config: Config, *, pool: Pool, publisher: Bringer, start: Start, timeline: Timeline) -> None:
        self._limits, self._silent_s = config.limits, config.supervision.silent_s
        self._pool, self._publisher, self._start, self._timeline = pool, publisher, start, timeline
        self._budget = RestartBudget(config.supervision)
        self._watches: dict[int, asyncio.Task[None]] = {}  # of the engine that serves, by place
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def keep(self) -> None:
        """From now on. The pool's `pending` engines join when they can."""
        self._pool.on_loss = self._lost
        for place, engine in self._pool.replicas.items():
            self._watch(place, engine)
        for place, start in self._pool.pending.items():
            self._pool.expect(place, "it has not started yet")
            self._spawn(self._fill(place, start))

    async def add(self) -> int:
        """One engine more than there are; returns its place. Raises what has kept it from joining."""
        place = self._pool.free_place()
        self._pool.expect(place, "it is new")
        try:
            await self._bring(place, self._start(place))
        except BaseException as error:
            self._pool.give_up(place, str(error))
            raise
        return place

    async def remove(self, place: int) -> None:
        """One engine less: it takes no further request, and ends when its last one has."""
        engine = await self._pool.leave(place)
        if (watch := self._watches.pop(place, None)) is not None:
            watch.cancel()
        await self._end(engine)

    async def close(self) -> None:
        """Nothing of it is left running, an engine that was being started included; idempotent."""
        self._is_closed = True
        tasks = [*self._tasks, *self._watches.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._limits.close_timeout_s)

    def _lost(self, place: int, engine: Engine, cause: str, is_fault: bool) -> bool:
        """The pool has lost this engine. Returns whether another is on its way."""
        if (watch := self._watches.pop(place, None)) is not None and watch is not asyncio.current_task():
            watch.cancel()
        if self._is_closed:
            return False
        fault_s = self._timeline.now()
        pause_s = self._spend(place, cause) if is_fault else 0.0
        if pause_s is None:
            self._spawn(self._end(engine))
            return False
        self._spawn(self._replace(place, engine, pause_s, fault_s if is_fault else None))
        return True

    def _spend(self, place: int, cause: str) -> float | None:
        """Tell of the fault. Seconds until the next start; None where there is none left."""
        part, detail = f"engine-{place}", " ".join(cause.split())
        try:
            pause_s = self._budget.spend(part, self._timeline.now(), cause)
        except RunError as error:
            self._timeline.emit("fault", part=part, detail=str(error))
            self._pool.give_up(place, str(error))
            return None
        self._timeline.emit("fault", part=part, detail=detail)
        return pause_s

    async def _replace(self, place: int, engine: Engine, pause_s: float, fault_s: float | None) -> None:
        """Its process has ended first: another would have no room beside it."""
        await self._end(engine)
        await asyncio.sleep(pause_s)
        await self._fill(place, None, fault_s)

    async def _fill(self, place: int, start: Awaitable[KeptEngine] | None, fault_s: float | None = None) -> None:
        """Start engines at this place, the first with `start` if given, until one has joined, or none may be started any more."""
        while True:
            try:
                done = await self._bring(place, start or self._start(place))
                break
            except Exception as error:  # whatever it was: another may do better, and the budget ends what repeats itself
                start, fault_s = None, fault_s if fault_s is not None else self._timeline.now()
                if (pause_s := self._spend(place, f"it could not be started: {error}")) is None:
                    return
                await asyncio.sleep(pause_s)
        if fault_s is not None:
            self._timeline.emit("recovered", start=round(fault_s, 6), part=f"engine-{place}", detail=done)

    async def _bring(self, place: int, start: Awaitable[KeptEngine]) -> str:
        engine = await start
        try:
            done = await self._publisher.bring(engine, place)
        except BaseException:
            await self._end(engine)
            raise
        self._watch(place, engine)
        return done

    def _watch(self, place: int, engine: Engine) -> None:
        self._watches[place] = asyncio.create_task(self._watch_until_lost(place, engine), name=f"keeper of engine-{place}")

    async def _watch_until_lost(self, place: int, engine: Any) -> None:
        """Of a KeptEngine."""
        tasks = [asyncio.create_task(engine.watch()), asyncio.create_task(self._listen_to(engine))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = next(iter(done)).exception()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.lose(place, str(error) if error is not None else "its watch has ended", engine=engine)

    async def _listen_to(self, engine: KeptEngine) -> None:
        while True:
            try:
                async with asyncio.timeout(self._silent_s):
                    await engine.beat()
            except TimeoutError:
                text = f"it has not answered for supervision.silent_s ({self._silent_s:g} s)"
                raise EngineDiedError(text) from None
            await asyncio.sleep(self._silent_s / _BEATS)

    async def _end(self, engine: Engine) -> None:
        """What is left of it. An engine that does not end in time is killed by its `close`, or with Ray."""
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(self._limits.close_timeout_s):
                await engine.close()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
