"""The processes of a trainer on real Ray actors, whatever its framework: shares, threads, failures."""

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.config import Config
from common.errors import ConfigError, DataError, TrainerDiedError, TrainerError, UsageError
from common.ranks import Ranks, local_options

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_runtime", "planted_room")]


@pytest.fixture
def planted_room(monkeypatch):
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)


def options(process):
    return local_options(0)


@asynccontextmanager
async def started(logs, num_processes):
    config = Config(model={"path": "unused"})
    ranks = Ranks("planted_room", config, Path("unused"), logs, num_processes=num_processes, options=options)
    try:
        await ranks.join(60)
        yield ranks
    finally:
        ranks.close()


def test_a_room_is_driven_by_as_many_processes_as_it_wants(tmp_path):
    async def scenario():
        async with started(tmp_path, 2) as ranks:
            assert await ranks.call("who") == [(0, 2), (1, 2)]
            assert len(set(ranks.pids())) == 2
            assert await ranks.call("met") == [("127.0.0.1", "127.0.0.1")] * 2  # the configuration asks for no other address
            assert await ranks.scatter("deal", list("abcde"), "!") == ["0a!", "0b!", "1c!", "1d!", "1e!"]
            assert await ranks.scatter("deal", ["a"], "!") == ["1a!"]  # the first process is called too, with none
            assert await ranks.scatter("take", list("abcd"), "!") == []
        for call in (ranks.call("who"), ranks.scatter("deal", ["a"], "!"), ranks.call_in_background("who")):
            with pytest.raises(TrainerError, match="the trainer is closed"):
                await call

    asyncio.run(scenario())


def test_a_call_in_the_background_takes_long_while_others_go_on_in_their_own_thread(tmp_path):
    async def scenario():
        async with started(tmp_path, 1) as ranks:
            before = await ranks.call("thread")
            waiting = asyncio.ensure_future(ranks.call_in_background("wait_for", tmp_path / "now"))
            during = [await ranks.call("thread") for _ in range(5)]
            assert not waiting.done()
            (tmp_path / "now").touch()
            assert await waiting != before
            assert [*during, await ranks.call("thread")] == [before] * 6  # what a framework sets for its thread holds
            with pytest.raises(DataError, match="bad input"):
                await ranks.call_in_background("refuse")
            assert await ranks.call("who") == [(0, 1)]  # bad input is no failure of the rank

    asyncio.run(scenario())


def test_a_failure_in_the_background_is_told_and_other_calls_go_on(tmp_path):
    async def scenario():
        async with started(tmp_path, 1) as ranks:
            (tmp_path / "now").write_text("disk full")
            with pytest.raises(TrainerError, match=r"trainer rank 0 failed with OSError: disk full; see .*rank-0\.log"):
                await ranks.call_in_background("wait_for", tmp_path / "now")
            assert await ranks.call("who") == [(0, 1)]

    asyncio.run(scenario())


def test_a_failure_is_the_cause_told_by_every_later_call_and_by_what_waits_in_the_background(tmp_path):
    async def scenario():
        async with started(tmp_path, 1) as ranks:
            waiting = asyncio.ensure_future(ranks.call_in_background("wait_for", tmp_path / "never"))
            other = asyncio.ensure_future(ranks.call("wait_for", tmp_path / "now"))
            await asyncio.sleep(0)
            (tmp_path / "now").write_text("disk full")
            for call in (other, waiting, ranks.call("who")):
                with pytest.raises(TrainerError, match=r"trainer rank 0 failed with OSError: disk full; see .*rank-0\.log"):
                    await call

    asyncio.run(scenario())


async def still_watching(watch):
    await asyncio.sleep(0.2)
    assert not watch.done(), watch
    return watch


async def gone(pid):
    """Until the process has ended; Ray kills one that does not answer it after 5 s."""
    async with asyncio.timeout(30):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            await asyncio.sleep(0.05)


def test_the_one_that_died_is_named_and_its_death_is_a_death(tmp_path):
    async def scenario():
        async with started(tmp_path, 2) as ranks:
            with pytest.raises(TrainerDiedError, match=r"^trainer rank 1 died \(.*exit.*\); see .*rank-1\.log$"):
                await ranks.call("die")

    asyncio.run(scenario())


def test_who_watches_again_and_again_leaves_nothing_in_the_processes(tmp_path):
    """Once a round: a call that never returns and is not taken back stays in Ray for good (it was 50 KB a round)."""

    async def scenario():
        async with started(tmp_path, 1) as ranks:
            calls = set()
            for _ in range(20):
                watch = await still_watching(asyncio.ensure_future(ranks.watch()))
                calls.add(ranks._end)
                watch.cancel()
            assert len(calls) == 1 and not calls.pop().done()

    asyncio.run(scenario())


