"""One thread that gives calls to workers and keeps their clocks.

A call is *overdue* when it has run ten times as long as the median one, and SLOW_S at least: from then on it does not count as
one of the `workers` calls that run side by side, and a spare worker takes the next. An overdue call that has used that much CPU
time is demoted: it goes on, but only where nobody else wants the core. (CPU time, so that a call that a busy machine starves is
not punished for it.) A demoted worker cannot be given its priority back, so it is replaced after its call. Hence a call that
hangs costs the others the little that it uses before it is overdue. MAX_OVERDUE bounds the memory; beyond it calls wait.
"""

import statistics
import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.protocols import Score
from common.records import Verdict
from common.rewards.staff import STARTS, Staff
from common.rewards.worker import Setup
from common.rewards.workers import BrokenAnswerError, Call, State, Worker

SLOW_S = 0.1  # no call is overdue before
SLOW_FACTOR = 10  # times the median of the last calls
MAX_OVERDUE = 32
TRIES = 3  # of a call whose worker was lost before it read it
_POLL_S = 0.02  # between two looks at an overdue call's CPU time
_HISTORY = 64  # calls


class Dispatcher:
    """Serves calls until it is ended. Its own thread does all but `submit` and `end`."""

    def __init__(self, setup: Setup, *, num_workers: int, limit_s: float, log: Path | None) -> None:
        self._staff = Staff(setup, log, hear=self._hear, lose=self._lose)
        self.ready: Future[None] = self._staff.ready  # the first worker; or why there is none
        self._num_workers = num_workers
        self._limit_s = limit_s
        self._slow_s = limit_s / 5  # until a call has been answered
        self._durations: deque[float] = deque(maxlen=_HISTORY)
        self._inbox: deque[Call] = deque()
        self._queue: deque[Call] = deque()
        self._is_ended = False
        self._thread = threading.Thread(target=self._run, name="verifiers", daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> None:
        """Have it served, first come first served; cancelling its future frees the worker."""
        call.future.add_done_callback(self._notice)
        self._inbox.append(call)
        self._staff.ring()
        if not self._thread.is_alive():  # ended a moment ago: nobody else would answer
            self._answer_waiting(_error("the pool is closed"))

    def end(self) -> None:
        """End all workers and the thread; whoever waits gets ERROR. Idempotent."""
        self._is_ended = True
        self._staff.ring()
        self._thread.join()

    def _notice(self, future: Future[Score]) -> None:
        if future.cancelled():
            self._staff.ring()

    # All that follows runs on the thread.

    def _run(self) -> None:
        reason = "the pool was closed"
        try:
            while not self._is_ended:
                self._receive()
                self._staff.fill(self._num_wanted())
                self._dispatch()
                self._staff.wait(self._patience_s())
                for worker in self._staff.of(State.BUSY):
                    self._watch(worker)
        except BaseException as error:  # nobody may wait for a thread that has died
            reason = f"the verifier pool failed: {type(error).__name__}: {error}"
            raise
        finally:
            running = [worker.call for worker in self._staff.living() if worker.call is not None]
            self._staff.close(reason)
            for call in running:
                _answer(call, _error(reason))
            self._answer_waiting(_error(reason))

    def _answer_waiting(self, answer: Score | BaseException) -> None:
        for calls in (self._queue, self._inbox):
            while calls:
                _answer(calls.popleft(), answer)

    def _receive(self) -> None:
        """New calls. Where there can be no worker they hear why."""
        if self._inbox and self._staff.num_failed >= STARTS:
            self._staff.num_failed = 0  # for these it is tried again
        while self._inbox:
            self._queue.append(self._inbox.popleft())
        if self._staff.fault is not None:
            self._answer_waiting(self._staff.fault)
        elif self._staff.num_failed >= STARTS and self._staff.num_alive() == 0:
            self._answer_waiting(_error(self._staff.last_failure))

    def _num_overdue(self) -> int:
        return sum(worker.is_overdue for worker in self._staff.of(State.BUSY))

    def _num_wanted(self) -> int:
        """Workers for the calls that count, for those that are overdue, and one to spare."""
        return self._num_workers + min(self._num_overdue() + 1, MAX_OVERDUE)

    def _dispatch(self) -> None:
        room = self._num_workers - sum(not worker.is_overdue for worker in self._staff.of(State.BUSY))
        idle = self._staff.of(State.IDLE)
        while self._queue and idle and room > 0:
            call = self._queue.popleft()
            if not call.future.cancelled():
                self._staff.give(idle.pop(), call)
                room -= 1

    def _patience_s(self) -> float | None:
        """Seconds until a clock runs out."""
        now_s = time.monotonic()
        moments = []
        may_be_overdue = self._num_overdue() < MAX_OVERDUE
        for worker in self._staff.of(State.BUSY):
            moments.append(worker.since_s + self._limit_s)
            if worker.is_overdue and not worker.is_demoted:
                moments.append(now_s + _POLL_S)
            elif not worker.is_overdue and may_be_overdue:
                moments.append(worker.since_s + self._slow_s)
        return max(0.0, min(moments) - now_s) if moments else None

    def _watch(self, worker: Worker) -> None:
        call, running_s = worker.call, time.monotonic() - worker.since_s
        assert call is not None
        if call.future.cancelled():
            self._staff.kill(worker)
        elif running_s >= self._limit_s:
            reason = f"no verdict within {self._limit_s:g} s"
            _answer(call, Score(reward=0.0, status=Verdict.TIMEOUT, reason=reason, duration_s=running_s))
            worker.call = None
            self._staff.kill(worker)
        elif running_s >= self._slow_s:
            worker.is_overdue = worker.is_overdue or self._num_overdue() < MAX_OVERDUE
            if worker.is_overdue and not worker.is_demoted and worker.used_cpu_s() >= self._slow_s:
                self._staff.demote(worker)

    def _hear(self, worker: Worker, number: int, content: Any) -> None:
        call = worker.call
        if call is None or number != call.number:
            raise BrokenAnswerError
        try:
            score, cpu_s = _score_of(content["score"]), float(content["cpu_s"])
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenAnswerError from error
        _answer(call, score)
        self._durations.append(score.duration_s)
        self._slow_s = max(SLOW_S, SLOW_FACTOR * statistics.median(self._durations))
        worker.rest(cpu_s)
        if worker.is_demoted or self._staff.num_alive() > self._num_wanted():
            self._staff.kill(worker)

    def _lose(self, worker: Worker, reason: str) -> None:
        if (call := worker.call) is None:
            return
        if worker.has_lost and call.tries < TRIES:
            self._queue.appendleft(call)
        else:
            _answer(call, _error(reason, duration_s=time.monotonic() - worker.since_s))


def _answer(call: Call, answer: Score | BaseException) -> None:
    with suppress(InvalidStateError):  # cancelled
        if isinstance(answer, Score):
            call.future.set_result(answer)
        else:
            call.future.set_exception(answer)


def _score_of(fields: dict[str, Any]) -> Score:
    parts = tuple((str(name), float(value)) for name, value in fields["parts"])
    return Score(**{**fields, "status": Verdict(fields["status"]), "parts": parts})


def _error(reason: str, duration_s: float = 0.0) -> Score:
    return Score(reward=None, status=Verdict.ERROR, reason=reason, duration_s=duration_s)
