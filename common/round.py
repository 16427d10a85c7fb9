"""One on-policy round: R groups from one weight version, trained as they complete (paper, "complete-group pipelining").

Producer (`rollout_side`) and consumer (`train_side`) run side by side around the complete-group queue. All schedules are
this one path; they differ in the admission policy and, for `serial`, in a queue that opens when the rollout is done.
Where the round has an evaluation, it takes the engines that the rollout has left, and the publish waits for it.
The death of either side reaches the other as an exception with its cause (rule 7), and the books are checked (rule 3).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common.books import Books
from common.config import Config
from common.errors import TrainerDiedError
from common.evaluation.evaluator import Evaluator
from common.journal_lines import Drop
from common.policies import AdaptiveFrontierDispatch, AdmissionPolicy, FifoAdmission, FrontierGroupDispatch
from common.protocols import Problem
from common.queue import CompleteGroupQueue
from common.records import PipelineState, Reason, UpdateResult
from common.rollout_side import Parts, RolloutSide
from common.train_side import TrainSide
from common.waiting_queue import WaitingQueue
from common.watchdog import Watchdog


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round did."""

    index: int
    version: int
    updates: tuple[UpdateResult, ...]
    books: Books


def make_policy(schedule: str, width: int) -> AdmissionPolicy:
    """The admission policy of a schedule with nothing to learn (design section 1)."""
    if schedule in ("serial", "cgp"):
        return FifoAdmission()
    return FrontierGroupDispatch(frontier_width=width, work_conserving=schedule != "fgd-strict")


def is_free(group_order: str, groups_per_update: int, groups_per_round: int) -> bool:
    """Groups may be sampled in another order than submitted without changing what an update trains, or how long it waits."""
    return group_order == "arrival" or groups_per_update >= groups_per_round


