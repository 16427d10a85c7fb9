"""The pool: several engine replicas behind the `Engine` protocol. Replicas die, are replaced, join and leave.

The admission policy sees one number, the free slots of all replicas together; `common.placement` says where a request runs.

    in flight on a replica <= its capacity        at every moment, or `generate` raises
    a replica that was lost is never used again   its requests raise EngineDiedError at once, the others go on
    one version                                   who joins serves the version that the others serve, or is refused

A place is what a replica stands at: `engine-1` is the one at place 1, whichever process that is. Who brings another to an empty
place, and when, is `common.keeper`'s business.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import DuplicateRequestError, EngineDiedError, EngineError, PublishError, explain
from common.placement import Placement
from common.protocols import Engine, Health
from common.records import Request, Response, Sampling
from common.weight_routes import FilesRoute, Route
from common.weight_routes import publish_within as publish_within

OnLoss = Callable[[int, Engine, str, bool], bool]


class _Replica:
    """One engine at its place, and what it runs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.calls: set[asyncio.Timeout] = set()  # in flight; each is ended by its own deadline, moved to now
        self.is_lost = self.is_leaving = False
        self.emptied = asyncio.Event()

    def end_calls(self) -> None:
        self.is_lost = True
        for call in self.calls:
            call.reschedule(0)


