"""The producing half of a round: admission -> engines -> verifier -> complete groups -> queue.

    submit ── policy.admit ──> engine.generate ──> accept? ──> verifier.score ──> member in
                  ^                                  │ no: requeue (rules 1, 2), or drop the group
                  └──────────────────────────────────┘
    all K members in ──> materialize ──> queue.put | queue.drop | refill

Framework-free asyncio; every schedule takes this path. Each group ends exactly once: trained, filtered or dropped.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from common.books import Books
from common.config import Config
from common.errors import EngineError, RunError
from common.materialize import is_broken, materialize, scale_to_batch
from common.policies import AdmissionPolicy
from common.protocols import Engine, Problem, Trainer, Verifier
from common.records import FinishReason, Group, PipelineState, Reason, Request, Response, Sample, Times
from common.requests import arrange, derive_seed, group_name, group_requests
from common.timeline import Timeline
from common.waiting_queue import WaitingQueue

GroupListener = Callable[[Group, Problem], None]
Refill = Callable[[], Problem | None]


async def _publish_nothing() -> None:
    """For rounds without engines to publish to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a round works with."""

    engine: Engine
    trainer: Trainer
    verifier: Verifier
    decode: Callable[[Sequence[int]], str]
    timeline: Timeline
    on_group: GroupListener = lambda group, problem: None  # each complete group, trained or not
    refill: Refill = lambda: None  # one more problem, or None
    publish: Callable[[], Awaitable[None]] = _publish_nothing  # the round's weights, after its last update (rule 6)


@dataclass(slots=True)
class _OpenGroup:
    """A group that has not ended yet."""

    group_id: str
    order: int
    problem: Problem
    num_members: int
    samples: dict[int, Sample] = field(default_factory=dict)
    num_finished: int = 0  # responses accepted
    retries: dict[int, int] = field(default_factory=dict)
    deadline: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _InFlight:
    """A request that an engine works on, for the watchdog and for cancelling."""

    request: Request
    task: asyncio.Task[None]
    admitted_s: float


class RolloutSide:
    """One round's producing half; `run` ends when every group has ended."""

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
        self._config, self._index, self._version = config, index, version
        self._policy, self._queue, self._books, self._observe = policy, queue, books, observe
        self._engine, self._verifier, self._timeline = parts.engine, parts.verifier, parts.timeline
        self._decode, self._refill, self._on_group = parts.decode, parts.refill, parts.on_group
        self.started_s = 0.0  # of the run
        self._sampling = config.sampling.build()
        self._open: dict[str, _OpenGroup] = {}
        self._in_flight: dict[str, _InFlight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: list[Group] = []  # advantage_std `batch`: groups that wait for the batch
        self._next_order = 0
        self._num_responses = 0
        self._tokens = 0
        self._ended: asyncio.Future[None] | None = None

    @property
    def in_flight(self) -> Sequence[_InFlight]:
        """Requests that engines work on, oldest first."""
        return tuple(self._in_flight.values())

    @property
    def tokens(self) -> int:
        """Response tokens so far."""
        return self._tokens

    async def run(self, problems: Sequence[Problem]) -> None:
        """Sample every group. Raises RunError where the round cannot go on; nothing is left running."""
        self._ended = asyncio.get_running_loop().create_future()
        self.started_s = self._timeline.now()
        try:
            groups = [self._open_group(problem) for problem in problems]
            order_seed = derive_seed(self._config.seed, self._index, 0, -1)
            self._policy.submit(arrange(groups, self._config.request_order, order_seed))
            self._admit()
            await self._ended
            self._release_held()
        finally:
            await self._stop()

    def _open_group(self, problem: Problem) -> list[Request]:
        num_members = self._config.responses_per_group
        requests = group_requests(self._index, self._next_order, problem.prompt_ids, num_members, self._config.seed)
        group_id = group_name(self._index, self._next_order)
        self._open[group_id] = _OpenGroup(group_id, self._next_order, problem, num_members)
        self._next_order += 1
        self._books.requests += num_members
        return requests

    def _admit(self) -> None:
        if self._ended is None or self._ended.done():
            return
        free_slots = max(0, self._engine.capacity - len(self._in_flight))
        self._policy.observe(self._observe())
        for request in self._policy.admit(free_slots):
            self._start(request)

    def _start(self, request: Request) -> None:
        group = self._open[str(request.group_id)]
        if group.deadline is None:
            loop = asyncio.get_running_loop()
            group.deadline = loop.call_later(self._config.limits.group_timeout_s, self._expire, group)
        task = asyncio.create_task(self._serve(request, group), name=str(request.request_id))
        self._in_flight[str(request.request_id)] = _InFlight(request, task, self._timeline.now())
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End `run` with `error`."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    async def _serve(self, request: Request, group: _OpenGroup) -> None:
        started_s = self._timeline.now()
        try:
            response, fault = await self._generate(request, started_s)
        finally:
            del self._in_flight[str(request.request_id)]
            if group.group_id not in self._open:
                self._admit()  # cancelled with its group: the slot is free again
        if group.group_id not in self._open:
            return
        if response is None:
            await self._lose(request, group, fault)
            return
        self._policy.finish(request.request_id)
        self._accept(request, response, group)
        self._admit()
        if group.group_id in self._open:
            await self._score(request, response, group, started_s)

    async def _generate(self, request: Request, started_s: float) -> tuple[Response | None, str]:
        """The response, or None and what was wrong with it."""
        ids = {"request": request.request_id, "group": request.group_id, "member": request.member}
        replica = self._engine.place(request)
        self._timeline.emit("dispatch", round=self._index, replica=replica, **ids)
        try:
            async with asyncio.timeout(self._config.limits.request_timeout_s):
                response = await self._engine.generate(request, self._sampling)
        except TimeoutError:
            await self._engine.abort([request.request_id])
            return None, f"no response within limits.request_timeout_s ({self._config.limits.request_timeout_s:g} s)"
        except EngineError as error:
            await self._check_engines(error)
            return None, str(error)
        self._timeline.emit(
            "response",
            round=self._index,
            start=round(started_s, 6),
            replica=replica,
            tokens=len(response.token_ids),
            finish_reason=response.finish_reason,
            version=response.version_end,
            **ids,
        )
        self._num_responses += 1
        if response.version_start != self._version or response.version_end != self._version:
            self._books.rejected += 1
            versions = f"{response.version_start} to {response.version_end}"
            return None, f"sampled from weight version {versions}, the round's is {self._version} (rule 1)"
        if response.finish_reason is FinishReason.ABORT:
            return None, "aborted by the engine"
        return response, ""

    async def _check_engines(self, error: EngineError) -> None:
        health = await self._engine.health()
        if not any(replica.is_alive for replica in health):
            raise EngineError(f"no engine is alive: {'; '.join(f'{r.name}: {r.detail}' for r in health)}") from error

    async def _lose(self, request: Request, group: _OpenGroup, reason: str) -> None:
        """Rule 2: sample again up to max_retries, then drop the whole group."""
        num_retries = group.retries.get(request.member, 0)
        if num_retries >= self._config.limits.max_retries:
            self._policy.finish(request.request_id)
            self._books.failed += 1
            self._drop(group, Reason.FAILED, f"{request.request_id} failed {num_retries + 1} times, last: {reason}", failed=1)
            return
        group.retries[request.member] = num_retries + 1
        self._books.retried += 1
        self._timeline.emit("retry", round=self._index, request=request.request_id, group=group.group_id, reason=reason)
        self._policy.requeue(request.request_id)
        self._admit()

    def _accept(self, request: Request, response: Response, group: _OpenGroup) -> None:
        self._tokens += len(response.token_ids)
        group.num_finished += 1
        self._books.finished += 1
        if is_broken(response):
            self._books.broken += 1
            self._drop(group, Reason.FAILED, f"{request.request_id} came back with missing or NaN log-probs")
            self._check_broken_share()

    def _check_broken_share(self) -> None:
        limit = self._config.limits.max_broken_share
        expected = self._config.groups_per_round * self._config.responses_per_group
        if self._books.broken > limit * max(self._num_responses, expected):
            raise RunError(
                f"{self._books.broken} of {self._num_responses} responses have missing or NaN log-probs, "
                f"above limits.max_broken_share ({limit:g}): the engine is broken"
            )

    async def _score(self, request: Request, response: Response, group: _OpenGroup, started_s: float) -> None:
        finished_s = self._timeline.now()
        text = self._decode(response.token_ids)
        score = await self._verifier.score(group.problem.task, text)
        if group.group_id not in self._open:
            return
        scored_s = self._timeline.now()
        self._timeline.emit(
            "verify",
            round=self._index,
            start=round(finished_s, 6),
            group=group.group_id,
            member=request.member,
            status=score.status,
            reward=score.reward,
        )
        self._books.unscored += score.reward is None
        times = Times(admitted_s=started_s, finished_s=finished_s, scored_s=scored_s)
        group.samples[request.member] = Sample(
            request=request,
            response=replace(response, times=times),
            reward=score.reward,
            status=score.status,
            text=text,
            reason=score.reason,
        )
        if len(group.samples) == group.num_members:
            self._complete(group)

    def _complete(self, group: _OpenGroup) -> None:
        """All K members are in: fix the advantages and hand the group on."""
        is_batch = self._config.advantage_std == "batch"
        samples = [group.samples[member] for member in range(group.num_members)]
        keep_flat = self._config.filter == "keep"
        std = "none" if is_batch else self._config.advantage_std
        done = materialize(group.group_id, group.order, self._version, samples, std=std, keep_flat=keep_flat)
        self._on_group(done, group.problem)
        self._end(group)
        rewards = [sample.reward for sample in samples if sample.reward is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        spread = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5 if mean is not None else None
        self._timeline.emit(
            "group_complete",
            round=self._index,
            group=done.group_id,
            order=done.order,
            reward_mean=mean,
            reward_std=spread,
            tokens=done.num_tokens,
            filtered=done.filtered,
        )
        if done.filtered is Reason.FAILED:
            self._report_drop(group, Reason.FAILED, "fewer than two members have a reward")
        elif done.filtered is not None:
            self._refill_for(group)
            self._books.filtered += 1
            self._queue.drop(group.group_id, done.filtered, order=group.order)
        elif is_batch:
            self._held.append(done)
        else:
            self._queue.put(done)
        self._check_ended()

    def _refill_for(self, group: _OpenGroup) -> None:
        """A new group of the same round and version in place of a filtered one (rule 3)."""
        limit = self._config.groups_per_round if self._config.max_refills is None else self._config.max_refills
        if self._config.filter != "refill" or self._books.refilled >= limit:
            return
        problem = self._refill()
        if problem is None:
            return
        self._books.refilled += 1
        self._queue.extend(1)
        self._policy.submit(self._open_group(problem))
        self._admit()

    def _expire(self, group: _OpenGroup) -> None:
        """Rule 7: the group's deadline has passed."""
        missing = [m for m in range(group.num_members) if m not in group.samples]
        names = ", ".join(f"m{member}" for member in missing)
        limit = self._config.limits.group_timeout_s
        self._drop(
            group, Reason.TIMED_OUT, f"{group.group_id} still waits for {names} after limits.group_timeout_s ({limit:g} s)"
        )
        self._admit()

    def _drop(self, group: _OpenGroup, reason: Reason, detail: str, *, failed: int = 0) -> None:
        """End a group that cannot complete; what it still has in the policy or in engines is cancelled."""
        self._end(group)
        self._books.cancelled += group.num_members - group.num_finished - failed
        in_flight = self._policy.cancel_group(group.group_id)
        if in_flight:
            self._spawn(self._engine.abort([request.request_id for request in in_flight]))
        for request in in_flight:
            self._in_flight[str(request.request_id)].task.cancel()
        self._report_drop(group, reason, detail)
        self._check_ended()

    def _report_drop(self, group: _OpenGroup, reason: Reason, detail: str) -> None:
        self._books.dropped += 1
        self._timeline.emit("group_drop", round=self._index, group=group.group_id, reason=reason, detail=detail)
        self._queue.drop(group.group_id, reason, order=group.order)

    def _end(self, group: _OpenGroup) -> None:
        del self._open[group.group_id]
        if group.deadline is not None:
            group.deadline.cancel()

    def _check_ended(self) -> None:
        if not self._open and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _release_held(self) -> None:
        for group in scale_to_batch(self._held):
            self._queue.put(group)

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    async def _stop(self) -> None:
        """Nothing of this round runs on."""
        for group in self._open.values():
            if group.deadline is not None:
                group.deadline.cancel()
        if self._in_flight:
            await self._engine.abort(list(self._in_flight))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
