"""The rollout pool with real vLLM engines, against Hugging Face in float32. One engine start, and one of the slow tests.

Gaps: the same float32 weights in two implementations differ by rounding, about 1e-5 here; other weights by several nats.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.config import Config
from common.errors import EngineDiedError, EngineError, PublishError
from common.pool import Pool
from common.records import FinishReason, Request, Response, Sampling
from common.spool import check_spool, model_layout
from rolloutpipe_torch.rollout.pool import start_pool
from tests.integration import http_server
from tests.integration.planted_receiver import PlantedExtension
from tests.integration.tiny_models import VOCABULARY, largest_gap, tiny_model, tiny_tokenizer, write_spool

pytestmark = [pytest.mark.engine, pytest.mark.ray]

ROOT = Path(__file__).resolve().parents[2]
SAME = 1e-4
OTHER = 0.5
MAX_MODEL_LEN = 512


@dataclass
class Served:
    """A pool of one replica, two sets of weights for it, and the version it serves."""

    pool: Pool
    models: list[Any]
    directory: Path
    version: int = -1

    @property
    def actor(self) -> Any:
        return self.pool.engines[0].actor  # type: ignore[attr-defined]

    def publish(self, index: int) -> None:
        """Weights of models[index] as the next version."""
        version = self.version + 1
        spool = write_spool(self.models[index], self.directory / f"spool-{version}", version)
        check_spool(spool, version, model_layout(self.directory / "model-0"))
        asyncio.run(self.pool.publish(version, spool))
        self.version = version

    def generate(self, requests: list[Request], **sampling: Any) -> list[Response]:
        async def all_of_them() -> list[Response]:
            return await asyncio.gather(*(self.pool.generate(each, Sampling(**sampling)) for each in requests))

        return asyncio.run(all_of_them())

    def gap(self, index: int, requests: list[Request]) -> float:
        return largest_gap(self.models[index], requests, self.generate(requests, max_tokens=24), 1.0)

    def plant(self, function: Any, *arguments: Any) -> Any:
        """Run function(engine, *arguments) inside the actor."""
        import ray

        return ray.get(self.actor.__ray_call__.remote(function, *arguments))

    def started(self) -> list[str]:
        """vLLM's ids of all requests, in the order in which the engine started them."""
        file = self.directory / "started"
        return file.read_text(encoding="utf-8").split() if file.exists() else []


def serve(directory: Path, *, tied: bool, eos: list[int] | None, **options: Any) -> Iterator[Served]:
    models = [tiny_model(directory / f"model-{seed}", seed=seed, tied=tied, eos=eos) for seed in (0, 1)]
    config = Config.model_validate(
        {
            "model": {"path": str(directory / "model-0")},
            "rollout": {"capacity": 32, "engine_options": options},
            "limits": {"publish_timeout_s": 30},
        }
    )
    pool = asyncio.run(start_pool(config, directory / "model-0", directory / "logs", MAX_MODEL_LEN))
    try:
        yield Served(pool, models, directory)
    finally:
        asyncio.run(pool.close())


