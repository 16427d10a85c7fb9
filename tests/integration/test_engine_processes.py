"""Processes of the rollout pool, without vLLM: started, killed, stopped, replaced, and none left behind."""

import asyncio
import os
import signal
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.config import Config
from common.errors import EngineError
from common.keeper import Keeper
from common.pool import Pool
from common.publish import Publisher
from common.records import Request, Sampling
from common.spool import SpoolWriter
from common.testing import FakeTrainer
from common.testing.fakes import FAKE_LAYOUT
from common.timeline import Event, Timeline
from rolloutpipe_torch.placing import Placing
from rolloutpipe_torch.rollout import pool as pool_room
from tests.integration.planted_engine import PlantedEngine

pytestmark = pytest.mark.ray


class Trainer(FakeTrainer):
    """Agrees with whatever the planted engines answer."""

    async def export_weights(self, spool: Path, version: int) -> None:
        with SpoolWriter(spool, version) as writer:
            writer.add("w", "float32", (1,), struct.pack("<f", version))

    async def logprobs(self, sequences: Any, temperature: float) -> list[list[float]]:
        return [[-0.5] * len(tokens) for _, tokens in sequences]


class Lab:
    """A pool of planted engines and its keeper."""

    def __init__(self, config: Config, root: Path, pool: Pool) -> None:
        self.pool, self.root, self.events = pool, root, list[Event]()
        timeline = Timeline(None)
        timeline.listen(self.events.append)
        parts: dict[str, Any] = {"trainer": Trainer(), "layout": FAKE_LAYOUT, "probe_prompts": [(1,)], "timeline": timeline}
        self.publisher = Publisher(config, engines=pool, spool_root=root / "spool", **parts)

        placing = Placing(config, ["rollout"])

        async def start(place: int) -> Any:
            return await pool_room.start_engine(config, place, root, root / "logs", 64, placing)

        self.keeper = Keeper(config, pool=pool, publisher=self.publisher, start=start, timeline=timeline)
        self.keeper.keep()

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["kind"] == kind]


def config_with(options: dict[str, Any], **settings: Any) -> Config:
    rollout = {"replicas": 2, "capacity": 2, "engine_options": options}
    return Config.model_validate({"model": {"path": "unused"}, "rollout": rollout, **settings})


async def start(config: Config, root: Path, min_replicas: int | None) -> Pool:
    return await pool_room.start_pool(config, root, root / "logs", 64, min_replicas=min_replicas)


@asynccontextmanager
async def lab_of(config: Config, root: Path, min_replicas: int | None = None) -> AsyncIterator[Lab]:
    lab = Lab(config, root, await start(config, root, min_replicas))
    try:
        yield lab
    finally:
        await lab.keeper.close()
        await lab.pool.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(200):
        while not condition():
            await asyncio.sleep(0.02)


def pids_of(root: Path) -> list[int]:
    """Of all engines that were ever started."""
    return [int(line) for log in (root / "logs").glob("engine-*.log") for line in log.read_text().split()]


@pytest.fixture(autouse=True)
def planted(ray_runtime: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_room, "ENGINE_CLASS", PlantedEngine)
    monkeypatch.setattr(pool_room, "_model_bytes", lambda *_: 0)


async def check_none_left(root: Path) -> None:
    await until(lambda: not any(psutil.pid_exists(pid) for pid in pids_of(root)))


def test_killed_and_stopped_engines_are_replaced(tmp_path: Path) -> None:
    """One by SIGKILL, noticed at once; one by SIGSTOP: its process lives and says nothing, until it is killed for that."""

    async def test() -> None:
        async with lab_of(config_with({}, supervision={"silent_s": 2, "pause_s": 0}), tmp_path) as lab:
            await lab.publisher.publish(3)
            killed, stopped = lab.pool.engines
            request = Request(request_id="a", group_id="g", order=0)
            task = asyncio.create_task(lab.pool.generate(request, Sampling()))
            os.kill(stopped.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
            os.kill(killed.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            with pytest.raises(EngineError, match="died"):
                await task
            await until(lambda: len(lab.of("recovered")) == 2)
            assert {event["part"] for event in lab.of("fault")} == {"engine-0", "engine-1"}
            assert "it has not answered for supervision.silent_s (2 s)" in [event["detail"] for event in lab.of("fault")]
            health = await lab.pool.health()
            assert [(state.is_alive, state.weight_version) for state in health] == [(True, 3), (True, 3)]
            assert (await lab.pool.generate(request, Sampling())).version_end == 3
            await until(lambda: not psutil.pid_exists(stopped.pid))  # type: ignore[attr-defined]
        await check_none_left(tmp_path)
        assert len(pids_of(tmp_path)) == 4

    asyncio.run(test())


def test_the_run_starts_with_min_replicas_and_the_others_join(tmp_path: Path) -> None:
    async def test() -> None:
        config = config_with({"slow": {"engine-0": 4.0}})
        async with lab_of(config, tmp_path, min_replicas=1) as lab:
            assert list(lab.pool.replicas) == [1] and lab.pool.is_recovering
            await lab.publisher.publish(0)
            assert list(lab.pool.replicas) == [1]
            await until(lambda: not lab.pool.is_recovering)
            assert list(lab.pool.replicas) == [0, 1] and not lab.of("fault")
            assert [state.weight_version for state in await lab.pool.health()] == [0, 0]
        await check_none_left(tmp_path)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("options", "limits", "message"),
    [
        ({"broken": ["engine-1"], "slow": {"engine-0": 60}}, {}, "planted failure of the start; see .*engine-1.log"),
        ({"slow": {"engine-0": 60, "engine-1": 60}}, {"start_timeout_s": 4}, "not started within limits.start_timeout_s = 4 s"),
    ],
)
def test_a_start_that_fails_leaves_none(tmp_path: Path, options: dict[str, Any], limits: dict[str, Any], message: str) -> None:
    async def test() -> None:
        with pytest.raises(EngineError, match=message):
            await start(config_with(options, limits=limits), tmp_path, None)
        await check_none_left(tmp_path)

    asyncio.run(test())
