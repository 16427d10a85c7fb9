"""Starts what a run works with, all at once, and ends it, whatever happened: no process of a run outlives it."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from common.config import Config
from common.prepare import Prepared, room_of
from common.publish import Publisher
from common.rewards.pool import VerifierPool
from common.run import RunParts
from common.rundir import RunDir
from common.timeline import Timeline

NUM_PROBES = 4  # prompts of a log-prob probe


@asynccontextmanager
async def launched(config: Config, prepared: Prepared, run_dir: RunDir, timeline: Timeline) -> AsyncIterator[RunParts]:
    """Ray, engines, trainer ranks and verifier workers, for the time of the block."""
    cluster = importlib.import_module("rolloutpipe_torch.cluster")
    closing: list[Any] = []  # what has `close`
    publisher = None
    try:
        timeline.emit("phase", name="starting Ray")
        cluster.start_ray()
        timeline.emit("phase", name="starting engines, trainer and verifier")
        engine, trainer, verifier = await _start_all(config, prepared, run_dir, closing)
        publisher = _publisher(config, prepared, run_dir, timeline, engine, trainer)
        yield RunParts(
            engine=engine,
            trainer=trainer,
            verifier=verifier,
            publisher=publisher,
            decode=lambda ids: str(prepared.tokenizer.decode(ids, skip_special_tokens=True)),
            workload=prepared.workload,
            timeline=timeline,
            model_dir=prepared.model_dir,
        )
    finally:
        await _close_all(closing, config.limits.close_timeout_s)
        cluster.stop_ray()
        if publisher is not None:
            publisher.close()


def _publisher(config: Config, prepared: Prepared, run_dir: RunDir, timeline: Timeline, engine: Any, trainer: Any) -> Publisher:
    prompts = [problem.prompt_ids for problem in prepared.workload.problems[:NUM_PROBES]]
    return Publisher(
        config,
        engines=engine,
        trainer=trainer,
        layout=prepared.layout,
        spool_root=run_dir.path / "spool",
        probe_prompts=prompts,
        timeline=timeline,
    )


async def _start_all(config: Config, prepared: Prepared, run_dir: RunDir, closing: list[Any]) -> tuple[Any, Any, Any]:
    """Start the three side by side. What has started stands in `closing`, also where another fails or Ctrl-C comes."""
    pool_room = importlib.import_module("rolloutpipe_torch.rollout.pool")
    verifier = VerifierPool(config.rewards, examples=prepared.workload.examples, log=run_dir.logs / "verifier.log")
    closing.append(verifier)

    async def keep(start: Awaitable[Any]) -> Any:
        part = await start
        closing.append(part)
        return part

    start_engines = asyncio.to_thread(pool_room.start_pool, config, prepared.model_dir, run_dir.logs, prepared.max_model_len)
    start_trainer = room_of(config, "trainer").start_trainer(config, prepared.model_dir, run_dir.logs)
    starts = [asyncio.create_task(keep(start)) for start in (start_engines, start_trainer)]
    starts.append(asyncio.create_task(verifier.start(config.limits.start_timeout_s)))
    try:
        engine, trainer, _ = await asyncio.gather(*starts)
    except BaseException:
        for task in starts:
            task.cancel()
        await asyncio.wait(starts, timeout=1.0)
        raise
    return engine, trainer, verifier


async def _close_all(closing: list[Any], timeout_s: float) -> None:
    """Within the deadline; what does not end in time is ended with Ray."""
    tasks = [asyncio.create_task(part.close()) for part in closing]
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
