"""The consuming half of a round: whole groups from the queue, one optimizer step each U groups (rules 4, 5).

    take ──> begin_update (first group of an update) ──> accumulate ──> finish_update (last group) ──> take ...

Every moment is recorded as `wait` or `compute`, so the waiting ratio is measured and not inferred.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from common.books import Books
from common.config import Config
from common.errors import LogprobGapError, RoundFinished, TrainerDiedError
from common.protocols import Trainer
from common.records import Dispatch, UpdateResult
from common.timeline import Timeline
from common.waiting_queue import WaitingQueue

Result = TypeVar("Result")


class TrainSide:
    """One round's consuming half; `run` ends when the queue has nothing more."""

    def __init__(
        self, config: Config, *, index: int, queue: WaitingQueue, trainer: Trainer, timeline: Timeline, books: Books
    ) -> None:
        self._config, self._index = config, index
        self._queue, self._trainer, self._timeline, self._books = queue, trainer, timeline, books
        self.updates: list[UpdateResult] = []
        self.compute_s = self._accumulate_s = 0.0
        self._num_tokens = 0  # response tokens of accumulated groups
        self.doing = "starting"
        self.ended_s: float | None = None  # None: not yet

    async def run(self) -> list[UpdateResult]:
        """The round's updates. An error of either side aborts the open update and is raised."""
        is_open = False
        try:
            await self._bounded(self._trainer.begin_round(), "begin_round")
            while (dispatch := await self._take()) is not None:
                if not is_open:
                    is_open = True  # also where begin_update is cancelled half way
                    await self._bounded(self._trainer.begin_update(), "begin_update")
                if dispatch.groups:
                    await self._accumulate(dispatch)
                if dispatch.is_last_of_update:
                    await self._finish(dispatch)
                    is_open = False
        except BaseException:
            if is_open:
                await self._abort()
            raise
        finally:
            self.doing, self.ended_s = "done", self._timeline.now()
        return self.updates

    @property
    def tokens_per_s(self) -> float:
        """Of the seconds spent accumulating; 0.0 while unknown."""
        return self._num_tokens / self._accumulate_s if self._accumulate_s > 0 else 0.0

    @property
    def mean_update_s(self) -> float:
        """Seconds of a step; 0.0 while unknown."""
        return (self.compute_s - self._accumulate_s) / len(self.updates) if self.updates else 0.0

    async def _abort(self) -> None:
        """Forget the open update. The error that led here is the one to tell, and a dead trainer has forgotten anyway."""
        self.doing = "aborting the open update"
        with suppress(RuntimeError, OSError):  # RunError and TimeoutError are among them
            async with asyncio.timeout(self._config.limits.close_timeout_s):
                await self._trainer.abort_update()

    async def _take(self) -> Dispatch | None:
        start = self._timeline.now()
        self.doing = "waiting for a complete group"
        try:
            return await self._queue.take()
        except RoundFinished:
            return None
        finally:
            self._timeline.emit("wait", round=self._index, start=round(start, 6), on="group")

    async def _accumulate(self, dispatch: Dispatch) -> None:
        (group,) = dispatch.groups
        self.doing = f"accumulating {group.group_id}"
        start = self._timeline.now()
        await self._bounded(self._trainer.accumulate(dispatch.groups), "accumulate")
        self._books.trained += 1
        self._accumulate_s += self._computed(start, "accumulate", dispatch.update_index, group.group_id)
        self._num_tokens += group.num_tokens

    async def _finish(self, dispatch: Dispatch) -> None:
        self.doing = f"finishing update {dispatch.update_index}"
        start = self._timeline.now()
        result = await self._bounded(self._trainer.finish_update(), "finish_update")
        self._computed(start, "finish", dispatch.update_index, None)
        result = replace(result, update_index=dispatch.update_index)
        self.updates.append(result)
        self._timeline.emit(
            "update",
            round=self._index,
            update=result.update_index,
            optimizer_step=result.optimizer_step,
            loss=result.loss,
            grad_norm=result.grad_norm,
            groups=result.num_groups,
            tokens=result.num_tokens,
            is_short=result.num_groups < self._config.update_groups,
            metrics=dict(result.metrics),
        )
        self._check_gap(result)

    def _computed(self, start: float, phase: str, update: int, group: object) -> float:
        """Record it; seconds."""
        event = self._timeline.emit("compute", round=self._index, start=round(start, 6), phase=phase, update=update, group=group)
        seconds = float(event["t"]) - start
        self.compute_s += seconds
        return seconds

    def _check_gap(self, result: UpdateResult) -> None:
        """The sampler-trainer gap, where it is defined: on the round's first update, before any step (design section 3)."""
        limit = self._config.limits.max_logprob_gap
        gap = result.metrics.get("logprob_gap_max", 0.0)
        if result.update_index == 0 and limit is not None and not gap <= limit:
            raise LogprobGapError(
                f"sampler and trainer log-probs differ by {gap:.3g} on the first update of round {self._index}, "
                f"above limits.max_logprob_gap ({limit:g})"
            )

    async def _bounded(self, call: Coroutine[Any, Any, Result], name: str) -> Result:
        limit = self._config.limits.update_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await call
        except TimeoutError as error:
            raise TrainerDiedError(f"trainer call {name} did not end within limits.update_timeout_s ({limit:g} s)") from error
