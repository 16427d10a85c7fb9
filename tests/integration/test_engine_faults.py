"""Real vLLM engines that are killed in a round: replaced, with the right weights, and probed. Six engine starts, so slow."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from round_lab import RecordingTrainer

from common.config import Config
from common.keeper import Keeper
from common.pool import Pool
from common.publish import Publisher
from common.rollout_side import Parts
from common.round import Round, RoundResult
from common.spool import model_layout
from common.testing import FakeVerifier, make_problems
from common.timeline import Event, Timeline
from rolloutpipe_torch.placing import Placing
from rolloutpipe_torch.rollout.pool import RemoteEngine, start_engine, start_pool
from tests.integration.tiny_models import largest_gap, tiny_model, write_spool

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

MAX_MODEL_LEN = 256
SAME = 1e-4


class ModelTrainer(RecordingTrainer):
    """Trains nothing, and answers with the weights of one of several models."""

    def __init__(self, models: Sequence[Any]) -> None:
        super().__init__(seconds=lambda group: 0.05, finish_s=0.05)
        self.models, self.number = models, 0

    async def export_weights(self, spool: Path, version: int) -> None:
        write_spool(self.models[self.number], spool, version)

    async def logprobs(self, sequences: Any, temperature: float) -> list[list[float]]:
        found = []
        for prompt_ids, token_ids in sequences:
            ids = torch.tensor([[*prompt_ids, *token_ids]])
            with torch.no_grad():
                logits = self.models[self.number](ids).logits[0].float()
            logprobs = torch.log_softmax(logits / temperature, dim=-1)
            first = len(prompt_ids) - 1
            found.append([logprobs[first + place, token].item() for place, token in enumerate(token_ids)])
        return found


class Lab:
    """A pool of two replicas with all that keeps it."""

    def __init__(self, config: Config, directory: Path, pool: Pool, models: list[Any]) -> None:
        self.config, self.pool, self.trainer = config, pool, ModelTrainer(models)
        self.events: list[Event] = []
        self.timeline = Timeline(None)
        self.timeline.listen(self.events.append)
        self.publisher = Publisher(
            config,
            engines=pool,
            trainer=self.trainer,
            layout=model_layout(directory / "model-0"),
            spool_root=directory / "spool",
            probe_prompts=[problem.prompt_ids for problem in make_problems(4)],
            timeline=self.timeline,
        )

        placing = Placing(config, ["rollout"])

        async def start(place: int) -> RemoteEngine:
            return await start_engine(config, place, directory / "model-0", directory / "logs", MAX_MODEL_LEN, placing)

        self.keeper = Keeper(config, pool=pool, publisher=self.publisher, start=start, timeline=self.timeline)
        self.keeper.keep()

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["kind"] == kind]

    def engine(self, place: int) -> RemoteEngine:
        engine = self.pool.replicas[place]
        assert isinstance(engine, RemoteEngine)
        return engine

    async def round(self, index: int) -> RoundResult:
        parts = Parts(
            engine=self.pool,
            trainer=self.trainer,
            verifier=FakeVerifier(seconds=0.0),
            decode=str,
            timeline=self.timeline,
            publish=lambda: self.publisher.publish(index + 1, index),
        )
        return await Round(self.config, parts, index=index, version=index).run(make_problems(self.config.groups_per_round))


@asynccontextmanager
async def lab_of(directory: Path) -> AsyncIterator[Lab]:
    models = [tiny_model(directory / f"model-{seed}", seed=seed, tied=True, eos=None) for seed in (0, 1)]
    config = Config.model_validate(
        {
            "model": {"path": str(directory / "model-0")},
            "groups_per_round": 12,
            "responses_per_group": 4,
            "groups_per_update": 2,
            "filter": "keep",
            "sampling": {"max_tokens": 200},
            "rollout": {"replicas": 2, "capacity": 4, "kv_cache_gb": 1},
            "limits": {"publish_timeout_s": 60, "max_retries": 0},
        }
    )
    pool = await start_pool(config, directory / "model-0", directory / "logs", MAX_MODEL_LEN)
    lab = Lab(config, directory, pool, models)
    try:
        yield lab
    finally:
        await lab.keeper.close()
        await pool.close()


def core_of(engine: RemoteEngine) -> int:
    """The child that decodes: the one with the model in memory."""
    return int(max(psutil.Process(engine.pid).children(recursive=True), key=lambda child: child.memory_info().rss).pid)


async def until(condition: Any, limit_s: float = 180.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.05)


def check(lab: Lab, result: RoundResult, model: Any) -> None:
    """Every response of the round comes from the round's weights, whoever sampled it."""
    result.books.check()
    assert (result.books.trained, result.books.dropped, result.books.failed) == (12, 0, 0)
    groups = [group for group in lab.trainer.groups if str(group.group_id).startswith(f"r{result.index}/")]
    samples = [sample for group in groups for sample in group.samples]
    assert len(samples) == len({sample.request.request_id for sample in samples}) == 48
    versions = {(sample.response.version_start, sample.response.version_end) for sample in samples}
    assert versions == {(result.version, result.version)}
    assert largest_gap(model, [s.request for s in samples], [s.response for s in samples], 1.0) < SAME


async def kill_in_round(lab: Lab, index: int, pids: Any) -> tuple[RoundResult, list[int]]:
    """A round in which `pids` are killed as soon as something is under way; waits for the replacement."""
    task = asyncio.create_task(lab.round(index))
    await until(lambda: any(event["round"] == index for event in lab.of("response")))
    killed = pids()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    num_recovered = len(lab.of("recovered")) + len(killed)
    result = await task
    await until(lambda: len(lab.of("recovered")) >= num_recovered)
    return result, killed


def test_killed_engines_are_replaced_with_the_version_of_the_round(ray_runtime: None, tmp_path: Path) -> None:
    async def test() -> list[Event]:
        async with lab_of(tmp_path) as lab:
            models = lab.trainer.models
            await lab.publisher.publish(0)
            first = lab.engine(0)
            result, _ = await kill_in_round(lab, 0, lambda: [first.pid])
            check(lab, result, models[0])
            assert lab.engine(0) is not first and not psutil.pid_exists(first.pid)
            lab.trainer.number = 1
            await lab.publisher.publish(2)
            lab.pool.version = 2
            second = lab.engine(1)
            result, (core,) = await kill_in_round(lab, 2, lambda: [core_of(second)])
            check(lab, result, models[1])
            assert lab.engine(1) is not second and not psutil.pid_exists(core)
            await until(lambda: not psutil.pid_exists(second.pid), 30)
            result, _ = await kill_in_round(lab, 3, lambda: [lab.engine(0).pid, core_of(lab.engine(1))])
            check(lab, result, models[1])
            health = await lab.pool.health()
            assert [(state.is_alive, state.weight_version) for state in health] == [(True, 4), (True, 4)]
            return lab.events

    events = asyncio.run(test())
    faults = [event for event in events if event["kind"] == "fault"]
    assert [event["part"] for event in faults][:2] == ["engine-0", "engine-1"]
    assert sorted(event["part"] for event in faults[2:]) == ["engine-0", "engine-1"]
    assert "EngineCore" in faults[1]["detail"] and "\n" not in faults[0]["detail"]
