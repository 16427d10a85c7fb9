"""The verifier pool: whatever a response makes the scorer do, a verdict comes back and the worker's place is filled again."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.config import RewardConfig
from common.errors import ConfigError, RunError
from common.protocols import Score, Verifier
from common.records import Verdict
from common.rewards.pool import VerifierPool

FUNCTION = "planted_rewards:obey"
DEADLINE_S = 30  # only so that a broken pool fails the test instead of hanging it
TASK: dict[str, Any] = {"workload": "any"}


def with_pool(use: Callable[[VerifierPool], Awaitable[Any]], log: Path | None = None, **settings: Any) -> Any:
    """Run `use` on a pool of the planted function, under a deadline."""

    async def run() -> Any:
        pool = VerifierPool(RewardConfig(**{"function": FUNCTION, "timeout_s": 0.5, "workers": 1, **settings}), log=log)
        try:
            await pool.start()
            return await asyncio.wait_for(use(pool), DEADLINE_S)
        finally:
            await pool.close()

    return asyncio.run(run())


def ask(*responses: str, task: dict[str, Any] = TASK, **settings: Any) -> list[Score]:
    """Score one after the other on one worker."""

    async def use(pool: VerifierPool) -> list[Score]:
        return [await pool.score(task, response) for response in responses]

    return with_pool(use, **settings)


def test_the_pool_keeps_the_protocol() -> None:
    assert isinstance(VerifierPool(RewardConfig()), Verifier)


def test_rewards_of_a_users_function_are_kept_as_scored() -> None:
    right, half, negative = ask("right", "half", "negative")
    assert (right.reward, right.status) == (1.0, Verdict.OK)
    assert (half.reward, half.status, half.reason) == (0.5, Verdict.WRONG, "half a point")
    assert (negative.reward, negative.status) == (-2.5, Verdict.WRONG)


@pytest.mark.parametrize("response", ["spin", "power"])
def test_a_hang_is_a_timeout_with_reward_0_and_the_next_call_works(response: str) -> None:
    hung, after = ask(response, "right")
    assert (hung.reward, hung.status) == (0.0, Verdict.TIMEOUT)
    assert hung.reason == f"{FUNCTION} gave no verdict within 0.5 s"
    assert after.status is Verdict.OK


@pytest.mark.parametrize(
    ("response", "cause"),
    [("exit", "exit code 3"), ("exit 0", "exit code 0"), ("kill", "signal SIGKILL"), ("segfault", "signal SIGSEGV")],
)
def test_a_dead_worker_is_an_error_without_reward_and_the_next_call_works(response: str, cause: str) -> None:
    dead, after = ask(response, "right", timeout_s=20)
    assert (dead.reward, dead.status) == (None, Verdict.ERROR)
    assert cause in dead.reason
    assert after.status is Verdict.OK


@pytest.mark.parametrize("response", ["memory", "swallow"])
def test_running_out_of_memory_is_the_answers_doing(response: str) -> None:
    full, after = ask(response, "right", memory_mb=64, timeout_s=20)
    assert (full.reward, full.status) == (0.0, Verdict.TIMEOUT)
    assert "memory" in full.reason
    assert after.status is Verdict.OK


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("raise", f"{FUNCTION} raised ValueError: two lines"),
        ("sys.exit", f"{FUNCTION} raised SystemExit: bye"),
        ("timeout error", f"{FUNCTION} raised TimeoutError: mine"),
        ("nan", f"{FUNCTION} returned nan (float) where a finite number is due"),
        ("inf", f"{FUNCTION} returned inf (float) where a finite number is due"),
        ("text", f"{FUNCTION} returned '1.0' (str) where a finite number is due"),
        ("none", f"{FUNCTION} returned None (NoneType) where a finite number is due"),
        ("no such command", f"{FUNCTION} raised KeyError: 'no such command'"),
    ],
)
def test_a_scorer_that_fails_is_an_error_with_its_one_line(response: str, reason: str) -> None:
    (score,) = ask(response)
    assert (score.reward, score.status, score.reason) == (None, Verdict.ERROR, reason)


def test_a_task_that_cannot_travel_is_an_error() -> None:
    (score,) = ask("right", task={"workload": lambda: None})
    assert score.status is Verdict.ERROR


def test_one_hang_among_64_calls_holds_up_nobody_for_long() -> None:
    async def use(pool: VerifierPool) -> list[Score]:
        return await asyncio.gather(*(pool.score(TASK, "spin" if i == 5 else "right") for i in range(64)))

    scores = with_pool(use, workers=2)
    assert [score.status for score in scores] == [Verdict.TIMEOUT if i == 5 else Verdict.OK for i in range(64)]


def test_the_time_limit_counts_from_when_a_worker_takes_the_call() -> None:
    # Six naps of 0.3 s on one worker: the last starts 1.5 s after it was asked for, far beyond the limit of 1 s.
    async def use(pool: VerifierPool) -> list[Score]:
        return await asyncio.gather(*(pool.score({"nap_s": 0.3}, "nap") for _ in range(6)))

    assert {score.status for score in with_pool(use, timeout_s=1.0)} == {Verdict.OK}


def test_scoring_works_on_a_worker_threads_event_loop() -> None:
    found: list[list[Score]] = []
    thread = threading.Thread(target=lambda: found.append(ask("right", "spin", "right")))
    thread.start()
    thread.join(DEADLINE_S)
    assert [score.status for score in found[0]] == [Verdict.OK, Verdict.TIMEOUT, Verdict.OK]


def test_a_worker_killed_between_calls_is_replaced() -> None:
    async def use(pool: VerifierPool) -> Score:
        worker = psutil.Process(int((await pool.score(TASK, "pid")).reason))
        worker.kill()
        while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)
        return await pool.score(TASK, "right")

    assert with_pool(use, timeout_s=5).status is Verdict.OK


def test_a_cancelled_call_frees_its_worker(tmp_path: Path) -> None:
    started = tmp_path / "pid"

    async def use(pool: VerifierPool) -> Score:
        call = asyncio.create_task(pool.score({"file": str(started)}, "report"))
        while not started.exists():
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return await pool.score(TASK, "right")

    assert with_pool(use, timeout_s=3600).status is Verdict.OK


def test_closing_answers_those_who_wait_leaves_no_worker_and_may_be_repeated(tmp_path: Path) -> None:
    started = tmp_path / "pid"

    async def use(pool: VerifierPool) -> tuple[list[Score], int]:
        # More calls, with more text, than the pipe to the worker holds.
        task = {"file": str(started), "text": "x" * 10_000}
        calls = [asyncio.create_task(pool.score(task, "report")) for _ in range(64)]
        while not (started.exists() and started.read_text()):
            await asyncio.sleep(0.01)
        await pool.close()
        await pool.close()
        with pytest.raises(RunError, match="closed"):
            await pool.score(TASK, "right")
        return await asyncio.gather(*calls), int(started.read_text())

    scores, pid = with_pool(use, timeout_s=3600)
    assert {score.status for score in scores} == {Verdict.ERROR}
    assert not psutil.pid_exists(pid)


def test_workers_ignore_ctrl_c() -> None:
    (score,) = ask("interrupt")
    assert score.status is Verdict.OK


def test_output_of_a_reward_function_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "verifier.log"

    async def use(pool: VerifierPool) -> Score:
        return await pool.score(TASK, "print")

    with_pool(use, log=log)
    assert "a line from the reward function" in log.read_text()
    assert "a complaint" in log.read_text()


def test_a_bad_function_fails_the_start_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"rewards\.function: module planted_rewards must define missing"):
        ask("right", function="planted_rewards:missing")


@pytest.mark.parametrize(
    ("body", "message"),
    [("import time; time.sleep(3600)", "no worker was ready within 1 s"), ("import os; os._exit(3)", "ended")],
)
def test_a_function_whose_import_never_ends_or_kills_fails_the_start(body: str, message: str, tmp_path: Path) -> None:
    name = f"import_{message.split()[0]}"
    (tmp_path / f"{name}.py").write_text(body)

    async def run() -> None:
        pool = VerifierPool(RewardConfig(function=f"{name}:score"))
        with pytest.raises(RunError, match=message):
            await pool.start(deadline_s=1)
        await pool.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        asyncio.run(run())


def test_workers_that_cannot_be_started_fail_the_start_with_the_cause(tmp_path: Path) -> None:
    """Here the log's directory is missing; no free file or process is the same."""

    async def run() -> None:
        pool = VerifierPool(RewardConfig(function=FUNCTION), log=tmp_path / "missing" / "verifier.log")
        with pytest.raises(RunError, match="FileNotFoundError"):
            await pool.start(DEADLINE_S)
        with pytest.raises(RunError, match="FileNotFoundError"):
            await asyncio.wait_for(pool.score(TASK, "right"), DEADLINE_S)
        await pool.close()

    asyncio.run(run())


DRIVER = """
import asyncio, sys
from common.config import RewardConfig
from common.rewards.pool import VerifierPool

async def main():
    pool = VerifierPool(RewardConfig(function="planted_rewards:obey", workers=2, timeout_s=3600))
    idle = int((await pool.score({}, "pid")).reason)
    hung = asyncio.create_task(pool.score({"file": sys.argv[1]}, "report"))
    print("ready", idle, flush=True)
    await hung

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_workers_die_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    script, started = tmp_path / "driver.py", tmp_path / "pid"
    script.write_text(DRIVER)
    root = Path(__file__).parents[4]
    path = os.pathsep.join([str(root), str(Path(__file__).parent)])
    driver = subprocess.Popen(
        [sys.executable, str(script), str(started)], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    with driver, driver.stdout:
        driver.stdout.readline()
        wait_until(lambda: started.exists() and started.read_text() != "")
        family = psutil.Process(driver.pid).children(recursive=True)
        assert int(started.read_text()) in {process.pid for process in family}
        driver.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=DEADLINE_S)
    assert alive == []


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
