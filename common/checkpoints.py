"""Checkpoints of a run: captured at a round boundary, written while the next round samples, counted when whole.

    save ── trainer.save (captured) ──> the run goes on ──> trainer.saved (durable) ──> state.json, and it counts

A save that is cut off anywhere leaves the one before it as the newest.
"""

import asyncio
import json
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from common.config import Config
from common.disk import writing
from common.errors import TrainerDiedError
from common.protocols import Trainer
from common.retention import prune_samples
from common.rundir import RunDir, checkpoint_dir, finished_checkpoints, prune, read_state, write_atomically


class Checkpoints:
    """Of one run; at most one save is open at a time."""

    def __init__(self, config: Config, trainer: Trainer, run_dir: RunDir) -> None:
        self._config, self._trainer, self._run_dir = config, trainer, run_dir
        self._saving: asyncio.Task[None] | None = None
        self.saved_rounds: int | None = None  # in the newest checkpoint; None: there is none

    @property
    def is_done(self) -> bool:
        """A save was opened, and has ended by itself."""
        return self._saving is not None and self._saving.done()

    async def save(self, num_rounds: int, state: dict[str, Any]) -> None:
        """Capture the trainer after so many rounds; it is written in the background. Waits for the save before it."""
        await self.end()
        directory = checkpoint_dir(self._run_dir, num_rounds)
        shutil.rmtree(directory, ignore_errors=True)
        with writing(directory):
            directory.mkdir(parents=True)
        await self._bounded(self._trainer.save(directory / "trainer"), "save")
        self._saving = asyncio.create_task(self._finish(num_rounds, directory, json.dumps(state)))

    async def _finish(self, num_rounds: int, directory: Path, state: str) -> None:
        """Make the captured checkpoint count; one that is interrupted before its `state.json` counts for nothing."""
        await self._bounded(self._trainer.saved(), "saved")
        write_atomically(directory / "state.json", state)
        self.saved_rounds = num_rounds
        prune(self._run_dir, self._config.checkpoint.keep)
        prune_samples(self._run_dir, self._config.retention, num_rounds)

    async def end(self) -> None:
        """Wait for the open save; raises what kept it from being written. Cut off, it leaves the writing going on."""
        if self._saving is not None:
            await asyncio.wait((self._saving,))
            saving, self._saving = self._saving, None
            saving.result()

    async def end_soon(self) -> None:
        """The same within the deadline of closing, after an error: that one is to be told, not what this one finds."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            await asyncio.wait((saving,), timeout=self._config.limits.close_timeout_s)
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)

    async def restore(self) -> dict[str, Any] | None:
        """Bring the trainer to the newest checkpoint; its state. None where there is none: nothing was restored."""
        finished = finished_checkpoints(self._run_dir)
        if not finished:
            self.saved_rounds = None
            return None
        state = read_state(finished[-1])
        await self._bounded(self._trainer.restore(finished[-1] / "trainer"), "restore")
        self.saved_rounds = state["round"]
        return state

    async def _bounded(self, call: Coroutine[Any, Any, None], name: str) -> None:
        limit = self._config.limits.update_timeout_s
        try:
            async with asyncio.timeout(limit):
                await call
        except TimeoutError as error:
            raise TrainerDiedError(f"trainer call {name} did not end within limits.update_timeout_s ({limit:g} s)") from error
