"""One thread that gives calls to workers and keeps their clocks.

A call is *overdue* when it has run far longer than others do (`clocks`): from then on it does not count as one of the `workers`
calls that run side by side, and a spare worker takes the next. A worker whose overdue call has used much CPU time is demoted,
in two steps: first it gets a tenth of the others' share of a core, then only what nobody else wants. (CPU time, so that a call
that a busy machine starves is not punished for it.) A demoted worker cannot be given its priority back, so it is replaced after
its call. Hence a call that hangs costs the others the little that it uses before. MAX_OVERDUE bounds the memory; beyond it
calls wait.

A right answer must not become a timeout because the machine is busy: a call that at its limit has waited for a core most of the
time, and over all its tries has used little of one, is asked again: before all others, by a worker that has answered before,
without being demoted, until it has had enough of a core.
As that costs the others more, no more than `workers` such calls run at one time.
"""

import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.protocols import Score
from common.records import Verdict
from common.rewards.clocks import Clocks
from common.rewards.staff import STARTS, Staff
from common.rewards.usage import Usage
from common.rewards.worker import Setup
from common.rewards.workers import LEVELS, BrokenAnswerError, Call, State, Worker

MAX_OVERDUE = 32
SPARE = 1  # workers that wait beyond those in use
_SURPLUS = 3  # more of them that are kept where calls are no longer overdue
TRIES = 3  # of a call that was lost before a worker read it
STARVED_TRIES = 5  # of one that the machine kept waiting
_POLL_S = 0.005  # between two looks at what a long call has had of the cores


class Dispatcher:
    """Serves calls until it is ended. Its own thread does all but `submit` and `end`."""

    def __init__(self, setup: Setup, *, num_workers: int, limit_s: float, log: Path | None) -> None:
        self._staff = Staff(setup, log, hear=self._hear, lose=self._lose)
        self.ready: Future[None] = self._staff.ready  # the first worker; or why there is none
        self._num_workers = num_workers
        self._limit_s = limit_s
        subject = "" if setup.function is None else f"{setup.function} gave "
        self._overrun = f"{subject}no verdict within {limit_s:g} s"
        self._clocks = Clocks(limit_s, is_known=setup.function is None)
        self._inbox: deque[Call] = deque()
        self._queue: deque[Call] = deque()
        self._is_ended = False
        self._has_cancelled = False
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
            self._has_cancelled = True
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
                self._look()
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
        """Workers for the calls that count, for those that are overdue, and some to spare."""
        return self._num_workers + min(self._num_overdue() + SPARE, MAX_OVERDUE)

    def _dispatch(self) -> None:
        room = self._num_workers - sum(not worker.is_overdue for worker in self._staff.of(State.BUSY))
        # The most experienced last: its caches are warm.
        idle = sorted(self._staff.of(State.IDLE), key=lambda worker: worker.num_answered)
        has_warm = any(worker.is_warm for state in (State.IDLE, State.BUSY) for worker in self._staff.of(state))
        num_again = sum(worker.call is not None and worker.call.is_again for worker in self._staff.of(State.BUSY))
        held: list[Call] = []
        while self._queue and idle and room > 0:
            call = self._queue.popleft()
            if call.future.cancelled():
                continue
            if call.is_again and (num_again >= self._num_workers or (has_warm and not idle[-1].is_warm)):
                held.append(call)
                continue
            num_again += call.is_again
            self._give(idle.pop(), call)
            room -= 1
        self._queue.extendleft(reversed(held))

    def _give(self, worker: Worker, call: Call) -> None:
        self._staff.give(worker, call)
        worker.look_s = worker.since_s + min(self._clocks.overdue_s, self._limit_s)

    def _patience_s(self) -> float | None:
        """Seconds until a call must be looked at."""
        busy = self._staff.of(State.BUSY)
        return max(0.0, min(worker.look_s for worker in busy) - time.monotonic()) if busy else None

    def _look(self) -> None:
        """At the clocks that have run out, and at the calls that were cancelled."""
        now_s = time.monotonic()
        has_cancelled, self._has_cancelled = self._has_cancelled, False
        for worker in self._staff.of(State.BUSY):
            assert worker.call is not None
            if has_cancelled and worker.call.future.cancelled():
                self._staff.kill(worker)
            elif now_s >= worker.since_s + self._limit_s:
                self._end_call(worker, worker.call, now_s)
            elif now_s >= worker.look_s:
                self._watch(worker, worker.call, now_s)

    def _watch(self, worker: Worker, call: Call, now_s: float) -> None:
        """It runs for long: is it overdue, and has it used so much of a core that others should have that?"""
        used, running_s = worker.used(now_s), now_s - worker.since_s
        worker.is_overdue = worker.is_overdue or (
            running_s - used.starved_s >= self._clocks.overdue_s and self._num_overdue() < MAX_OVERDUE
        )
        if call.is_again and call.cpu_s + used.cpu_s >= self._clocks.enough_s:
            self._end_call(worker, call, now_s)  # it has had its time limit before
            return
        if not call.is_again and worker.is_overdue and used.cpu_s >= self._clocks.demote_s * (worker.level + 1):
            self._staff.demote(worker)
        worker.look_s = now_s + _POLL_S if worker.level < LEVELS else worker.since_s + self._limit_s

    def _end_call(self, worker: Worker, call: Call, now_s: float) -> None:
        """At the time limit. A call that a busy machine kept waiting most of the time is asked again, with more of a core."""
        used, running_s = worker.used(now_s), now_s - worker.since_s
        call.cpu_s += used.cpu_s
        is_starved = used.starved_s > self._limit_s / 2 and call.cpu_s < self._clocks.enough_s
        if is_starved and call.tries < STARVED_TRIES:
            call.is_again = True
            self._queue.appendleft(call)
        else:
            _answer(call, Score(reward=0.0, status=Verdict.TIMEOUT, reason=self._overrun, duration_s=running_s))
        worker.call = None
        self._staff.kill(worker)

    def _hear(self, worker: Worker, number: int, content: Any) -> None:
        call = worker.call
        if call is None or number != call.number:
            raise BrokenAnswerError
        try:
            cpu_s, starved_s = map(float, content["usage"])
            score, usage = _score_of(content["score"]), Usage(cpu_s, starved_s)
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenAnswerError from error
        _answer(call, score)
        used = usage.since(worker.usage, score.duration_s)
        self._clocks.note(max(0.0, score.duration_s - used.starved_s), used.cpu_s)
        worker.rest(usage)
        if worker.level > 0 or self._staff.num_alive() > self._num_wanted() + _SURPLUS:
            self._staff.kill(worker)

    def _lose(self, worker: Worker, reason: str) -> None:
        if (call := worker.call) is None:
            return
        call.num_lost += worker.has_lost
        if worker.has_lost and call.num_lost < TRIES:
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