def test_a_failure_that_would_repeat_itself_is_no_death(tmp_path):
    async def scenario():
        async with started(tmp_path, 1) as ranks:
            watch = asyncio.ensure_future(ranks.watch())
            (tmp_path / "now").write_text("disk full")
            for call in (ranks.call("wait_for", tmp_path / "now"), watch, ranks.watch()):
                with pytest.raises(TrainerError, match="rank 0 failed with OSError: disk full") as caught:
                    await asyncio.wait_for(call, 30)
                assert not isinstance(caught.value, TrainerDiedError)

    asyncio.run(scenario())


def test_a_process_that_cannot_be_made_is_no_death(tmp_path):
    async def scenario():
        ranks = Ranks("no_such_room", Config(model={"path": "m"}), tmp_path, tmp_path, num_processes=1, options=options)
        with pytest.raises(TrainerError, match=r"rank 0 failed to start: ModuleNotFoundError: .*no_such_room.*; see") as caught:
            await ranks.join(60)
        assert not isinstance(caught.value, TrainerDiedError)

    asyncio.run(scenario())


@pytest.mark.parametrize("busy", [False, True])
def test_a_watch_sees_a_kill_at_once_whether_a_call_runs_or_not(tmp_path, busy):
    async def scenario():
        async with started(tmp_path, 2) as ranks:
            watch = await still_watching(asyncio.ensure_future(ranks.watch()))
            assert await ranks.call("who") == [(0, 2), (1, 2)]  # ordinary calls go on beside it
            pids = ranks.pids()
            other = asyncio.ensure_future(ranks.call("wait_for", tmp_path / "never")) if busy else None
            await still_watching(watch)
            os.kill(pids[1], signal.SIGKILL)
            with pytest.raises(TrainerDiedError, match=r"^trainer rank 1 died \(.+\); see .*rank-1\.log$"):
                await asyncio.wait_for(watch, 10)  # the grace of a failed call is 3 s, and its own limit 30 s
            if other is not None:
                with pytest.raises(TrainerDiedError, match="rank 1 died"):
                    await asyncio.wait_for(other, 10)
            with pytest.raises(TrainerDiedError, match="rank 1 died"):
                await ranks.call("who")
            await gone(pids[0])  # its sums are worthless

    asyncio.run(scenario())


def test_all_start_anew_after_a_death_and_after_one_hangs(tmp_path):
    async def scenario():
        async with started(tmp_path, 2) as ranks:
            before = ranks.pids()
            stale = await still_watching(asyncio.ensure_future(ranks.watch()))
            os.kill(before[0], signal.SIGSTOP)
            hanging = asyncio.ensure_future(ranks.call("who"))
            await asyncio.sleep(0.2)
            hanging.cancel()
            await ranks.restart()
            after = ranks.pids()
            assert not set(before) & set(after)
            for pid in before:
                await gone(pid)
            with pytest.raises(TrainerError):
                await asyncio.wait_for(stale, 10)
            assert await ranks.call("who") == [(0, 2), (1, 2)]  # which the old watch's end has not harmed
            watch = await still_watching(asyncio.ensure_future(ranks.watch()))
            os.kill(after[0], signal.SIGKILL)
            with pytest.raises(TrainerDiedError, match="rank 0 died"):
                await asyncio.wait_for(watch, 10)
            await ranks.restart()
            assert await ranks.scatter("deal", list("abcd"), "!") == ["0a!", "0b!", "1c!", "1d!"]
            assert await ranks.call_in_background("who") == [(0, 2), (1, 2)]

    asyncio.run(scenario())


def test_stacks_go_to_the_log_of_a_process_that_waits(tmp_path):
    async def scenario():
        async with started(tmp_path, 1) as ranks:
            waiting = asyncio.ensure_future(ranks.call("wait_for", tmp_path / "now"))
            (pid,) = await ranks.call_in_background("process")
            log, deadline = tmp_path / "trainer-rank-0.log", time.monotonic() + 30
            while "in wait_for" not in log.read_text():  # the two calls may begin in either order
                assert time.monotonic() < deadline, log.read_text()
                os.kill(pid, signal.SIGUSR1)
                await asyncio.sleep(0.2)
            (tmp_path / "now").touch()
            await waiting  # it goes on

    asyncio.run(scenario())


def test_on_a_cluster_they_meet_on_the_interface_that_the_configuration_names(tmp_path):
    async def scenario(host):
        config = Config(model={"path": "m"}, cluster={"address": "10.0.0.5:6379", "host": host})
        ranks = Ranks("planted_room", config, Path("unused"), tmp_path, num_processes=1, options=options)
        try:
            await ranks.join(60)
            return await ranks.call("met")
        finally:
            ranks.close()

    rule = r"cluster\.host: must be a network interface .* has .*lo \(127\.0\.0\.1\)"
    with pytest.raises(ConfigError, match=rf"{rule}, got 'nowhere0'"):
        asyncio.run(scenario("nowhere0"))
    assert asyncio.run(scenario("lo")) == [("127.0.0.1", "127.0.0.1")]


def test_ray_must_run(tmp_path, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(UsageError, match="needs Ray to run"):
        Ranks("planted_room", Config(model={"path": "m"}), tmp_path, tmp_path, num_processes=1, options=options)