@pytest.fixture(scope="module")
def fresh_tied(ray_runtime: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With the examples' scheduler and a tokenizer: all else must hold with them too."""
    directory = tmp_path_factory.mktemp("tied")
    tiny_tokenizer(directory / "model-0")
    yield from serve(
        directory,
        tied=True,
        eos=None,
        worker_extension_cls=f"{PlantedExtension.__module__}.{PlantedExtension.__qualname__}",
        scheduler_cls="tests.integration.planted_scheduler.RecordingScheduler",
        additional_config={"started": str(directory / "started")},
        skip_tokenizer_init=False,
    )


@pytest.fixture(scope="module")
def tied(fresh_tied: Served) -> Served:
    """Serves version 0: models[0]."""
    if fresh_tied.version < 0:
        fresh_tied.publish(0)
    return fresh_tied


@pytest.fixture(scope="module")
def untied(ray_runtime: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serves version 0: models[0]; tokens 1 and 2 end a response."""
    for served in serve(tmp_path_factory.mktemp("untied"), tied=False, eos=[1, 2]):
        served.publish(0)
        yield served


def group_of(request_id: str) -> int:
    """Of ids such as `cmpl-r0/g3/m1-0-1b2c3d4e`."""
    return int(request_id.split("/")[1].removeprefix("g"))


def requests(num: int, *, prompt_len: int = 40, same_prompt: bool = False, first_seed: int = 0) -> list[Request]:
    """Groups of four members."""
    return [
        Request(
            request_id=("request", index),
            group_id=index // 4,
            order=index // 4,
            member=index % 4,
            prompt_ids=tuple((7 * (0 if same_prompt else index // 4) + 3 * j) % VOCABULARY for j in range(prompt_len)),
            seed=first_seed + index,
        )
        for index in range(num)
    ]


def test_no_request_is_served_before_version_0(fresh_tied: Served) -> None:
    if fresh_tied.version >= 0:
        pytest.skip("needs the engine before its first publish: run the whole file")
    (state,) = asyncio.run(fresh_tied.pool.health())
    assert (state.is_alive, state.weight_version) == (True, -1)
    with pytest.raises(EngineError, match="publish version 0 before the first request"):
        fresh_tied.generate(requests(1))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_of_a_tied_model_are_those_of_the_distribution_sampled(tied: Served, temperature: float) -> None:
    tied.publish(0)
    batch = requests(16)
    responses = tied.generate(batch, temperature=temperature, max_tokens=48)
    assert largest_gap(tied.models[0], batch, responses, temperature) < SAME
    other_temperature = 0.7 if temperature == 1.0 else 1.0
    assert largest_gap(tied.models[0], batch, responses, other_temperature) > 0.1


def test_new_weights_of_a_tied_model_are_used_head_included(tied: Served) -> None:
    for index in (1, 0, 1):
        tied.publish(index)
        assert tied.gap(index, requests(8)) < SAME


def test_planted_stale_head_would_be_noticed(tied: Served) -> None:
    tied.publish(0)
    tied.plant(plant_stale_head, True)
    try:
        tied.publish(1)
        assert tied.gap(1, requests(8)) > OTHER
    finally:
        tied.plant(plant_stale_head, False)
    tied.publish(1)
    assert tied.gap(1, requests(8)) < SAME


def plant_stale_head(engine: Any, is_planted: bool) -> None:
    # Ray runs this in a thread beside the actor's event loop.
    call = engine._llm.collective_rpc("plant_stale_head", args=(is_planted,))
    asyncio.run_coroutine_threadsafe(call, engine._llm.output_handler.get_loop()).result(10)


def test_prompt_cached_under_old_weights_is_computed_anew(tied: Served) -> None:
    long = requests(4, prompt_len=200, same_prompt=True)
    tied.publish(0)
    assert tied.gap(0, long) < SAME  # fills the prefix cache
    tied.publish(1)
    assert tied.gap(1, long) < SAME


def test_planted_stale_prefix_cache_would_be_noticed(tied: Served) -> None:
    async def nothing() -> None:
        return None

    long = requests(4, prompt_len=200, same_prompt=True)
    tied.publish(0)
    assert tied.gap(0, long) < SAME
    tied.plant(lambda engine: setattr(engine, "_reset_prefix_cache", nothing))
    try:
        tied.publish(1)
        assert tied.gap(1, long) > OTHER
    finally:
        tied.plant(lambda engine: delattr(engine, "_reset_prefix_cache"))
    tied.publish(1)
    assert tied.gap(1, long) < SAME


def test_versions_are_stamped_and_must_rise(tied: Served) -> None:
    tied.publish(0)
    (response,) = tied.generate(requests(1), max_tokens=4)
    assert (response.version_start, response.version_end) == (tied.version, tied.version)
    spool = write_spool(tied.models[1], tied.directory / "old", tied.version)
    for version in (tied.version, 0):
        with pytest.raises(PublishError, match=f"serves weight version {tied.version}; version {version} does not follow"):
            asyncio.run(tied.pool.publish(version, spool))
    assert tied.gap(0, requests(4)) < SAME


def test_faults_before_the_first_weight_leave_the_old_version_served(tied: Served) -> None:
    tied.publish(0)
    with pytest.raises(PublishError, match="manifest cannot be read"):
        asyncio.run(tied.pool.publish(tied.version + 1, tied.directory / "nowhere"))

    async def broken(**_: Any) -> None:
        raise RuntimeError("planted")

    spool = write_spool(tied.models[1], tied.directory / "unused", tied.version + 1)
    tied.plant(lambda engine: setattr(engine._llm, "pause_generation", broken))
    try:
        with pytest.raises(PublishError, match="failed in phase pause: RuntimeError: planted"):
            asyncio.run(tied.pool.publish(tied.version + 1, spool))
    finally:
        tied.plant(lambda engine: delattr(engine._llm, "pause_generation"))
    assert tied.gap(0, requests(4)) < SAME
    tied.publish(1)
    assert tied.gap(1, requests(4)) < SAME


def test_members_differ_and_repeat_bit_for_bit_alone_and_in_a_batch(tied: Served) -> None:
    batch = requests(8, same_prompt=True)
    first = tied.generate(batch, max_tokens=32)
    assert len({response.token_ids for response in first}) == len(batch)
    assert tied.generate(batch, max_tokens=32) == first
    assert tied.generate(batch[5:6], max_tokens=32) == first[5:6]


def test_abort_returns_the_tokens_so_far(tied: Served) -> None:
    long = requests(4, prompt_len=20)

    async def aborted() -> list[Response]:
        tasks = [asyncio.create_task(tied.pool.generate(each, Sampling(max_tokens=480))) for each in long]
        while (await tied.pool.health())[0].num_running < len(long):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        with pytest.raises(PublishError, match="still has 4 requests in flight"):
            await tied.pool.publish(tied.version + 1, tied.directory / f"spool-{tied.version}")
        await tied.pool.abort([each.request_id for each in long])
        return await asyncio.gather(*tasks)

    cut = asyncio.run(aborted())
    assert [response.finish_reason for response in cut] == [FinishReason.ABORT] * len(long)
    assert {(response.version_start, response.version_end) for response in cut} == {(tied.version, tied.version)}
    assert any(response.token_ids for response in cut)
    for short, whole in zip(cut, tied.generate(long, max_tokens=480), strict=True):
        assert len(short.token_ids) < 480
        assert whole.finish_reason == FinishReason.LENGTH
        assert whole.token_ids[: len(short.token_ids)] == short.token_ids


def test_abort_reaches_requests_that_have_only_just_been_sent(tied: Served) -> None:
    async def sent_and_aborted() -> list[Response]:
        tasks = [asyncio.create_task(tied.pool.generate(each, Sampling(max_tokens=480))) for each in requests(32, prompt_len=20)]
        await asyncio.sleep(0)
        await tied.pool.abort([each.request_id for each in requests(32)])
        return await asyncio.gather(*tasks)

    responses = asyncio.run(sent_and_aborted())
    assert {response.finish_reason for response in responses} == {FinishReason.ABORT}
    # Also those without a token, to which vLLM gives no version.
    assert {(response.version_start, response.version_end) for response in responses} == {(tied.version, tied.version)}


def test_giving_up_on_a_request_stops_it_in_the_engine(tied: Served) -> None:
    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await tied.pool.generate(requests(1)[0], Sampling(max_tokens=470))
        deadline = time.monotonic() + 10
        while (await tied.pool.health())[0].num_running and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        assert (await tied.pool.health())[0].num_running == 0

    asyncio.run(give_up())
    tied.publish(0)  # which an engine with requests in flight would refuse


def test_too_long_a_prompt_fails_alone(tied: Served) -> None:
    with pytest.raises(EngineError, match=r"engine-0 lost request .*maximum"):
        tied.generate(requests(1, prompt_len=MAX_MODEL_LEN + 1))
    assert tied.pool.capacity == 32
    assert len(tied.generate(requests(4), max_tokens=4)) == 4


@pytest.fixture(scope="module")
def address(tied: Served) -> str:
    """Of vLLM's own HTTP server around the engine."""
    return str(tied.plant(http_server.serve))


def test_example_gets_whole_groups_out_of_the_real_server(tied: Served, address: str) -> None:
    words = ["--groups=12", "--group-size=4", "--groups-per-update=2", "--slots=8", "--max-tokens=8"]
    num_before = len(tied.started())
    command = [sys.executable, str(ROOT / "examples" / "gate_openai_server.py"), address, "tiny", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "12 groups trained, 0 dropped, 6 updates"
    groups = [line.partition(": ")[2] for line in lines if ": group " in line]
    assert sorted(groups) == sorted(f"group {group}, 4 responses, 32 tokens" for group in range(12))
    # The server may see the eight requests under way in any order, and no later one.
    orders = [group_of(each) for each in tied.started()[num_before:]]
    assert len(orders) == 48
    assert all(order <= (index + 7) // 4 for index, order in enumerate(orders))


def test_plugged_in_scheduler_starts_shuffled_http_requests_group_by_group(tied: Served, address: str) -> None:
    ids = [f"r0/g{group}/m{member}" for group in range(24) for member in range(4)]
    random.Random(0).shuffle(ids)
    num_before = len(tied.started())
    asyncio.run(send_together(tied, address, ids))
    started = tied.started()[num_before:]
    assert sorted(each.split("-")[1] for each in started) == sorted(ids)
    orders = [group_of(each) for each in started]
    assert orders == sorted(orders) != [group_of(each) for each in ids]


async def send_together(tied: Served, address: str, ids: list[str]) -> None:
    """One request each; all are in the engine before the first may start. Three times as many as it has slots."""
    import openai

    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:

        async def send(request_id: str) -> None:
            header = {"X-Request-Id": request_id}
            answer = await client.completions.create(model="tiny", prompt="1+2=", max_tokens=4, extra_headers=header)
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 4

        tied.plant(http_server.hold)
        async with asyncio.TaskGroup() as group:
            for each in ids:
                group.create_task(send(each))
            await asyncio.to_thread(tied.plant, http_server.release, len(ids))


def test_a_signal_writes_the_stacks_of_the_actor_to_its_log(tied: Served) -> None:
    log = tied.directory / "logs" / "engine-0.log"
    size = log.stat().st_size
    os.kill(tied.pool.engines[0].pid, signal.SIGUSR1)  # type: ignore[attr-defined]
    deadline = time.monotonic() + 30
    while "most recent call first" not in log.read_text(errors="replace")[size:]:
        assert time.monotonic() < deadline, "no stacks in the log"
        time.sleep(0.05)
    assert len(tied.generate(requests(1), max_tokens=4)) == 1


def test_killed_engine_is_one_line_and_leaves_no_process(tied: Served) -> None:
    engine: Any = tied.pool.engines[0]
    children = psutil.Process(engine.pid).children(recursive=True)
    assert children

    async def kill_in_flight() -> None:
        task = asyncio.create_task(tied.pool.generate(requests(1)[0], Sampling(max_tokens=470)))
        watch = asyncio.create_task(engine.watch())
        await engine.beat()
        await asyncio.sleep(0.1)
        assert not watch.done()
        os.kill(engine.pid, signal.SIGKILL)
        for call in (task, watch):
            with pytest.raises(EngineDiedError, match=r"^engine-0: .*died.*$") as caught:
                await asyncio.wait_for(call, 30)
            assert "\n" not in str(caught.value)
        with pytest.raises(EngineDiedError):
            await engine.beat()
        assert [state.is_alive for state in await tied.pool.health()] == [False]

    asyncio.run(kill_in_flight())
    _, alive = psutil.wait_procs(children, timeout=15)
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow  # in short, an untied model is served by test_jax_end_to_end.py
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_of_an_untied_model_with_its_stop_tokens(untied: Served, temperature: float) -> None:
    batch = requests(24)
    responses = untied.generate(batch, temperature=temperature, max_tokens=64, stop_token_ids=(3,))
    assert largest_gap(untied.models[0], batch, responses, temperature) < SAME
    stopped = [response for response in responses if response.finish_reason == FinishReason.STOP]
    # The model's own stop tokens and the caller's; each is the last token, with its log-prob.
    assert {response.token_ids[-1] for response in stopped} == {1, 2, 3}
    for response in responses:
        assert not {1, 2, 3} & set(response.token_ids[:-1])
        assert (response.finish_reason == FinishReason.STOP) == (response.token_ids[-1] in {1, 2, 3})


@pytest.mark.slow
def test_half_a_publish_ends_the_engine_and_names_the_tensor(untied: Served) -> None:
    name = "model.layers.2.mlp.down_proj.weight"
    version = untied.version + 1
    spool = write_spool(untied.models[1], untied.directory / "half", version, without=name)
    with pytest.raises(PublishError, match=f"failed in phase finish: .*{name}"):
        asyncio.run(untied.pool.publish(version, spool))
    (state,) = asyncio.run(untied.pool.health())
    assert (state.is_alive, state.weight_version) == (False, untied.version)
    assert name in state.detail
    with pytest.raises(EngineError, match=f"engine-0 is dead: .*{name}"):
        untied.generate(requests(1))
