"""The pool: several engine replicas behind the `Engine` protocol.

The admission policy sees one number, the free slots of all replicas together; `common.placement` says where a request runs.

    in flight on a replica <= its capacity        at every moment, or `generate` raises
    a replica that has died is never used again   its capacity is gone, the others go on
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

from common.errors import DuplicateRequestError, EngineError, PublishError, explain
from common.placement import Placement
from common.protocols import Engine, Health
from common.records import Request, Response, Sampling
from common.weight_routes import FilesRoute, Route


class Pool:
    """Places requests on replicas; itself an `Engine`. Not safe across threads: one event loop calls it."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        if not engines:
            raise EngineError("a pool needs at least one engine")
        self._engines = tuple(engines)
        self._placement = Placement([engine.capacity for engine in engines])
        self._listeners: list[Callable[[], None]] = []
        self._placed: dict[Hashable, int] = {}  # request id -> replica, while in flight
        self.route: Route = FilesRoute()  # that weights take to the replicas
        self.timeout_s = 600.0

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The replicas that serve, so that a probe can ask each."""
        return tuple(self._engines[index] for index in self._placement.serving)

    @property
    def capacity(self) -> int:
        """Sum over the replicas that serve."""
        return sum(engine.capacity for engine in self.engines)

    @property
    def is_recovering(self) -> bool:
        """Engines are being started in place of dead ones."""
        return False

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever capacity has changed. Returns the call that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def replica_of(self, request_id: Hashable) -> int | None:
        """Index of the replica that runs this request; None where it is not in flight."""
        return self._placed.get(request_id)

    def place(self, request: Request) -> int:
        """Index of the replica that `generate` would use now: its group's own while that has room, else the emptiest.

        Raises EngineError where none has room, or none is alive.
        """
        return self._placement.place(request.group_id)

    async def generate(self, request: Request, sampling: Sampling) -> Response:
        """As `Engine.generate`; raises EngineError where no replica has room: the caller admitted too many."""
        if request.request_id in self._placed:
            remedy = "wait for its response first"
            raise DuplicateRequestError(explain("request_id", "must not be in flight already", request.request_id, remedy))
        index = self.place(request)
        self._placed[request.request_id] = index
        self._placement.take(index)
        try:
            return await self._engines[index].generate(request, sampling)
        except EngineError:
            await self._note_death(index)
            raise
        finally:
            self._placement.give(index)
            del self._placed[request.request_id]

    async def abort(self, request_ids: Iterable[Hashable]) -> None:
        """Reach each id on the replica that holds it."""
        by_replica: dict[int, list[Hashable]] = {}
        for request_id in request_ids:
            if (index := self._placed.get(request_id)) is not None:
                by_replica.setdefault(index, []).append(request_id)
        await asyncio.gather(*(self._engines[index].abort(ids) for index, ids in by_replica.items()))

    async def publish(self, version: int, spool: Path) -> None:
        """To all replicas at once; returns or raises when each has settled, so none is left half way."""
        serving = self._placement.serving
        if not serving:
            raise PublishError(f"weight version {version}: no engine is alive")
        self._placement.forget_homes()  # prefix caches are reset with the weights
        results = await self.route.deliver(version, spool, [self._engines[index] for index in serving], self.timeout_s)
        faults = [(index, result) for index, result in zip(serving, results, strict=True) if isinstance(result, BaseException)]
        if faults:
            index, cause = faults[0]
            text = f"replica {index} of {len(self._engines)}: {' '.join(str(cause).split())} ({len(faults)} failed)"
            raise PublishError(f"weight version {version} did not reach {text}") from cause

    async def health(self) -> list[Health]:
        """Of every replica, dead ones included."""
        states = await asyncio.gather(*(engine.health() for engine in self._engines))
        return [state for replica in states for state in replica]

    async def close(self) -> None:
        """Close all, also where one fails to; then raises the first failure."""
        results = await asyncio.gather(*(engine.close() for engine in self._engines), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _note_death(self, index: int) -> None:
        # A replica that fails at once looks idle: without this it would draw every retry.
        if not all(state.is_alive for state in await self._engines[index].health()):
            self._placement.lose(index)
