"""Killable verifier processes behind the `Verifier` protocol (rules 7 and 9).

    VerifierPool(config) -> start() -> score()* -> close()

A call's time limit (wall clock) counts from when a worker takes it.

    what happened                                  verdict   reward
    the scorer answered                            its own   its own
    time limit passed: the worker is killed        TIMEOUT   0.0       the answer's doing
    memory limit reached (MemoryError)             TIMEOUT   0.0       the answer's doing as well: it asked for the memory
    scorer raised, or returned no finite number    ERROR     None
    worker died (segfault, kill -9, os._exit)      ERROR     None      nobody can say whose doing

A worker that ended is replaced at once; a call that it had not read yet is asked again. A call that hangs does not hold up the
others (`dispatcher`). Workers ignore Ctrl-C and die with the driver however that ends; none outlives the pool (`nursery`).
"""

import asyncio
import itertools
import pickle
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from common.config import RewardConfig
from common.errors import RunError
from common.protocols import Score
from common.records import Verdict
from common.rewards.dispatcher import Dispatcher
from common.rewards.worker import Setup
from common.rewards.workers import Call


class VerifierPool:
    """Processes that score responses, `config.workers` at a time. Any thread and any event loop may use it."""

    def __init__(
        self,
        config: RewardConfig,
        *,
        examples: Iterable[dict[str, Any]] = (),
        log: Path | None = None,
        preload: Iterable[str] = (),
    ) -> None:
        """`examples`: a task of each kind, whose imports are done at the start. `log`: file for the workers' output.

        `preload`: modules to import once for all workers, which are forked then; they must start no threads. For a function of
        the user's with heavy imports, which each worker repeats otherwise.
        """
        self._config = config
        self._log = log
        self._setup = Setup(
            function=config.function,
            examples=tuple(examples),
            memory_bytes=config.memory_mb * 2**20,
            preload=tuple(preload),
        )
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher | None = None
        self._is_closed = False

    async def start(self, deadline_s: float = 60.0) -> None:
        """Return when a worker is ready, its imports done. Idempotent.

        Raises ConfigError where `rewards.function` breaks a rule, RunError where no worker is ready in time.
        """
        await asyncio.to_thread(self.start_blocking, deadline_s)

    def start_blocking(self, deadline_s: float = 60.0) -> None:
        """`start`, for a thread without an event loop."""
        try:
            self._served().ready.result(deadline_s)
        except TimeoutError:
            rule = f"no worker was ready within {deadline_s:g} s"
            raise RunError(f"verifier: {rule}; see its imports in rewards.function") from None

    async def score(self, task: dict[str, Any], response: str) -> Score:
        """The verdict on one response. Never raises for what a response does; RunError once the pool is closed.

        A cancelled call frees its worker at once. Raises what `start` does where no worker has ever been ready.
        """
        return await asyncio.wrap_future(self.submit(task, response))

    def submit(self, task: dict[str, Any], response: str) -> Future[Score]:
        """`score`, from any thread: the future's result is the verdict, and `cancel` frees the worker."""
        dispatcher = self._served()
        try:
            call = Call(number=next(self._numbers), body=pickle.dumps((task, response)))
        except Exception as error:  # a task that cannot be pickled: the verifier's doing
            future: Future[Score] = Future()
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            future.set_result(Score(reward=None, status=Verdict.ERROR, reason=reason))
            return future
        dispatcher.submit(call)
        return call.future

    async def close(self) -> None:
        """End all workers; calls that still wait get ERROR. Idempotent."""
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        """`close`, for a thread without an event loop."""
        with self._lock:
            self._is_closed = True
            dispatcher = self._dispatcher
        if dispatcher is not None:
            dispatcher.end()

    def _served(self) -> Dispatcher:
        with self._lock:
            if self._is_closed:
                raise RunError("verifier: the pool is closed")
            if self._dispatcher is None:
                self._dispatcher = Dispatcher(
                    self._setup,
                    num_workers=self._config.workers,
                    limit_s=self._config.limit_s,
                    log=self._log,
                )
            return self._dispatcher
