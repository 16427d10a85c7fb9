"""Starts what a run works with, all at once, and ends it, whatever happened: no process of a run outlives it."""

import asyncio
import importlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from common.config import Config
from common.prepare import Prepared, room_of
from common.publish import Publisher
from common.rewards.verifier import make_verifier
from common.run import RunParts
from common.rundir import RunDir
from common.spool_place import spool_place
from common.timeline import Timeline
from common.weight_routes import make_route

NUM_PROBES = 4  # prompts of a log-prob probe


def end_on_sigterm() -> None:
    """From now on SIGTERM does what Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


@contextmanager
def ray_running(timeline: Timeline) -> Iterator[None]:
    """Ray, for the time of the block."""
    cluster = importlib.import_module("rolloutpipe_torch.cluster")
    timeline.emit("phase", name="starting Ray")
    try:
        try:
            cluster.start_ray()
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
    publisher = None
    try:
        timeline.emit("phase", name="starting engines, trainer and verifier")
        engine, trainer, verifier = await _start_all(config, prepared, run_dir, closing)
        engine.route = make_route(config, trainer.ranks, on_gpu=importlib.import_module("rolloutpipe_torch.room").has_gpus())
        publisher = _publisher(config, prepared, spool_root, timeline, engine, trainer)
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


async def _start_all(config: Config, prepared: Prepared, run_dir: RunDir, closing: list[Any]) -> tuple[Any, Any, Any]:
    """Start the three side by side. What has started stands in `closing`, also where another fails or Ctrl-C comes."""
    pool_room = importlib.import_module("rolloutpipe_torch.rollout.pool")
    verifier = make_verifier(config.rewards, examples=prepared.examples, log=run_dir.logs / "verifier.log")
    closing.append(verifier)

    async def keep(start: Callable[[], Awaitable[Any]]) -> Any:
        part = await start()
        closing.append(part)
        return part

    model_dir, logs = prepared.model_dir, run_dir.logs
    start_pool, start_trainer = pool_room.start_pool, room_of(config, "trainer").start_trainer
    engine, trainer, _ = await together(
        keep(lambda: start_pool(config, model_dir, logs, prepared.max_model_len)),
        keep(lambda: start_trainer(config, model_dir, logs, prepared.max_model_len)),
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
