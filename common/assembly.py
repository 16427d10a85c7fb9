"""The groups of a round, from open to their one end: trained, filtered or dropped (rules 2, 3, 5).

open ──> all K members done ──> materialize ──> journal ──> queue.put | queue.drop, and perhaps a refill
  ├────> drop (a member failed beyond its retries, or the deadline passed) ──> journal ──> queue.drop
  └────> recorded: it stands in the journal of a round that is resumed ──> queue.put | queue.drop
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from common.books import Books
from common.config import Config
from common.evaluation.evaluator import Evaluator
from common.grpo import StdKind
from common.history import History
from common.journal_lines import Drop, Entry
from common.materialize import materialize, reward_stats, scale_to_batch
from common.open_group import Member, OpenGroup, Stage
from common.protocols import Engine, Problem, Trainer, Verifier
from common.recorded import misfit
from common.records import FinishReason, Group, Reason
from common.requests import group_name, group_requests
from common.timeline import Timeline
from common.waiting_queue import WaitingQueue

GroupListener = Callable[[Group, Problem], None]
DropListener = Callable[[str, int, Reason, str], None]
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
    on_group: GroupListener = lambda group, problem: None  # each complete group, trained or not, before the queue has it
    on_drop: DropListener = lambda group_id, order, reason, detail: None  # likewise a group that will not be complete
    on_rollout_end: Callable[[], None] = lambda: None  # every group has been reported
    recorded: Sequence[Entry] = ()  # what a try before this one has reported: used as it stands
    is_whole: bool = False  # with `recorded`, nothing is left to sample
    reject: Callable[[Entry, str], None] = lambda entry, why: None  # one of them that does not fit the round, and why
    refill: Refill = lambda: None  # one more problem, or None
    publish: Callable[[], Awaitable[None]] = _publish_nothing  # the round's weights, after its last update (rule 6)
    evaluator: Evaluator | None = None  # of the round's version, once the engines are idle
    history: History = field(default_factory=History)  # what the run has shown, for the adaptive schedule


class Assembly:
    """Opens groups, makes trainable ones of those that are complete, and tells the queue about each exactly once."""

    def __init__(self, config: Config, *, index: int, version: int, queue: WaitingQueue, parts: Parts, books: Books) -> None:
        self._config, self._index, self._version = config, index, version
        self._queue, self._parts, self._timeline, self._books = queue, parts, parts.timeline, books
        self.open: dict[str, OpenGroup] = {}  # by id, in order
        self._num_groups = 0  # opened so far: the order of the next one
        self._held: list[tuple[Group, Problem]] = []  # advantage_std `batch`: groups that wait for the batch

    def add(self, problem: Problem) -> OpenGroup:
        """Open the next group."""
        order, num_members = self._num_groups, self._config.responses_per_group
        requests = group_requests(self._index, order, problem.prompt_ids, num_members, self._config.seed)
        group_id = group_name(self._index, order)
        group = self.open[group_id] = OpenGroup(group_id, order, problem, [Member(request) for request in requests])
        self._num_groups += 1
        self._books.requests += num_members
        return group

    def complete(self, group: OpenGroup) -> OpenGroup | None:
        """All K members are done: fix the advantages and hand the group on. Returns the group that refills it, if any."""
        is_batch = self._config.advantage_std == "batch"
        std: StdKind = "none" if is_batch else self._config.advantage_std
        keep_flat = self._config.filter == "keep"
        done = materialize(group.group_id, group.order, self._version, group.samples(), std=std, keep_flat=keep_flat)
        self._end(group)
        self._tell_complete(done)
        if is_batch and done.filtered is None:
            self._held.append((done, group.problem))
            return None
        self._parts.on_group(done, group.problem)
        return self._report(done, group)

    def recover(self, entry: Entry) -> None:
        """End a group as an earlier try of this round has recorded it; one that does not fit stays open."""
        group = self.open.get(entry.group_id)
        why = "is not one of the round's groups"
        if group is None or (why := misfit(entry, group.problem, group.requests, self._version, self._config)):
            self._parts.reject(entry, why)
            return
        self._end(group)
        if isinstance(entry, Drop):
            self._books.cancelled += len(group.members)
            self._report_drop(group, entry.reason, entry.detail)
            return
        self._books.finished += len(group.members)
        self._books.unscored += sum(sample.reward is None for sample in entry.group.samples)
        self._tell_recorded(entry.group)
        self._tell_complete(entry.group)
        self._report(entry.group, group)

    def drop(self, group: OpenGroup, reason: Reason, detail: str) -> None:
        """End a group that cannot complete."""
        self._end(group)
        self._parts.on_drop(group.group_id, group.order, reason, detail)
        self._books.cancelled += len(group.members_in(Stage.WAITING, Stage.SAMPLING))
        self._report_drop(group, reason, detail)

    def release_held(self) -> None:
        """`advantage_std: batch`: the batch is complete, so its groups may go."""
        groups = scale_to_batch([group for group, _ in self._held])
        for group, (_, problem) in zip(groups, self._held, strict=True):
            self._parts.on_group(group, problem)
            self._queue.put(group)
        self._held = []

    def _tell_recorded(self, done: Group) -> None:
        """What responses and verdicts would have told, had they come in this try."""
        self._timeline.emit(
            "group_recorded",
            round=self._index,
            group=done.group_id,
            lengths=[sample.num_tokens for sample in done.samples],
            rewards=[sample.reward for sample in done.samples],
            statuses=[sample.status for sample in done.samples],
            cut_off=sum(sample.response.finish_reason is FinishReason.LENGTH for sample in done.samples),
        )

    def _tell_complete(self, done: Group) -> None:
        mean, spread = reward_stats(done.samples)
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

    def _report(self, done: Group, group: OpenGroup) -> OpenGroup | None:
        if done.filtered is None:
            self._queue.put(done)
            return None
        if done.filtered is Reason.FAILED:
            self._report_drop(group, Reason.FAILED, "fewer than two members have a reward")
            return None
        refill = self._refill()
        self._books.filtered += 1
        self._queue.drop(group.group_id, done.filtered, order=group.order)
        return refill

    def _report_drop(self, group: OpenGroup, reason: Reason, detail: str) -> None:
        self._books.dropped += 1
        self._timeline.emit("group_drop", round=self._index, group=group.group_id, reason=reason, detail=detail)
        self._queue.drop(group.group_id, reason, order=group.order)

    def _refill(self) -> OpenGroup | None:
        """A new group of the same round and version in place of a filtered one (rule 3)."""
        limit = self._config.groups_per_round if self._config.max_refills is None else self._config.max_refills
        if self._config.filter != "refill" or self._books.refilled >= limit:
            return None
        problem = self._parts.refill()
        if problem is None:
            return None
        self._books.refilled += 1
        self._queue.extend(1)
        return self.add(problem)

    def _end(self, group: OpenGroup) -> None:
        group.end()
        del self.open[group.group_id]
