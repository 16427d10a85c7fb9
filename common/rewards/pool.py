"""Killable verifier processes behind the `Verifier` protocol (rules 7 and 9).

    VerifierPool(config) -> start() -> score()* -> close()

Workers come from a fork server that never holds the driver's threads. A call's time limit counts from when a worker takes it.

    what happened                                  verdict   reward
    the scorer answered                            its own   its own
    time limit passed: the worker is killed        TIMEOUT   0.0       the answer's doing
    memory limit reached (MemoryError)             TIMEOUT   0.0       the answer's doing as well: it asked for the memory
    scorer raised, or returned no finite number    ERROR     None
    worker died (segfault, kill -9, os._exit(3))   ERROR     None      nobody can say whose doing

A killed worker is replaced at once; a pool that breaks as a whole (an idle worker was killed) too, and the calls
it lost are asked again. (A scorer that calls os._exit(0) looks like a hang and becomes TIMEOUT.) Workers ignore Ctrl-C and die
with the driver however that ends. The fork server itself stays until the driver ends: other parts may share it.
"""

import asyncio
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool

from common.config import RewardConfig
from common.errors import RunError
from common.protocols import Score
from common.records import Verdict
from common.rewards import worker

_LIVENESS_S = 1.0  # how often a waiting call looks whether the pool still lives
_TRIES = 3  # of one call, where the pool as a whole broke under it


class VerifierPool:
    """`config.workers` processes that score responses. One event loop at a time, on any thread."""

    def __init__(self, config: RewardConfig, *, examples: Iterable[dict[str, Any]] = (), log: Path | None = None) -> None:
        """`examples`: a task of each kind, whose imports are done at the start. `log`: file for the workers' output."""
        self._config = config
        self._examples = tuple(examples)
        self._log = str(log) if log else None
        self._context = multiprocessing.get_context("forkserver")
        self._lifeline, self._driver_end = self._context.Pipe(duplex=False)  # ends when the driver does
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None
        self._is_closed = False

    async def start(self, deadline_s: float = 60.0) -> None:
        """Return when a worker is ready, its imports done. Idempotent.

        Raises ConfigError where `rewards.function` breaks a rule, RunError where no worker is ready in time.
        """
        pool = await asyncio.to_thread(self._living_pool)
        try:
            await asyncio.wait_for(asyncio.wrap_future(pool.schedule(worker.check)), deadline_s)
        except TimeoutError:
            raise RunError(
                f"verifier: no worker was ready within {deadline_s:g} s; see its imports in rewards.function"
            ) from None
        except (RuntimeError, ProcessExpired) as error:  # BrokenProcessPool is a RuntimeError
            raise RunError(f"verifier: a worker ended while starting ({_line(error)})") from error

    async def score(self, task: dict[str, Any], response: str) -> Score:
        """The verdict on one response. Never raises for what a response does; RunError once the pool is closed.

        A cancelled call frees its worker at once.
        """
        if self._pool is None:
            await self.start()
        for _ in range(_TRIES):
            try:
                return await self._ask(self._living_pool(), task, response)
            except BrokenProcessPool as error:
                reason = _line(error)
                if self._is_closed:
                    break
        return Score(reward=None, status=Verdict.ERROR, reason=reason)

    async def close(self) -> None:
        """End all workers; calls that still wait get ERROR. Idempotent."""
        with self._lock:
            self._is_closed = True
            pool = self._pool
        if pool is not None:
            await asyncio.to_thread(_end, pool)
        self._driver_end.close()
        self._lifeline.close()

    async def _ask(self, pool: ProcessPool, task: dict[str, Any], response: str) -> Score:
        """One try. Raises BrokenProcessPool where the pool as a whole is gone, which no single answer is to blame for."""
        start = time.monotonic()
        try:
            return await self._result(pool, pool.schedule(worker.score, args=(task, response), timeout=self._config.limit_s))
        except TimeoutError:
            reason = f"no verdict within {self._config.limit_s:g} s"
            return Score(reward=0.0, status=Verdict.TIMEOUT, reason=reason, duration_s=self._config.limit_s)
        except ProcessExpired as error:
            reason = f"the worker ended with {_exit_name(error.exitcode)}"
        except RuntimeError as error:  # of `schedule`, where the pool broke a moment ago
            raise BrokenProcessPool(str(error)) from error
        except Exception as error:  # a task or score that cannot be pickled: whatever fails here is the verifier's doing
            reason = _line(error)
        return Score(reward=None, status=Verdict.ERROR, reason=reason, duration_s=time.monotonic() - start)

    async def _result(self, pool: ProcessPool, scheduled: Future[Score]) -> Score:
        future = asyncio.wrap_future(scheduled)
        try:
            while not (await asyncio.wait({future}, timeout=_LIVENESS_S))[0]:
                if not pool.active:  # a call still in the broken pool's queue would never hear of it
                    raise BrokenProcessPool("the verifier pool ended before this call was served")
            return future.result()
        finally:
            future.cancel()

    def _living_pool(self) -> ProcessPool:
        """The pool, started, and replaced where it broke."""
        with self._lock:
            if self._is_closed:
                raise RunError("verifier: the pool is closed")
            if self._pool is None or not self._pool.active:
                if self._pool is not None:
                    threading.Thread(target=_end, args=(self._pool,), daemon=True).start()
                self._pool = self._build()
            return self._pool

    def _build(self) -> ProcessPool:
        modules = ["common.rewards.worker"]
        if self._config.function is None and any(task.get("workload") == "reasoning_gym" for task in self._examples):
            modules.append("reasoning_gym")
        self._context.set_forkserver_preload(modules)
        _start_fork_server()
        setup = worker.Setup(
            function=self._config.function,
            examples=self._examples,
            memory_bytes=self._config.memory_mb * 2**20,
            log=self._log,
            lifeline=self._lifeline,
        )
        pool = ProcessPool(max_workers=self._config.workers, context=self._context, initializer=worker.set_up, initargs=(setup,))
        assert pool.active  # asking starts it
        return pool


def _start_fork_server() -> None:
    """With SIGINT blocked, as its workers inherit it: Ctrl-C belongs to the driver, also while the server still imports."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(pool: ProcessPool) -> None:
    pool.stop()
    pool.join()


def _exit_name(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
