"""A busy machine is not an answer's doing: what waited for a core at its limit is asked again, and a hang still ends.

What a call has had of the cores is planted here: no test can starve a process for certain.
"""

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.config import RewardConfig
from common.protocols import Score
from common.records import Verdict
from common.rewards.clocks import Clocks
from common.rewards.dispatcher import Dispatcher
from common.rewards.pool import VerifierPool
from common.rewards.staff import Staff
from common.rewards.usage import Usage
from common.rewards.workers import Call, Worker

DEADLINE_S = 60
LIMIT_S = 0.5  # so 0.1 s of CPU time is that of a hang
STARVED_S = 0.6 * LIMIT_S


@pytest.fixture
def make_pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., VerifierPool]:
    """Builder of a started pool whose calls all seem to have had this of the cores, each time."""

    def make(used: Usage, workers: int = 1) -> VerifierPool:
        pool = VerifierPool(RewardConfig(function="planted_rewards:obey", workers=workers, timeout_s=LIMIT_S))
        request.addfinalizer(pool.close_blocking)
        pool.start_blocking(DEADLINE_S)
        monkeypatch.setattr(Worker, "used", lambda self, now_s: used)
        return pool

    return make


def ask(pool: VerifierPool, file: Path, hangs: int) -> tuple[Score, list[str]]:
    """A call that hangs so many times: its verdict, and the worker of each try."""
    score = pool.submit({"file": str(file), "hangs": hangs}, "hang at first").result(DEADLINE_S)
    return score, file.read_text().split()


@pytest.mark.parametrize("hangs", [1, 2, 4])
def test_a_right_answer_that_was_starved_is_right_in_the_end(make_pool: Any, tmp_path: Path, hangs: int) -> None:
    score, tries = ask(make_pool(Usage(cpu_s=0.01, starved_s=STARVED_S)), tmp_path / "tries", hangs)
    assert (score.status, score.reward) == (Verdict.OK, 1.0)
    assert len(tries) == hangs + 1 == len(set(tries))  # a worker each: the last one was killed


@pytest.mark.parametrize(
    ("used", "tries"),
    [
        (Usage(cpu_s=0.0, starved_s=0.0), 1),  # it sleeps
        (Usage(cpu_s=0.01, starved_s=0.4 * LIMIT_S), 1),
        (Usage(cpu_s=0.11, starved_s=STARVED_S), 1),
        (Usage(cpu_s=0.06, starved_s=STARVED_S), 2),  # 0.12 s in all
        (Usage(cpu_s=0.04, starved_s=STARVED_S), 3),
        (Usage(cpu_s=0.01, starved_s=STARVED_S), 5),
    ],
)
def test_a_hang_ends_once_it_had_its_cpu_time_or_its_tries(make_pool: Any, tmp_path: Path, used: Usage, tries: int) -> None:
    score, found = ask(make_pool(used), tmp_path / "tries", hangs=1000)
    assert (score.status, score.reward) == (Verdict.TIMEOUT, 0.0)
    assert len(found) == tries


@pytest.mark.parametrize(("before_s", "is_ended"), [(0.06, True), (0.03, False)])
def test_a_call_asked_again_ends_with_enough_of_a_core_and_not_at_its_limit(
    monkeypatch: pytest.MonkeyPatch, before_s: float, is_ended: bool
) -> None:
    """A look at it in the middle of its second try, without a thread or a process."""
    monkeypatch.setattr(Worker, "used", lambda self, now_s: Usage(cpu_s=0.05, starved_s=STARVED_S))
    killed: list[int] = []
    dispatcher = Dispatcher.__new__(Dispatcher)
    dispatcher._limit_s, dispatcher._overrun, dispatcher._queue = LIMIT_S, "no verdict", deque()
    dispatcher._clocks = Clocks(LIMIT_S, is_known=True)  # 0.1 s is enough
    dispatcher._staff = SimpleNamespace(kill=lambda worker: killed.append(worker.number), of=lambda _: [])
    call = Call(number=1, body=b"", tries=2, is_again=True, cpu_s=before_s)
    with socket.socket() as channel:
        dispatcher._watch(Worker(number=7, channel=channel, call=call), call, now_s=0.1)
    assert call.future.done() == is_ended and killed == [7] * is_ended
    assert not is_ended or call.future.result().status is Verdict.TIMEOUT


def test_a_starved_call_is_asked_again_by_a_warm_worker_before_those_that_wait(make_pool: Any, tmp_path: Path) -> None:
    """Two workers that are warm: one hangs with the call, the other is busy when the call comes back; a cold one is idle."""
    pool = make_pool(Usage(cpu_s=0.01, starved_s=STARVED_S), workers=2)
    for _ in range(3):
        for warm in [pool.submit({"nap_s": 0.05}, "nap pid") for _ in range(2)]:
            warm.result(DEADLINE_S)
    answered: list[str] = []
    calls = [pool.submit({"file": str(tmp_path / "tries"), "hangs": 1}, "hang at first")]
    before: list[list[str]] = []
    calls[0].add_done_callback(lambda _: before.append(list(answered)))
    calls += [pool.submit({"nap_s": 0.2}, "nap pid") for _ in range(20)]
    for call in calls[1:]:
        call.add_done_callback(lambda done: answered.append(done.result().reason))
    assert calls[0].result(DEADLINE_S).status is Verdict.OK
    for call in calls:
        call.result(DEADLINE_S)
    again = (tmp_path / "tries").read_text().split()[1]
    assert again in before[0]  # it had answered
    assert len(before[0]) < 15  # and others waited for longer


def test_no_more_than_the_workers_are_asked_again_at_one_time(
    make_pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker, four calls that hang and are overdue before their limit, so that the next is taken then."""
    pool = make_pool(Usage(cpu_s=0.06, starved_s=0.55 * LIMIT_S))
    running: list[set[int]] = [set()]
    give, kill = Worker.give, Staff.kill

    def note_give(worker: Worker, call: Call, now_s: float) -> None:
        if call.tries:
            running.append(running[-1] | {worker.number})
        give(worker, call, now_s)

    def note_kill(staff: Staff, worker: Worker, fate: str = "") -> None:
        running.append(running[-1] - {worker.number})
        kill(staff, worker, fate)

    monkeypatch.setattr(Worker, "give", note_give)
    monkeypatch.setattr(Staff, "kill", note_kill)
    calls = [pool.submit({"file": str(tmp_path / f"{i}"), "hangs": 1000}, "hang at first") for i in range(4)]
    assert {call.result(DEADLINE_S).status for call in calls} == {Verdict.TIMEOUT}
    assert max(map(len, running)) == 1


def test_a_wait_that_goes_on_counts_as_starved() -> None:
    before = Usage(1.0, 2.0)
    assert Usage(1.5, 2.25).since(before, 3.0) == Usage(0.5, 0.25)
    waiting = Usage(1.5, 2.25, is_ready=True).since(before, 3.0)
    assert (waiting.cpu_s, waiting.starved_s) == (0.5, 2.5)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells")
def test_who_runs_is_ready_and_who_sleeps_is_not() -> None:
    assert Usage.of(os.getpid()).is_ready
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            while Usage.of(child.pid).is_ready:  # it starts
                pass
        finally:
            child.kill()
