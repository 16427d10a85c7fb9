"""An engine that samples by the clock: weights that change answers, a prefix cache that can go stale, faults on demand."""

import asyncio
import random
from collections.abc import Callable, Hashable, Iterable
from enum import StrEnum
from pathlib import Path

from safetensors import safe_open

from common.errors import EngineDiedError, EngineError, PublishError
from common.protocols import Health
from common.records import FinishReason, Request, Response, Sampling
from common.spool import spool_files
from common.testing.fakes import VOCAB_SIZE, fake_logprob


class Fault(StrEnum):
    """What a FakeEngine does wrong with one request."""

    HANG = "hang"  # never returns
    ERROR = "error"  # raises EngineError
    STALE = "stale"  # answers from the version before
    MIXED = "mixed"  # the version changes within the response
    NAN = "nan"  # one log-prob is NaN


class FakeEngine:
    """Samples for `seconds(request)` of the loop's time.

    `faults` maps request ids to faults, one for each try, in order. `keeps_cache` is the planted bug of a prefix cache that
    outlives a publish: prompts seen before get log-probs of the old weights.
    """

    def __init__(
        self,
        capacity: int = 16,
        *,
        seconds: Callable[[Request], float] = lambda request: 1.0,
        length: Callable[[Request], int] = lambda request: 1 + request.seed % 7,
        faults: dict[Hashable, list[Fault]] | None = None,
        keeps_cache: bool = False,
        name: str = "engine 0",
    ) -> None:
        self._capacity, self._seconds, self._length = capacity, seconds, length
        self._faults = {key: list(value) for key, value in (faults or {}).items()}
        self._keeps_cache, self._name = keeps_cache, name
        self._weight, self._version = random.SystemRandom().random() * 100, -1  # no version is live before the first publish
        self._cache: dict[tuple[int, ...], float] = {}
        self._running: dict[Hashable, asyncio.Event] = {}
        self.started: list[Hashable] = []  # every request, in order
        self.max_running = 0
        self.is_alive = True
        self.is_closed = False
        self._death = asyncio.Event()

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def is_recovering(self) -> bool:
        return False

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def place(self, request: Request) -> int:
        return 0

    async def generate(self, request: Request, sampling: Sampling) -> Response:
        if not self.is_alive:
            raise EngineDiedError(f"{self._name} is dead")
        fault = self._next_fault(request.request_id)
        if fault is Fault.ERROR:
            raise EngineError(f"{self._name} lost {request.request_id}")
        version, weight = self._version, self._cache.setdefault(request.prompt_ids, self._weight)
        self.started.append(request.request_id)
        aborted = self._running[request.request_id] = asyncio.Event()
        self.max_running = max(self.max_running, len(self._running))
        try:
            async with asyncio.timeout(None if fault is Fault.HANG else self._seconds(request)):
                await aborted.wait()
            is_aborted = True
        except TimeoutError:
            is_aborted = False
        finally:
            del self._running[request.request_id]
        if not self.is_alive:
            raise EngineDiedError(f"{self._name} died")
        return self._respond(request, sampling, version, weight, fault, is_aborted)

    async def abort(self, request_ids: Iterable[Hashable]) -> None:
        for request_id in request_ids:
            if request_id in self._running:
                self._running[request_id].set()

    async def publish(self, version: int, spool: Path) -> None:
        if version <= self._version:
            raise PublishError(f"{self._name} serves version {self._version}; version {version} is not newer")
        with safe_open(str(spool_files(spool)[0]), framework="np") as tensors:
            self._weight = float(tensors.get_tensor("w")[0])
        self._version = version
        if not self._keeps_cache:
            self._cache.clear()

    async def health(self) -> list[Health]:
        return [Health(name=self._name, is_alive=self.is_alive, weight_version=self._version, num_running=len(self._running))]

    async def watch(self) -> None:
        await self._death.wait()
        raise EngineDiedError(f"{self._name} died")

    async def beat(self) -> None:
        if not self.is_alive:
            raise EngineDiedError(f"{self._name} is dead")

    async def close(self) -> None:
        self.is_closed = True

    def die(self) -> None:
        """Every running and later call raises EngineDiedError."""
        self.is_alive = False
        self._death.set()
        for event in self._running.values():
            event.set()

    def _next_fault(self, request_id: Hashable) -> Fault | None:
        faults = self._faults.get(request_id)
        return faults.pop(0) if faults else None

    def _respond(
        self, request: Request, sampling: Sampling, version: int, weight: float, fault: Fault | None, is_aborted: bool
    ) -> Response:
        rng = random.Random(request.seed)
        length = min(self._length(request), sampling.max_tokens)
        tokens = tuple(rng.randrange(VOCAB_SIZE) for _ in range(length))
        logprobs = [fake_logprob(weight, token) for token in tokens]
        if fault is Fault.NAN:
            logprobs[0] = float("nan")
        finish = FinishReason.LENGTH if length == sampling.max_tokens else FinishReason.STOP
        return Response(
            request_id=request.request_id,
            token_ids=tokens,
            logprobs=tuple(logprobs),
            finish_reason=FinishReason.ABORT if is_aborted else finish,
            version_start=version - (fault in (Fault.STALE, Fault.MIXED)),
            version_end=version - (fault is Fault.STALE),
        )
