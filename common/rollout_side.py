"""The producing half of a round: admission -> engines -> verifier -> complete groups -> queue.

    submit ── policy.admit ──> sampler.sample ──> usable? ──> verifier.score ──> member done ──> `common.assembly`
                  ^                                  │ no: requeue (rules 1, 2), or drop the group
                  └──────────────────────────────────┘

Framework-free asyncio; every schedule takes this path. A slot is taken at admission and given back when the engine has let
the request go, so at each admission: in flight <= capacity.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Hashable, Sequence
from typing import Any

from common.assembly import Assembly, Parts
from common.books import Books
from common.config import Config
from common.errors import RunError
from common.materialize import is_broken, make_sample, task_of
from common.open_group import Member, OpenGroup, Stage
from common.plan_log import PlanLog
from common.policies import AdmissionPolicy
from common.protocols import Problem
from common.records import PipelineState, Reason, Request, Response, Times
from common.requests import arrange, derive_seed
from common.sampler import Loss, Sampler, max_moves
from common.waiting_queue import WaitingQueue


class RolloutSide:
    """Made within the running loop. `run` ends when every group has ended; call `stop` then, or at any other moment."""

    def __init__(
        self,
        config: Config,
        *,
        index: int,
        version: int,
        policy: AdmissionPolicy,
        queue: WaitingQueue,
        parts: Parts,
        books: Books,
        observe: Callable[[], PipelineState],
    ) -> None:
        self._config, self._index = config, index
        self._policy, self._queue, self._books, self._observe = policy, queue, books, observe
        self._parts, self._timeline = parts, parts.timeline
        self._groups = Assembly(config, index=index, version=version, queue=queue, parts=parts, books=books)
        self._sampler = Sampler(config, index=index, version=version, engine=parts.engine, timeline=parts.timeline, books=books)
        self._started_s = parts.timeline.now()
        self._in_flight: dict[str, Member] = {}  # oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._plans = PlanLog(policy, parts.timeline, index)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def num_in_flight(self) -> int:
        """Requests that the engine works on."""
        return len(self._in_flight)

    @property
    def tokens_per_s(self) -> float:
        """Response tokens a second so far; 0.0 while unknown."""
        elapsed_s = self._timeline.now() - self._started_s
        return self._sampler.num_tokens / elapsed_s if elapsed_s > 0 else 0.0

    def kind_of(self, request: Request) -> Hashable:
        """Names the kind of problem that a request belongs to: those of one kind have responses of similar length."""
        group = self._groups.open.get(str(request.group_id))
        return None if group is None else (group.problem.task.get("workload"), group.problem.task.get("dataset"))

    def describe(self) -> str:
        """What the rollout waits for, in one line."""
        now_s = self._timeline.now()
        scoring = [member for group in self._groups.open.values() for member in group.members_in(Stage.SCORING)]
        return (
            f"requests in flight: {_oldest(self._in_flight.values(), now_s)}; with the verifier: {_oldest(scoring, now_s)}; "
            f"not admitted: {self._policy.snapshot().num_waiting}"
        )

    async def run(self, problems: Sequence[Problem]) -> None:
        """Sample every group. Where the round cannot go on, fails the queue with the error and raises it."""
        unlisten = self._parts.engine.listen(self._admit_soon)
        try:
            for problem in problems:
                self._groups.add(problem)
            for entry in self._parts.recorded:
                self._groups.recover(entry)
            requests = [group.requests for group in self._groups.open.values()]
            order_seed = derive_seed(self._config.seed, self._index, 0, -1)
            self._policy.submit(arrange(requests, self._config.request_order, order_seed))
            self._check_ended()
            self._admit()
            self._check_busy()
            await self._ended
            self._groups.release_held()
            self._parts.on_rollout_end()
        except BaseException as error:
            self._queue.fail(error)
            raise
        finally:
            unlisten()

    async def stop(self) -> None:
        """Nothing of this round runs on. Idempotent."""
        self._ended.cancel()
        for group in self._groups.open.values():
            group.end()
        await self._sampler.stop(self._in_flight.values(), self._tasks)

    def _admit(self) -> None:
        if self._ended.done():
            return
        free_slots = max(0, self._parts.engine.capacity - len(self._in_flight))
        self._policy.observe(self._observe())
        admitted = self._policy.admit(free_slots)
        self._plans.note()
        for request in admitted:
            self._start(request)

    def _admit_soon(self) -> None:
        """The capacity has changed. An error of the round must reach the round, not the one who changed it."""

        async def admit() -> None:
            self._admit()

        if not self._ended.done():
            self._spawn(admit())

    def _start(self, request: Request) -> None:
        group = self._groups.open[str(request.group_id)]
        if group.deadline is None:
            timeout_s = self._config.limits.group_timeout_s
            group.deadline = asyncio.get_running_loop().call_later(timeout_s, lambda: self._spawn(self._expire(group)))
        member = group.members[request.member]
        member.admitted_s = self._timeline.now()
        member.enter(Stage.SAMPLING, member.admitted_s)
        self._in_flight[str(request.request_id)] = member
        member.task = self._spawn(self._serve(member, group))

    async def _serve(self, member: Member, group: OpenGroup) -> None:
        """One try of one member, up to its verdict."""
        try:
            result = await self._sampler.sample(member, group)
        finally:
            del self._in_flight[str(member.request.request_id)]
        if group.is_open:
            if isinstance(result, Loss):
                self._lose(member, group, result)
            else:
                self._accept(member, group, result)
        self._admit()
        if member.stage is Stage.SCORING and isinstance(result, Response):
            await self._score(member, group, result)

    def _lose(self, member: Member, group: OpenGroup, loss: Loss) -> None:
        """Rule 2: sample again up to max_retries, then drop the whole group. Deaths of engines are counted apart."""
        request_id, now_s = member.request.request_id, self._timeline.now()
        member.num_moves += loss.is_move
        member.num_retries += not loss.is_move
        if member.num_retries > self._config.limits.max_retries or member.num_moves >= max_moves(self._config):
            self._policy.finish(request_id)
            member.enter(Stage.FAILED, now_s)
            self._books.failed += 1
            died = f", {member.num_moves} engines died with it" if member.num_moves else ""
            self._drop(group, Reason.FAILED, f"{request_id} failed {member.num_retries} times{died}, last: {loss.reason}")
            return
        if loss.is_move:
            group.stop_deadline()
        member.enter(Stage.WAITING, now_s)
        self._books.retried += 1
        self._timeline.emit("retry", round=self._index, request=request_id, group=group.group_id, reason=loss.reason)
        self._policy.requeue(request_id)

    def _accept(self, member: Member, group: OpenGroup, response: Response) -> None:
        self._policy.finish(member.request.request_id, len(response.token_ids))
        self._books.finished += 1
        if not is_broken(response):
            member.enter(Stage.SCORING, self._timeline.now())
            return
        member.enter(Stage.DONE, self._timeline.now())
        self._books.broken += 1
        self._drop(group, Reason.FAILED, f"{member.request.request_id} came back with missing or NaN log-probs")
        self._check_broken_share()

    def _check_broken_share(self) -> None:
        limit, num_responses = self._config.limits.max_broken_share, self._sampler.num_responses
        expected = self._config.groups_per_round * self._config.responses_per_group
        if self._books.broken > limit * max(num_responses, expected):
            raise RunError(
                f"{self._books.broken} of {num_responses} responses have missing or NaN log-probs, above "
                f"limits.max_broken_share ({limit:g}, of {max(num_responses, expected)} in the round): the engine is broken"
            )

    async def _score(self, member: Member, group: OpenGroup, response: Response) -> None:
        finished_s, text = member.since_s, self._parts.decode(response.token_ids)
        score = await self._parts.verifier.score(task_of(group.problem, response), text)
        if not group.is_open:
            return
        times = Times(admitted_s=member.admitted_s, finished_s=finished_s, scored_s=self._timeline.now())
        member.sample = sample = make_sample(member.request, response, score, text, times)
        member.enter(Stage.DONE, times.scored_s)
        self._books.unscored += sample.reward is None
        self._timeline.emit(
            "verify",
            round=self._index,
            start=round(finished_s, 6),
            group=group.group_id,
            member=member.request.member,
            status=sample.status,
            reward=sample.reward,
            seconds=round(score.duration_s, 6),
        )
        if group.is_complete:
            if (refill := self._groups.complete(group)) is not None:
                self._policy.submit(refill.requests)
                self._admit()
            self._check_ended()

    async def _expire(self, group: OpenGroup) -> None:
        """Rule 7: the group's deadline has passed."""
        if group.is_open:
            limit, missing = self._config.limits.group_timeout_s, group.waits_for(self._timeline.now())
            detail = f"{group.group_id} still waits for {missing} after limits.group_timeout_s ({limit:g} s)"
            self._drop(group, Reason.TIMED_OUT, detail)
            self._admit()

    def _drop(self, group: OpenGroup, reason: Reason, detail: str) -> None:
        """End a group that cannot complete; what it still has in the policy, in engines or at the verifier is cancelled."""
        self._policy.cancel_group(group.group_id)
        if running := group.members_in(Stage.SAMPLING, Stage.SCORING):
            self._spawn(self._abandon(running))
        self._groups.drop(group, reason, detail)
        self._check_ended()

    async def _abandon(self, members: Sequence[Member]) -> None:
        """The engine lets go first, so that a slot that is free here is free there too."""
        await self._sampler.abort([member for member in members if member.stage is Stage.SAMPLING])
        tasks = [member.task for member in members if member.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._admit()

    def _check_ended(self) -> None:
        if not self._groups.open and not self._ended.done():
            self._ended.set_result(None)

    def _check_busy(self) -> None:
        """Open groups, yet no request in flight and no verifier call: nothing would ever happen again (rule 7)."""
        if self._tasks or self._ended.done():
            return
        if self._parts.engine.capacity == 0:
            self._spawn(self._await_engine())
        else:
            self._ended.set_exception(self._stuck())

    async def _await_engine(self) -> None:
        await self._sampler.await_engine()
        if self._parts.engine.capacity == 0:
            raise self._stuck()
        self._admit()

    def _stuck(self) -> RunError:
        group, capacity = next(iter(self._groups.open.values())), self._parts.engine.capacity
        message = f"nothing runs, but {len(self._groups.open)} groups are open; {group.group_id} waits for"
        missing = group.waits_for(self._timeline.now())
        return RunError(f"round {self._index}: {message} {missing}; the engine's capacity is {capacity}")

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._ended.done():
            self._ended.set_exception(error)
        self._check_busy()


def _oldest(members: Collection[Member], now_s: float) -> str:
    """`3, oldest r0/g1/m2 for 40 s`."""
    if not members:
        return "0"
    oldest = min(members, key=lambda member: member.since_s)
    return f"{len(members)}, oldest {oldest.request.request_id} for {now_s - oldest.since_s:.0f} s"
