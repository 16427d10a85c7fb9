"""Calls that hang or break their worker: the others are served, each by its own verdict, and nothing is left behind."""

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.config import RewardConfig
from common.errors import RunError
from common.protocols import Score
from common.records import Verdict
from common.rewards.clocks import DEMOTE_S, HANG_S, OVERDUE_S, Clocks
from common.rewards.pool import VerifierPool
from common.rewards.workers import BrokenAnswerError, Call, State, Worker

DEADLINE_S = 30
TASK: dict[str, Any] = {"workload": "any"}


@pytest.fixture
def make_pool(request: pytest.FixtureRequest) -> Any:
    """Builder of a started pool, closed at the end."""

    def make(**settings: Any) -> VerifierPool:
        pool = VerifierPool(RewardConfig(**{"function": "planted_rewards:obey", "workers": 1, "timeout_s": 20, **settings}))
        request.addfinalizer(pool.close_blocking)
        pool.start_blocking(DEADLINE_S)
        return pool

    return make


def ask(pool: VerifierPool, response: str, task: dict[str, Any] = TASK) -> Score:
    return pool.submit(task, response).result(DEADLINE_S)


def processes() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def zombies() -> set[int]:
    """Pids of children that have ended and were not waited for; one that is reaped while we look is none."""
    found = set()
    for process in processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                found.add(process.pid)
    return found


def wait_until(holds: Any) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_calls_behind_hanging_ones_are_answered_while_those_still_hang(make_pool: Any) -> None:
    """One worker, 6 calls that never end, a limit beyond the test's: every other call is answered all the same."""
    pool = make_pool(timeout_s=3600)
    ask(pool, "right")
    hung = [pool.submit(TASK, "power" if i % 2 else "spin") for i in range(6)]
    others = [pool.submit(TASK, "right") for _ in range(20)]
    done, late = wait_for(others, DEADLINE_S)
    assert (len(done), len(late)) == (20, 0)
    assert not any(call.done() for call in hung)


def test_a_call_that_sleeps_does_not_hold_its_place_either(make_pool: Any) -> None:
    pool = make_pool(timeout_s=3600)
    ask(pool, "right")
    sleeping = pool.submit({"nap_s": 3600}, "nap")
    assert ask(pool, "right").status is Verdict.OK
    assert not sleeping.done()


@pytest.mark.skipif(sys.platform != "linux", reason="the scheduling policy is Linux's")
def test_a_call_that_computes_for_long_loses_its_claim_on_a_core(make_pool: Any) -> None:
    pool = make_pool(timeout_s=3600)
    ask(pool, "right")
    pool.submit(TASK, "spin")

    def has_lost() -> bool:
        return any(os.sched_getscheduler(process.pid) == os.SCHED_IDLE for process in processes())

    wait_until(has_lost)


def test_a_slow_call_that_ends_well_counts_and_its_demoted_worker_is_replaced(make_pool: Any) -> None:
    pool = make_pool()
    ask(pool, "right")
    slow = ask(pool, "cpu", {"cpu_s": 4 * DEMOTE_S})
    assert (slow.reward, slow.status) == (1.0, Verdict.OK)
    wait_until(lambda: int(slow.reason) not in {process.pid for process in processes()})
    assert ask(pool, "right").status is Verdict.OK


def test_killed_workers_are_reaped_and_with_them_what_they_started(make_pool: Any, tmp_path: Path) -> None:
    pool = make_pool(timeout_s=0.5)
    started = tmp_path / "pid"
    assert {ask(pool, "spin").status, ask(pool, "child", {"file": str(started)}).status} == {Verdict.TIMEOUT}
    assert zombies() <= {int(started.read_text())}
    wait_until(lambda: not psutil.pid_exists(int(started.read_text())))
    wait_until(lambda: not zombies())


def test_nothing_outlives_a_closed_pool() -> None:
    before = {process.pid for process in processes()}
    pool = VerifierPool(RewardConfig(function="planted_rewards:obey", workers=2, timeout_s=3600))
    calls = [pool.submit(TASK, response) for response in ("right", "power", "spin", "right")]
    assert calls[3].result(DEADLINE_S).status is Verdict.OK
    family = [process for process in processes() if process.pid not in before]
    assert len(family) >= 4  # the nursery, two that hang, one that answers
    pool.close_blocking()
    assert [process for process in family if process.is_running()] == []
    assert {call.result(DEADLINE_S).status for call in calls[1:3]} == {Verdict.ERROR}


def test_each_verdict_reaches_its_own_call_whatever_happens_around_it(make_pool: Any) -> None:
    pool = make_pool(workers=2, timeout_s=1.0)
    odd = {7: "exit", 20: "spin", 33: "garbage", 41: "kill", 50: "fork", 60: "close"}
    calls = [pool.submit(TASK, odd.get(i, f"say {i}")) for i in range(100)]
    scores = [call.result(DEADLINE_S) for call in calls]
    assert [score.reason for i, score in enumerate(scores) if i not in odd] == [str(i) for i in range(100) if i not in odd]
    found = {i: scores[i].status for i in odd}
    assert found == dict.fromkeys(odd, Verdict.ERROR) | {20: Verdict.TIMEOUT, 50: Verdict.OK}