class Pool:
    """Places requests on replicas; itself an `Engine`. Not safe across threads: one event loop calls it."""

    def __init__(self, engines: Sequence[Engine] | Mapping[int, Engine]) -> None:
        """At places 0, 1 ..., or at those given. Others may `join`."""
        if not engines:
            raise EngineError("a pool needs at least one engine")
        places = engines if isinstance(engines, Mapping) else dict(enumerate(engines))
        self._replicas: dict[int, _Replica] = {index: _Replica(engine) for index, engine in places.items()}
        self._placement = Placement([])
        for index, engine in places.items():
            self._placement.join(index, engine.capacity)
        self._empty: dict[int, str] = {}  # places without a replica, and why
        self._expected: set[int] = set()  # those of them to which another is on its way
        self._listeners: list[Callable[[], None]] = []
        self._placed: dict[Hashable, int] = {}  # request id -> place, while in flight
        self.pending: dict[int, asyncio.Task[Any]] = {}  # engines that are being started, by place: for a keeper
        self.version: int | None = None  # that all replicas serve; None: not known to be one
        self.on_loss: OnLoss = lambda index, engine, cause, is_fault: False  # whether another is on its way
        self.route: Route = FilesRoute()  # that weights take to all replicas at once

    @property
    def replicas(self) -> dict[int, Engine]:
        """The engines that serve, by place."""
        return {index: self._replicas[index].engine for index in self._placement.serving}

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines that serve."""
        return tuple(self.replicas.values())

    @property
    def capacity(self) -> int:
        """Sum over the replicas that serve."""
        return sum(engine.capacity for engine in self.engines)

    @property
    def is_recovering(self) -> bool:
        """An engine is on its way to an empty place."""
        return bool(self._expected)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever capacity has changed, or an engine will not come after all. Returns the call that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def replica_of(self, request_id: Hashable) -> int | None:
        """The place at which this request runs; None where it is not in flight."""
        return self._placed.get(request_id)

    def place(self, request: Request) -> int:
        """The place that `generate` would use now: its group's own while that has room, else the emptiest.

        Raises EngineError where none has room, or none is alive.
        """
        return self._placement.place(request.group_id)

    async def generate(self, request: Request, sampling: Sampling) -> Response:
        """As `Engine.generate`; raises EngineError where no replica has room: the caller admitted too many."""
        if request.request_id in self._placed:
            remedy = "wait for its response first"
            raise DuplicateRequestError(explain("request_id", "must not be in flight already", request.request_id, remedy))
        index = self.place(request)
        replica = self._replicas[index]
        self._placed[request.request_id] = index
        self._placement.take(index)
        try:
            return await self._call(index, replica, request, sampling)
        finally:
            if self._replicas.get(index) is replica:  # else its place has another's count
                self._placement.give(index)
            del self._placed[request.request_id]

    async def _call(self, index: int, replica: _Replica, request: Request, sampling: Sampling) -> Response:
        """A response, or EngineDiedError as soon as the replica is lost, whether it answers or not."""
        call = asyncio.timeout(None)
        try:
            async with call:
                replica.calls.add(call)
                try:
                    return await replica.engine.generate(request, sampling)
                finally:
                    replica.calls.discard(call)
                    if not replica.calls:
                        replica.emptied.set()
        except TimeoutError:
            if not call.expired():
                raise
            raise EngineDiedError(f"engine-{index} is lost: {self._empty.get(index, 'another has taken its place')}") from None
        except EngineError as error:
            if isinstance(error, EngineDiedError) or await self._is_dead(replica):
                self._lose(index, replica, str(error), is_fault=True)
                raise EngineDiedError(str(error)) from error
            raise

    @staticmethod
    async def _is_dead(replica: _Replica) -> bool:
        # A replica that fails at once looks idle: if it were kept, it would draw every retry.
        return replica.is_lost or not all(state.is_alive for state in await replica.engine.health())

    async def abort(self, request_ids: Iterable[Hashable]) -> None:
        """Reach each id on the replica that holds it."""
        by_replica: dict[int, list[Hashable]] = {}
        for request_id in request_ids:
            if (index := self._placed.get(request_id)) is not None and index in self._replicas:
                by_replica.setdefault(index, []).append(request_id)
        await asyncio.gather(*(self._replicas[index].engine.abort(ids) for index, ids in by_replica.items()))

    async def publish(self, version: int, spool: Path) -> None:
        """To all replicas at once; returns or raises when each has settled, so none is left half way.

        One that failed stays in the pool: `deliver` is for whoever can do without it.
        """
        num_replicas, faults = len(self.replicas), await self._publish(version, spool, None)
        if num_replicas == 0:
            raise PublishError(f"weight version {version}: no engine is alive")
        if faults:
            self.version = self.version if len(faults) == num_replicas else None
            index, cause = next(iter(faults.items()))
            text = f"replica {index} of {num_replicas}: {' '.join(str(cause).split())} ({len(faults)} failed)"
            raise PublishError(f"weight version {version} did not reach {text}") from cause
        self.version = version

    async def deliver(self, version: int, spool: Path, timeout_s: float) -> BaseException | None:
        """As `publish`, but a replica that fails, or takes longer, is lost. Returns the first fault, if any.

        Whoever is left serves `version`. Cut off, it leaves `version` None.
        """
        self.version = None
        faults = await self._publish(version, spool, timeout_s)
        for index, cause in faults.items():
            self.lose(index, f"weight version {version} did not reach it: {' '.join(str(cause).split())}")
        self.version = version if self.replicas else None
        return next(iter(faults.values()), None)

    async def _publish(self, version: int, spool: Path, timeout_s: float | None) -> dict[int, BaseException]:
        """The faults, by place."""
        self._placement.forget_homes()  # prefix caches are reset with the weights
        replicas = self.replicas
        results = await self.route.deliver(version, spool, list(replicas.values()), timeout_s)
        return {index: result for index, result in zip(replicas, results, strict=True) if isinstance(result, BaseException)}

    def lose(self, index: int, cause: str, *, engine: Engine | None = None, is_fault: bool = True) -> None:
        """End the replica at this place (only if it is `engine`, where given): its requests raise EngineDiedError now."""
        replica = self._replicas.get(index)
        if replica is not None and engine in (None, replica.engine):
            self._lose(index, replica, cause, is_fault=is_fault)

    def _lose(self, index: int, replica: _Replica, cause: str, *, is_fault: bool) -> None:
        if self._replicas.get(index) is not replica:
            return  # lost already
        del self._replicas[index]
        self._placement.lose(index)
        self._empty[index] = cause
        replica.end_calls()
        if not replica.is_leaving and self.on_loss(index, replica.engine, cause, is_fault):
            self._expected.add(index)
        self._tell()

    def expect(self, index: int, cause: str) -> None:
        """An engine is on its way to this empty place; `cause`: why there is none."""
        self._empty[index] = cause
        self._expected.add(index)

    def give_up(self, index: int, cause: str) -> None:
        """No engine will come to this empty place."""
        self._empty[index] = cause
        self._expected.discard(index)
        self._tell()

    def free_place(self) -> int:
        """A place for one more replica than there are."""
        taken = self._replicas.keys() | self._expected
        return next(index for index in range(len(taken) + 1) if index not in taken)

    async def join(self, engine: Engine, index: int) -> None:
        """Let a new engine serve at an empty place. Raises EngineError where it does not serve the pool's version."""
        (state,) = await engine.health()
        if not state.is_alive:
            raise EngineDiedError(f"{state.name} is dead: {state.detail}")
        if self.version is not None and state.weight_version != self.version:
            versions = f"serves weight version {state.weight_version}, the pool version {self.version}"
            raise EngineError(f"{state.name} cannot join: it {versions} (rule 1)")
        if index in self._replicas:
            raise EngineError(f"{state.name} cannot join: place {index} is taken")
        self._replicas[index] = _Replica(engine)
        self._placement.join(index, engine.capacity)
        self._empty.pop(index, None)
        self._expected.discard(index)
        self._tell()

    async def leave(self, index: int) -> Engine:
        """No further request runs at this place; returns its engine, for the caller to close, when the last one has ended."""
        replica = self._replicas.get(index)
        if replica is None or replica.is_leaving:
            raise EngineError(f"no engine serves at place {index}")
        replica.is_leaving = True
        self._placement.lose(index)
        self._tell()
        while replica.calls:
            replica.emptied.clear()
            await replica.emptied.wait()
        if self._replicas.get(index) is replica:  # else it was lost meanwhile
            del self._replicas[index]
            self._empty[index] = "it has left"
        return replica.engine

    def renew(self) -> None:
        """Lose every replica, for another to take its place: what they serve cannot be replaced by a publish."""
        self.version = None
        for index in list(self._replicas):
            self.lose(index, "it serves weights that are no longer the run's", is_fault=False)

    async def health(self) -> list[Health]:
        """Of every replica, and of every empty place why it is empty."""
        places = sorted(self._replicas.keys() | self._empty.keys())
        states = await asyncio.gather(*(self._health(index) for index in places))
        return [state for replica in states for state in replica]

    async def _health(self, index: int) -> list[Health]:
        if (replica := self._replicas.get(index)) is not None:
            return await replica.engine.health()
        cause = self._empty[index]
        detail = f"another is being started: {cause}" if index in self._expected else cause
        return [Health(name=f"engine-{index}", is_alive=False, weight_version=-1, num_running=0, detail=detail)]

    async def close(self) -> None:
        """Close all, also where one fails to; then raises the first failure."""
        for start in self.pending.values():
            start.cancel()
        await asyncio.gather(*self.pending.values(), return_exceptions=True)
        calls = (replica.engine.close() for replica in self._replicas.values())
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()