class Round:
    """`await Round(...).run(problems)`; one object serves one round."""

    def __init__(self, config: Config, parts: Parts, *, index: int, version: int) -> None:
        self._config, self._parts, self._index, self._version = config, parts, index, version
        self._books = Books()

    async def run(self, problems: Sequence[Problem]) -> RoundResult:
        """Sample, score and train `problems`, one group each (R of them, or fewer in a short round), then publish.

        Raises the first error of either side; the open update is then aborted and nothing runs on.
        """
        self._books.groups = len(problems)
        timeline = self._parts.timeline
        timeline.emit(
            "round_start",
            round=self._index,
            version=self._version,
            num_groups=len(problems),
            schedule=self._config.schedule,
        )
        if recorded := self._parts.recorded:
            drops = sum(isinstance(entry, Drop) for entry in recorded)
            timeline.emit("recorded", round=self._index, groups=len(recorded) - drops, drops=drops, is_whole=self._parts.is_whole)
        self._build(problems)
        watchdog = asyncio.create_task(self._watchdog.run(), name="watchdog")
        try:
            await self._run_sides(problems)
            self._books.check()
            await self._parts.publish()
        finally:
            watchdog.cancel()
            await asyncio.gather(watchdog, return_exceptions=True)
        timeline.emit("round_end", round=self._index, books=self._books.as_dict())
        return RoundResult(index=self._index, version=self._version, updates=tuple(self._train_side.updates), books=self._books)

    async def _run_sides(self, problems: Sequence[Problem]) -> None:
        """Both sides, side by side, and the evaluation in the tail; none is left running, whatever happens."""
        rollout = asyncio.create_task(self._produce(problems), name="rollout side")
        train = asyncio.create_task(self._train_side.run(), name="train side")
        tasks: list[asyncio.Task[Any]] = [rollout, train]
        if self._parts.evaluator is not None:
            tasks.append(asyncio.create_task(self._evaluate(self._parts.evaluator, rollout), name="evaluation"))
        watch = asyncio.create_task(self._watch_trainer(), name="trainer watch")
        try:
            await self._join(tasks, train, watch)
        finally:
            for task in (*tasks, watch):
                task.cancel()
            await asyncio.gather(*tasks, watch, self._rollout_side.stop(), return_exceptions=True)

    async def _watch_trainer(self) -> None:
        """A rank that dies while nothing is asked of it is noticed too, and ends the round."""
        try:
            await self._parts.trainer.watch()
        except TrainerDiedError as error:
            self._queue.fail(error)
            raise

    def _policy(self, problems: Sequence[Problem]) -> AdmissionPolicy:
        config = self._config
        if config.schedule != "adaptive":
            return make_policy(config.schedule, config.width)
        free = is_free(config.group_order, config.update_groups, len(problems))
        return AdaptiveFrontierDispatch(
            min(config.update_groups, len(problems)),
            history=self._parts.history,
            task=lambda request: self._rollout_side.kind_of(request),
            reorder=free,
            in_order=not free,
        )

    def _build(self, problems: Sequence[Problem]) -> None:
        config, parts, num_groups = self._config, self._parts, len(problems)
        queue = CompleteGroupQueue(
            groups_per_round=num_groups,
            groups_per_update=min(config.update_groups, num_groups),
            weight_version=self._version,
            order=config.group_order,
        )
        self._queue = WaitingQueue(queue, is_open=config.schedule != "serial")
        self._train_side = TrainSide(
            config, index=self._index, queue=self._queue, trainer=parts.trainer, timeline=parts.timeline, books=self._books
        )
        self._rollout_side = RolloutSide(
            config,
            index=self._index,
            version=self._version,
            policy=self._policy(problems),
            queue=self._queue,
            parts=parts,
            books=self._books,
            observe=self._state,
        )
        self._watchdog = Watchdog(
            config.limits.stall_s, index=self._index, engine=parts.engine, timeline=parts.timeline, describe=self._describe
        )

    async def _produce(self, problems: Sequence[Problem]) -> None:
        await self._rollout_side.run(problems)
        self._parts.timeline.emit("rollout_done", round=self._index)
        self._queue.open()

    async def _evaluate(self, evaluator: Evaluator, rollout: "asyncio.Task[None]") -> None:
        """Once the rollout has left the engines, while the trainer works off its tail. An error ends the round."""
        await asyncio.wait((rollout,))
        if rollout.cancelled() or rollout.exception() is not None:
            return
        await self._rollout_side.stop()  # what was dropped may still be on its way out
        try:
            await evaluator.run(self._held_up_s)
        except BaseException as error:
            self._queue.fail(error)
            raise

    def _held_up_s(self) -> float:
        """For how long the publish has waited for the evaluation: since the trainer is done with the round."""
        ended_s = self._train_side.ended_s
        return 0.0 if ended_s is None else self._parts.timeline.now() - ended_s

    async def _join(
        self, tasks: "list[asyncio.Task[Any]]", train: "asyncio.Task[list[UpdateResult]]", watch: "asyncio.Task[None]"
    ) -> None:
        """Until all have ended; the first error ends the round. Of the trainer's death the watch knows the cause."""
        work = asyncio.gather(*tasks)
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # told below
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        if not train.done():
            await asyncio.wait((train,))  # the queue has failed, so it ends; an open update is aborted first
        for task in (watch, *tasks):
            if task.done():
                task.result()

    def _state(self) -> PipelineState:
        queue, train_side = self._queue.snapshot(), self._train_side
        compute_s = train_side.compute_s
        return PipelineState(
            now_s=self._parts.timeline.now(),
            trainer_backlog_groups=queue.num_waiting,
            trainer_groups_per_s=queue.num_taken / compute_s if compute_s > 0 else 0.0,
            engine_tokens_per_s=self._rollout_side.tokens_per_s,
            engine_running=self._rollout_side.num_in_flight,
            engine_capacity=self._parts.engine.capacity,
            trainer_tokens_per_s=train_side.tokens_per_s,
            trainer_update_s=train_side.mean_update_s,
        )

    def _describe(self) -> str:
        """Who waits for whom, in one line."""
        queue, evaluator = self._queue.snapshot(), self._parts.evaluator
        filtered = queue.dropped.get(Reason.FILTERED, 0)
        evaluation = f"; {evaluator.describe()}" if evaluator is not None else ""
        return (
            f"round {self._index}: {queue.num_taken + queue.num_waiting} of {queue.num_expected} groups complete, "
            f"{filtered} filtered, {queue.num_dropped - filtered} dropped, "
            f"{queue.num_taken} with the trainer, which is {self._train_side.doing}; "
            f"{self._rollout_side.describe()}{evaluation}"
        )
