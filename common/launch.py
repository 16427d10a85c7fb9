"""Starts what a run works with, all at once, and ends it, whatever happened: no process of a run outlives it."""

import asyncio
import importlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from common.config import Config
from common.config_cluster import ClusterConfig
from common.keeper import Keeper
from common.prepare import Prepared, room_of
from common.publish import Publisher
from common.rewards.verifier import make_verifier
from common.run_parts import RunParts
from common.rundir import RunDir
from common.spool_place import spool_place
from common.timeline import Timeline
from common.weight_routes import choose_route, make_route

NUM_PROBES = 4  # prompts of a log-prob probe


def end_on_sigterm() -> None:
    """From now on SIGTERM does what Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def check_cluster(config: Config, pools: Sequence[str] = ("rollout", "trainer")) -> None:
    """Raises ConfigError within seconds where the configuration names a cluster and none answers, or none with such nodes.

    Nothing is joined.
    """
    if not config.cluster.is_local:
        cluster = importlib.import_module("rolloutpipe_torch.cluster")
        nodes = [node for node in cluster.nodes_at(config.cluster) if node["Alive"]]
        importlib.import_module("rolloutpipe_torch.placing").demands_of(config, pools, nodes)


@contextmanager
def ray_running(timeline: Timeline, settings: ClusterConfig) -> Iterator[None]:
    """Ray, for the time of the block. Raises ConfigError where no cluster answers."""
    cluster = importlib.import_module("rolloutpipe_torch.cluster")
    timeline.emit("phase", name="starting Ray")
    try:
        try:
            cluster.start_ray(settings)
        except SystemExit:  # Ray's own answer to SIGTERM, while it starts
            raise KeyboardInterrupt from None
        end_on_sigterm()  # Ray has put its answer in place of ours
        yield
    finally:
        cluster.stop_ray()


@asynccontextmanager
async def launched(config: Config, prepared: Prepared, run_dir: RunDir, timeline: Timeline) -> AsyncIterator[RunParts]:
    """Engines, trainer ranks and verifier workers, for the time of the block; Ray must run."""
    with spool_place(config, run_dir.path, prepared.layout) as spool_root:
        async with _launched(config, prepared, run_dir, timeline, spool_root) as parts:
            yield parts


@asynccontextmanager
async def _launched(
    config: Config, prepared: Prepared, run_dir: RunDir, timeline: Timeline, spool_root: Path
) -> AsyncIterator[RunParts]:
    closing: list[Any] = []  # what has `close`
    publisher = keeper = None
    try:
        timeline.emit("phase", name="starting engines, trainer and verifier")
        placing = importlib.import_module("rolloutpipe_torch.placing").Placing(config)
        on_gpus = {"trainer_has_gpus": placing.on_gpu("trainer"), "engines_have_gpus": placing.on_gpu("rollout")}
        route = choose_route(config, **on_gpus)  # before anything is started: it may be refused
        engine, trainer, verifier = await _start_all(config, prepared, run_dir, closing, placing)
        engine.route = make_route(route, trainer.ranks)
        publisher = _publisher(config, prepared, spool_root, timeline, engine, trainer)
        keeper = _keeper(config, prepared, run_dir, timeline, engine, publisher, placing)
        yield RunParts(
            engine=engine,
            trainer=trainer,
            verifier=verifier,
            publisher=publisher,
            decode=lambda ids: str(prepared.tokenizer.decode(ids, skip_special_tokens=True)),
            workload=prepared.workload,
            eval_problems=prepared.evaluation.problems if prepared.evaluation is not None else (),
            timeline=timeline,
            model_dir=prepared.model_dir,
        )
    finally:
        if keeper is not None:
            await keeper.close()  # first: else it would start again what is closed
        await close_all(closing, config.limits.close_timeout_s)
        if publisher is not None:
            publisher.close()


def _publisher(config: Config, prepared: Prepared, spool_root: Path, timeline: Timeline, engine: Any, trainer: Any) -> Publisher:
    prompts = [problem.prompt_ids for problem in prepared.workload.problems[:NUM_PROBES]]
    return Publisher(
        config,
        engines=engine,
        trainer=trainer,
        layout=prepared.layout,
        spool_root=spool_root,
        probe_prompts=prompts,
        timeline=timeline,
    )


def _keeper(
    config: Config, prepared: Prepared, run_dir: RunDir, timeline: Timeline, engine: Any, publisher: Publisher, placing: Any
) -> Keeper:
    """Keeps the pool's engines alive from now on."""
    pool_room = importlib.import_module("rolloutpipe_torch.rollout.pool")

    def start(place: int) -> Awaitable[Any]:
        started: Awaitable[Any] = pool_room.start_engine(
            config, place, prepared.model_dir, run_dir.logs, prepared.max_model_len, placing
        )
        return started

    keeper = Keeper(config, pool=engine, publisher=publisher, start=start, timeline=timeline)
    keeper.keep()
    return keeper


async def _start_all(
    config: Config, prepared: Prepared, run_dir: RunDir, closing: list[Any], placing: Any
) -> tuple[Any, Any, Any]:
    """Start the three side by side. What has started stands in `closing`, also where another fails or Ctrl-C comes."""
    pool_room = importlib.import_module("rolloutpipe_torch.rollout.pool")
    verifier = make_verifier(config.rewards, examples=prepared.examples, log=run_dir.logs / "verifier.log")
    closing.append(verifier)

    async def keep(start: Callable[[], Awaitable[Any]]) -> Any:
        part = await start()
        closing.append(part)
        return part

    of_model = (config, prepared.model_dir, run_dir.logs, prepared.max_model_len)
    start_pool, start_trainer = pool_room.start_pool, room_of(config, "trainer").start_trainer
    options = None if config.cluster.is_local else placing.rank_options
    engine, trainer, _ = await together(
        keep(lambda: start_pool(*of_model, min_replicas=config.rollout.min_replicas, placing=placing)),
        keep(lambda: start_trainer(*of_model, options)),
        verifier.start(config.limits.start_timeout_s),
    )
    return engine, trainer, verifier


async def together(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Their results, in order; where one fails or Ctrl-C comes, the others are cut off."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1.0)
        raise


async def close_all(closing: list[Any], timeout_s: float) -> None:
    """Within the deadline; what does not end in time is ended with Ray."""
    tasks = [asyncio.create_task(part.close()) for part in closing]
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