def test_garbage_is_named_and_the_worker_replaced(make_pool: Any) -> None:
    pool = make_pool()
    assert ask(pool, "garbage").reason == "the worker's answer cannot be read"
    assert ask(pool, "right").status is Verdict.OK


def test_an_answer_with_the_number_of_another_call_is_no_answer(make_pool: Any) -> None:
    pool = make_pool(workers=1)
    ask(pool, "right")  # call 1
    assert ask(pool, "forge", {"forged": 3}).reason == "the worker's answer cannot be read"
    assert ask(pool, "half").reward == 0.5


@pytest.mark.parametrize("text", ["x" * 2**20, "\ud800 lone \udfff", "\x00", "\u202e١٢", ""])
def test_any_text_arrives_as_it_was_sent(make_pool: Any, text: str) -> None:
    pool = make_pool()
    assert ask(pool, "length", {"text": text}).reward == len(text)
    assert ask(pool, f"say {text}").reason == text[:300]  # a reason is cut there


def test_a_cancelled_call_that_waits_is_never_run_and_one_that_runs_frees_its_worker(make_pool: Any, tmp_path: Path) -> None:
    pool = make_pool(timeout_s=3600)
    ask(pool, "right")
    running: Future[Score] = pool.submit({"file": str(tmp_path / "running")}, "report")
    wait_until((tmp_path / "running").exists)
    wait_until(lambda: (tmp_path / "running").read_text())
    pid = int((tmp_path / "running").read_text())
    assert running.cancel()
    wait_until(lambda: not psutil.pid_exists(pid))
    assert ask(pool, "right").status is Verdict.OK


def test_a_pool_whose_nursery_is_killed_asks_again(make_pool: Any) -> None:
    pool = make_pool(timeout_s=3600)
    nursery = psutil.Process().children()
    (own,) = [process for process in nursery if "nursery" in " ".join(process.cmdline())]
    napping = pool.submit({"nap_s": 0.5}, "nap")
    own.kill()
    assert napping.result(DEADLINE_S).status is Verdict.OK
    assert ask(pool, "right").status is Verdict.OK


def test_what_a_reward_function_has_started_ends_with_a_nursery_that_is_killed(make_pool: Any, tmp_path: Path) -> None:
    pool = make_pool(timeout_s=3600)
    (own,) = [process for process in psutil.Process().children() if "nursery" in " ".join(process.cmdline())]
    started = tmp_path / "pid"
    call = pool.submit({"file": str(started)}, "child")
    wait_until(lambda: started.exists() and started.read_text())
    child = psutil.Process(int(started.read_text()))
    own.kill()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    call.cancel()


def test_many_threads_and_loops_share_a_pool(make_pool: Any) -> None:
    pool = make_pool(workers=2)
    found: dict[int, list[str]] = {}

    def use(number: int) -> None:
        async def run() -> list[str]:
            scores = await asyncio.gather(*(pool.score(TASK, f"say {number} {i}") for i in range(10)))
            return [score.reason for score in scores]

        found[number] = asyncio.run(run())

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert found == {number: [f"{number} {i}" for i in range(10)] for number in range(4)}


def test_a_script_without_a_guard_is_not_run_again_in_the_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import asyncio
        print("once", flush=True)
        from common.config import RewardConfig
        from common.rewards.pool import VerifierPool

        async def main():
            pool = VerifierPool(RewardConfig(function="planted_rewards:obey", workers=2))
            print((await pool.score({}, "right")).status)
            await pool.close()

        asyncio.run(main())
        """)
    )
    path = os.pathsep.join([str(Path(__file__).parents[4]), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("once\nok\n", 0), done.stderr


def test_a_pool_that_was_closed_says_so() -> None:
    pool = VerifierPool(RewardConfig())
    pool.close_blocking()
    with pytest.raises(RunError, match="closed"):
        pool.submit(TASK, "right")


def test_thresholds_follow_the_calls_before() -> None:
    known = Clocks(limit_s=1.5, is_known=True)
    assert (known.overdue_s, known.demote_s, known.enough_s) == pytest.approx((OVERDUE_S, DEMOTE_S, HANG_S))
    clocks = Clocks(limit_s=1.5, is_known=False)
    assert (clocks.overdue_s, clocks.demote_s) == pytest.approx((0.3, 0.3))
    for _ in range(200):
        clocks.note(0.001, 0.001)
    assert (clocks.overdue_s, clocks.demote_s) == (OVERDUE_S, DEMOTE_S)
    for _ in range(20):
        clocks.note(3.0, 2.5)
    assert (clocks.overdue_s, clocks.demote_s) == (3.0, 5.0)


def test_an_answer_in_pieces_is_read_and_one_of_absurd_length_is_refused() -> None:
    import socket

    from common.rewards.worker import FRAME

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        worker = Worker(number=1, channel=ours, state=State.IDLE)
        worker.give(Call(number=5, body=b"call"), 0.0)
        assert theirs.recv(100) == FRAME.pack(4, 5) + b"call"
        frame = FRAME.pack(4, 5) + b"[17]"
        theirs.send(frame[:7])
        assert worker.answers() == []
        theirs.send(frame[7:])
        assert worker.answers() == [(5, [17])]
        theirs.send(FRAME.pack(2**31, 5))
        with pytest.raises(BrokenAnswerError):
            worker.answers()
