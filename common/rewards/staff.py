"""All workers of a pool: starts them, hears them, ends them. One thread uses it."""

import contextlib
import selectors
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

from common import errors
from common.errors import RunError
from common.rewards.nursery import DEMOTIONS, kill_group
from common.rewards.worker import Setup
from common.rewards.workers import BrokenAnswerError, Call, Nursery, State, Worker

START_S = 60.0  # of a worker that replaces another
STARTS = 3  # failed ones in a row, after which none is tried for the calls at hand


class Staff:
    """The workers by number, and the nursery that they come from.

    `hear(worker, number, content)` takes each answer, and raises BrokenAnswerError where it is none; `lose(worker, reason)` is
    told of each worker whose process has ended.
    """

    def __init__(
        self,
        setup: Setup,
        log: Path | None,
        *,
        hear: Callable[[Worker, int, Any], None],
        lose: Callable[[Worker, str], None],
    ) -> None:
        self.ready: Future[None] = Future()  # the first worker; or why there is none
        self.num_failed = 0  # starts in a row
        self.last_failure = ""
        self._setup = setup
        self._log = log
        self._hear = hear
        self._lose = lose
        self._workers: dict[int, Worker] = {}
        self._num_started = 0
        self._nursery: Nursery | None = None
        self._selector = selectors.DefaultSelector()
        self._bell, self._button = socket.socketpair()
        self._bell.setblocking(False)
        self._button.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)

    def ring(self) -> None:
        """End the present `wait`, from any thread."""
        with contextlib.suppress(OSError):  # full: it has been rung; closed: nobody is in
            self._button.send(b"!")

    @property
    def fault(self) -> BaseException | None:
        """Why there will never be a worker."""
        return self.ready.exception() if self.ready.done() else None

    def of(self, state: State) -> list[Worker]:
        """The workers in this state."""
        return [worker for worker in self._workers.values() if worker.state is state]

    def living(self) -> list[Worker]:
        """All whose process has not been reaped."""
        return list(self._workers.values())

    def num_alive(self) -> int:
        """Workers that are not about to end."""
        return sum(worker.state is not State.ENDING for worker in self._workers.values())

    def fill(self, num_wanted: int) -> None:
        """Start workers that are missing."""
        if self.fault is not None or self.num_failed >= STARTS:
            return
        try:
            if self._nursery is None:
                self._nursery = Nursery(self._setup, self._log)
                self._selector.register(self._nursery.control, selectors.EVENT_READ)
            for _ in range(num_wanted - self.num_alive()):
                self._num_started += 1
                worker = self._nursery.fork(self._num_started)
                worker.since_s = time.monotonic()
                self._workers[worker.number] = worker
                self._selector.register(worker.channel, selectors.EVENT_READ, worker)
        except OSError as error:
            if self._nursery is not None:
                self._lose_nursery()
            else:  # it could not even be started: no log to write to, no file or process to be had
                self._note_failure(" ".join(f"{type(error).__name__}: {error}".split()))
                self.ring()  # `wait` must not wait for what will not come

    def give(self, worker: Worker, call: Call) -> None:
        """Send a call to an idle worker."""
        worker.give(call, time.monotonic())
        self._write(worker)

    def kill(self, worker: Worker, fate: str = "") -> None:
        """End it; `lose` is told once it is dead. `fate`: why, where the worker is to blame."""
        if worker.state is not State.ENDING:
            worker.state, worker.fate = State.ENDING, fate
            self._selector.unregister(worker.channel)
            self._command("kill", worker)

    def demote(self, worker: Worker) -> None:
        """One step down: its share of a core is less from now on."""
        worker.level += 1
        self._command(DEMOTIONS[worker.level - 1], worker)

    def wait(self, patience_s: float | None) -> None:
        """Until something happens, and then deal with it."""
        starting = self.of(State.STARTING)
        if starting:
            first_s = START_S - max(time.monotonic() - worker.since_s for worker in starting)
            patience_s = max(0.0, first_s if patience_s is None else min(first_s, patience_s))
        has_news = False
        for key, events in self._selector.select(patience_s):
            if isinstance(key.data, Worker):
                if events & selectors.EVENT_WRITE:
                    self._write(key.data)
                if events & selectors.EVENT_READ:
                    self._read(key.data)
            elif key.fileobj is self._bell:
                self._bell.recv(4096)
            else:
                has_news = True
        if has_news:
            self._read_news()
        for worker in starting:
            if worker.state is State.STARTING and time.monotonic() - worker.since_s >= START_S:
                self.kill(worker, f"it was not ready within {START_S:g} s")

    def close(self, reason: str) -> None:
        """End all; `lose` is told nothing more."""
        self.fail(RunError(f"verifier: {reason}"))
        if self._nursery is not None:
            self._nursery.close()
        for worker in self._workers.values():
            worker.channel.close()
        self._selector.close()
        self._bell.close()
        self._button.close()

    def fail(self, error: BaseException) -> None:
        """There is no worker and will be none, because of `error`; without effect where there has been one."""
        with contextlib.suppress(InvalidStateError):
            self.ready.set_exception(error)

    def _command(self, command: str, worker: Worker) -> None:
        with contextlib.suppress(OSError):  # the nursery's end will be told
            if self._nursery is not None:
                self._nursery.tell(command, worker.number)

    def _write(self, worker: Worker) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.send() else 0)
        if self._selector.get_key(worker.channel).events != events:
            self._selector.modify(worker.channel, events, worker)

    def _read(self, worker: Worker) -> None:
        try:
            for number, content in worker.answers():
                if worker.state is State.STARTING and number == 0:
                    self._welcome(worker, content)
                elif worker.state is not State.ENDING:
                    self._hear(worker, number, content)
        except EOFError:
            self.kill(worker)
        except BrokenAnswerError:
            self.kill(worker, "the worker's answer cannot be read")

    def _welcome(self, worker: Worker, fault: dict[str, str] | None) -> None:
        if fault is not None:
            self.fail(_error_of(fault["kind"], fault["message"]))
            self.kill(worker)
            return
        worker.state, worker.has_started = State.IDLE, True
        self.num_failed = 0
        with contextlib.suppress(InvalidStateError):
            self.ready.set_result(None)

    def _read_news(self) -> None:
        try:
            news = self._nursery.news() if self._nursery is not None else []
        except EOFError:
            self._lose_nursery()
            return
        for kind, *rest in news:
            if kind == "born":
                self._workers[rest[0]].pid = rest[1]
            elif kind == "ended":
                self._bury(self._workers[rest[0]], rest[1])
            elif kind == "fault":
                self.fail(_error_of(*rest))

    def _bury(self, worker: Worker, code: int) -> None:
        if worker.state is not State.ENDING:
            self._read(worker)  # what it said before it ended counts
        self.kill(worker)
        del self._workers[worker.number]
        worker.channel.close()
        reason = worker.fate or f"the worker ended with {_exit_name(code)}"
        if not worker.has_started:
            self._note_failure(reason)
        self._lose(worker, reason)

    def _note_failure(self, reason: str) -> None:
        self.num_failed += 1
        self.last_failure = reason
        self.fail(RunError(f"verifier: a worker ended while starting ({reason}); see the imports of rewards.function"))

    def _lose_nursery(self) -> None:
        """It ended by itself, and its workers with it. That is the doing of none of the calls.

        What those had started is ended here: the kernel ends the workers alone (`worker`).
        """
        assert self._nursery is not None
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._nursery.control)
        reason = f"the verifiers' parent process ended with {_exit_name(self._nursery.close())}"
        self._nursery = None
        self._note_failure(reason)
        for worker in list(self._workers.values()):
            self.kill(worker)
            if worker.pid is not None:
                kill_group(worker.pid)
            worker.channel.close()
            worker.has_lost = True
            del self._workers[worker.number]
            self._lose(worker, reason)


def _error_of(kind: str, message: str) -> Exception:
    error: Exception = getattr(errors, kind)(message)
    return error


def _exit_name(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
