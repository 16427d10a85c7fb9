"""The weights of a model directory in the engines of an evaluation: in all at its start, and in each that comes later.

There is no trainer, so nothing is exported and nothing probed: the spool is checked tensor by tensor, then loaded.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from common.config import Config
from common.errors import PublishError
from common.keeper import Keeper, Start
from common.pool import Pool, publish_within
from common.protocols import Engine
from common.spool import check_spool, model_layout, spool_model
from common.timeline import Timeline


class ServedModel:
    """One weight version of `model`, for the engines of `pool`."""

    def __init__(self, config: Config, pool: Pool, model: Path, spool: Path, version: int) -> None:
        self._limit_s, self._pool = config.limits.publish_timeout_s, pool
        self._model, self._spool, self._version = model, spool, version

    async def load(self) -> None:
        """Into all engines, the way that a training's weights take. Raises PublishError."""
        try:
            async with asyncio.timeout(self._limit_s):
                await asyncio.to_thread(self._write)
                await self._pool.publish(self._version, self._spool)
        except TimeoutError as error:
            text = f"the engines had not loaded the weights within limits.publish_timeout_s ({self._limit_s:g} s)"
            raise PublishError(text) from error

    def _write(self) -> None:
        spool_model(self._model, self._spool, self._version)
        check_spool(self._spool, self._version, model_layout(self._model))

    async def bring(self, engine: Engine, place: int) -> str:
        """Let a new engine join the pool with these weights. Raises PublishError, EngineError; it has then not joined."""
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
    try:
        await model.load()
        keeper = Keeper(config, pool=pool, publisher=model, start=start, timeline=timeline)
        try:
            keeper.keep()
            yield
        finally:
            await keeper.close()
    finally:
        model.close()
