"""The weights of a model directory in the engines of an evaluation: in all at its start, and in each that comes later.

There is no trainer, so nothing is exported and nothing probed: the spool is checked tensor by tensor, then loaded. An engine that
dies meanwhile is replaced as at any other time; the new one waits for the spool, and loads it before it joins.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from common.config import Config
from common.engine_wait import wait_for_engine
from common.errors import EngineError, PublishError
from common.keeper import Keeper, Start
from common.pool import Pool, publish_within
from common.protocols import Engine
from common.spool import check_spool, model_layout, spool_model
from common.timeline import Timeline


class ServedModel:
    """One weight version of `model`, for the engines of `pool`."""

    def __init__(self, config: Config, pool: Pool, model: Path, spool: Path, version: int) -> None:
        self._limit_s, self._no_engine_s, self._pool = config.limits.publish_timeout_s, config.supervision.no_engine_s, pool
        self._model, self._spool, self._version = model, spool, version
        self._is_written = asyncio.Event()

    async def load(self) -> None:
        """Into all engines, the way that a training's weights take; one that fails to load them is lost.

        Raises PublishError, also where no engine is left and none comes within supervision.no_engine_s.
        """
        try:
            async with asyncio.timeout(self._limit_s):
                await asyncio.to_thread(self._write)
        except TimeoutError as error:
            text = f"the weights were not written and checked within limits.publish_timeout_s ({self._limit_s:g} s)"
            raise PublishError(text) from error
        self._is_written.set()
        fault = await self._pool.deliver(self._version, self._spool, self._limit_s)
        try:
            await wait_for_engine(self._pool, self._no_engine_s)  # whoever joins has been given the weights
        except EngineError as error:
            cause = " ".join(str(fault or "its engines were lost").split())
            raise PublishError(f"weight version {self._version}: {cause}; {error}") from error

    def _write(self) -> None:
        spool_model(self._model, self._spool, self._version)
        check_spool(self._spool, self._version, model_layout(self._model))

    async def bring(self, engine: Engine, place: int) -> str:
        """Let a new engine join the pool with these weights. Raises PublishError, EngineError; it has then not joined."""
        await self._is_written.wait()
        await publish_within(engine, self._version, self._spool, self._limit_s)
        await self._pool.join(engine, place)
        return f"serves weight version {self._version}"

    def close(self) -> None:
        """Remove the spool."""
        shutil.rmtree(self._spool, ignore_errors=True)


@asynccontextmanager
async def served(config: Config, pool: Pool, model: ServedModel, start: Start, timeline: Timeline) -> AsyncIterator[None]:
    """The pool serves the model for the time of the block, also where engines die: others are started in their place."""
    timeline.emit("phase", name="loading the weights")
    keeper = Keeper(config, pool=pool, publisher=model, start=start, timeline=timeline)
    try:
        try:
            keeper.keep()
            await model.load()
            yield
        finally:
            await keeper.close()
    finally:
        model.close()
