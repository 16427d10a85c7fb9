"""The processes of a trainer on real Ray actors, whatever its framework: shares, threads, failures."""

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.config import Config
from common.errors import DataError, TrainerError, UsageError
from common.ranks import Ranks

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_runtime", "planted_room")]


@pytest.fixture
def planted_room(monkeypatch):
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)


@asynccontextmanager
async def started(logs, num_processes):
    config = Config(model={"path": "unused"})
    ranks = Ranks("planted_room", config, Path("unused"), logs, num_processes=num_processes, gpus_per_process=0)
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


def test_the_one_that_died_is_named(tmp_path):
    async def scenario():
        async with started(tmp_path, 2) as ranks:
            with pytest.raises(TrainerError, match=r"trainer rank 1 died; see .*rank-1\.log"):
                await ranks.call("die")

    asyncio.run(scenario())


def test_ray_must_run(tmp_path, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(UsageError, match="needs Ray to run"):
        Ranks("planted_room", Config(model={"path": "m"}), tmp_path, tmp_path, num_processes=1, gpus_per_process=0)
