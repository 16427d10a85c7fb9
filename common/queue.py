"""The complete-group queue: hands whole groups to the trainer, in updates of exactly U (paper, section "CGP").

A synchronous object that the caller drives; `common.waiting_queue` adds the wait. It serves one round of one weight version.
Every group of the round is reported once, by `put` or `drop`, and the books always balance:

    expected (R + refills) = waiting + taken + dropped + missing

    queue = CompleteGroupQueue(groups_per_round=4, groups_per_update=2, weight_version=7)
    queue.put(a); queue.take_nowait()       -> Dispatch(groups=(a,), update_index=0, is_last_of_update=False)
    queue.drop("b", Reason.FAILED)
    queue.put(c); queue.take_nowait()       -> Dispatch(groups=(c,), update_index=0, is_last_of_update=True)
    queue.drop("d", Reason.TIMED_OUT); queue.take_nowait()      raises RoundFinished

Every call is atomic: one that raises has changed nothing. Costs: O(1) a group, amortized.
"""

from collections import deque
from collections.abc import Hashable
from types import TracebackType
from typing import Literal, Protocol

from common.errors import (
    DuplicateGroupError,
    QueueClosedError,
    RoundFinished,
    StaleGroupError,
    UsageError,
    check_count,
    explain,
)
from common.records import Dispatch, QueueSnapshot, Reason


class QueuedGroup(Protocol):
    """What the queue needs of a group; `order` too where the queue's order is "submission"."""

    @property
    def group_id(self) -> Hashable: ...
    @property
    def weight_version(self) -> int: ...


class CompleteGroupQueue:
    """Whole groups of one round in, dispatches out.

    `order`: "arrival" hands groups out as they were put; "submission" by their `order` (0, 1, 2 ... without holes;
    refills go on from R), whatever the timing, so the update sequence is always the same.
    Raises UsageError for counts below 1 or U above R.
    """

    def __init__(
        self,
        *,
        groups_per_round: int,
        groups_per_update: int,
        weight_version: int,
        order: Literal["arrival", "submission"] = "arrival",
    ) -> None:
        check_count("groups_per_round", groups_per_round, 1, "raise it")
        check_count("groups_per_update", groups_per_update, 1, "raise it")
        if groups_per_update > groups_per_round:
            rule = f"must be at most groups_per_round ({groups_per_round})"
            raise UsageError(explain("groups_per_update", rule, groups_per_update, "change one of the two"))
        if order not in ("arrival", "submission"):
            raise UsageError(explain("order", "must be arrival or submission", order, "use arrival"))
        self._per_update = groups_per_update
        self._version = weight_version
        self._lineup: _ArrivalLineup | _SubmissionLineup = _ArrivalLineup() if order == "arrival" else _SubmissionLineup()
        self._waiting: dict[Hashable, QueuedGroup] = {}
        self._reported: set[Hashable] = set()
        self._num_expected = groups_per_round
        self._num_taken = 0
        self._dropped = dict.fromkeys(Reason, 0)
        self._update_index = 0
        self._in_update = 0  # groups of the open update taken so far, < U
        self._error: BaseException | None = None
        self._error_traceback: TracebackType | None = None

    def put(self, group: QueuedGroup) -> None:
        """A trainable group.

        Raises StaleGroupError for another weight version (rule 1), DuplicateGroupError for a group reported before,
        QueueClosedError after the end or a failure, UsageError for more groups than expected.
        """
        self._check_open(group.group_id, "put")
        if group.weight_version != self._version:
            rule = f"must be the round's version {self._version} (group {group.group_id!r})"
            raise StaleGroupError(explain("weight_version", rule, group.weight_version, "sample the group again"))
        self._check_new(group.group_id)
        order = getattr(group, "order", None)
        self._lineup.check(group.group_id, order, self._num_expected)
        self._lineup.put(group.group_id, order)
        self._reported.add(group.group_id)
        self._waiting[group.group_id] = group

    def drop(self, group_id: Hashable, reason: Reason, *, order: int | None = None) -> None:
        """A group that will not be trained: counted, never waited for. One put and not yet taken may be dropped.

        Under "submission" the order of a group never put must be given. Raises as `put`, and UsageError for an unknown reason.
        """
        self._check_open(group_id, "drop")
        if reason not in tuple(Reason):
            raise UsageError(explain("reason", f"must be one of {', '.join(Reason)}", reason, "use common.records.Reason"))
        if group_id in self._waiting:
            del self._waiting[group_id]
        else:
            self._check_new(group_id)
            self._lineup.check(group_id, order, self._num_expected)
            self._lineup.skip(order)
            self._reported.add(group_id)
        self._dropped[Reason(reason)] += 1

    def extend(self, num_groups: int) -> None:
        """Expect more groups (refills). Call it before the drop that they replace. Raises UsageError, QueueClosedError."""
        self._check_open(None, "extend")
        check_count("num_groups", num_groups, 1, "call extend only for a refill")
        self._num_expected += num_groups

    def fail(self, error: BaseException) -> None:
        """The producer died: every later `take_nowait` raises `error` (rule 7). The first failure stays. Raises UsageError."""
        if not isinstance(error, BaseException):
            raise UsageError(explain("error", "must be an exception", error, "pass the producer's exception itself"))
        if self._error is None:
            self._error = error
            self._error_traceback = error.__traceback__

    def take_nowait(self) -> Dispatch | None:
        """The next group; None: not yet. Raises RoundFinished where nothing will come, and the error of `fail`."""
        if self._error is not None:
            raise self._error.with_traceback(self._error_traceback)  # else it would grow with each call
        group_id = self._lineup.pop(self._waiting)
        if group_id is not None:
            return self._dispatch(self._waiting.pop(group_id))
        if self._num_left:
            return None
        if self._in_update:
            return self._close_update(())  # the groups that the open update still waited for were dropped (rule 5)
        raise RoundFinished("every group of the round was taken or dropped")

    def snapshot(self) -> QueueSnapshot:
        """Frozen counts."""
        num_waiting = len(self._waiting)
        return QueueSnapshot(
            num_expected=self._num_expected,
            num_waiting=num_waiting,
            num_taken=self._num_taken,
            num_dropped=sum(self._dropped.values()),
            dropped={reason: count for reason, count in self._dropped.items() if count},
            num_missing=self._num_left - num_waiting,
            update_index=self._update_index,
            is_closed=not self._num_left or self._error is not None,
        )

    @property
    def _num_left(self) -> int:
        return self._num_expected - self._num_taken - sum(self._dropped.values())

    def _dispatch(self, group: QueuedGroup) -> Dispatch:
        self._num_taken += 1
        self._in_update += 1
        if self._in_update == self._per_update or not self._num_left:
            return self._close_update((group,))
        return Dispatch(groups=(group,), update_index=self._update_index, is_last_of_update=False)

    def _close_update(self, groups: tuple[QueuedGroup, ...]) -> Dispatch:
        dispatch = Dispatch(groups=groups, update_index=self._update_index, is_last_of_update=True)
        self._update_index += 1
        self._in_update = 0
        return dispatch

    def _check_open(self, group_id: Hashable | None, call: str) -> None:
        if self._error is None and self._num_left:
            return
        if self._error is None and call != "extend" and group_id in self._reported:
            self._check_new(group_id)
        state = f"the queue has failed ({self._error!r})" if self._error is not None else "the round has ended"
        what = call if call == "extend" else f"{call} of group {group_id!r}"
        raise QueueClosedError(f"{what}: {state}; start a new round")

    def _check_new(self, group_id: Hashable) -> None:
        if group_id in self._reported:
            rule = "must be reported once, by put or drop"
            raise DuplicateGroupError(explain("group_id", rule, group_id, "report each group once a round"))
        if len(self._reported) >= self._num_expected:
            rule = f"must be one of the {self._num_expected} groups that the round expects"
            raise UsageError(explain("group_id", rule, group_id, "call extend first for a refill"))


_NOBODY = object()  # stands in line for a group that was dropped before it was put


class _ArrivalLineup:
    """Groups in the order in which they were put; dropped ones are skipped."""

    def __init__(self) -> None:
        self._ids: deque[Hashable] = deque()

    def check(self, group_id: Hashable, order: int | None, num_expected: int) -> None:
        """Any order will do."""

    def put(self, group_id: Hashable, order: int | None) -> None:
        self._ids.append(group_id)

    def skip(self, order: int | None) -> None:
        """Nothing stands in line for it."""

    def pop(self, waiting: dict[Hashable, QueuedGroup]) -> Hashable | None:
        while self._ids:
            group_id = self._ids.popleft()
            if group_id in waiting:
                return group_id
        return None


class _SubmissionLineup:
    """Groups by order; each order is released once all lower ones were released or skipped."""

    def __init__(self) -> None:
        self._ids: dict[int, Hashable] = {}  # by order; _NOBODY where it is skipped
        self._next = 0

    def check(self, group_id: Hashable, order: int | None, num_expected: int) -> None:
        of_group = f"(group {group_id!r})"
        if order is None:
            rule = f"must be known under order submission {of_group}"
            raise UsageError(explain("order", rule, order, "give the group its order, or pass order= to drop"))
        check_count("order", order, 0, f"number the groups of a round from 0 without holes {of_group}")
        if order >= num_expected:
            rule = f"must be below {num_expected}, the number of groups that the round expects {of_group}"
            raise UsageError(explain("order", rule, order, "number the groups of a round from 0 without holes"))
        if order < self._next or order in self._ids:
            rule = f"must be one group's alone {of_group}"
            raise UsageError(explain("order", rule, order, "number the groups of a round from 0 without holes"))

    def put(self, group_id: Hashable, order: int | None) -> None:
        assert order is not None  # checked before
        self._ids[order] = group_id

    def skip(self, order: int | None) -> None:
        self.put(_NOBODY, order)

    def pop(self, waiting: dict[Hashable, QueuedGroup]) -> Hashable | None:
        while self._next in self._ids:
            group_id = self._ids.pop(self._next)
            self._next += 1
            if group_id in waiting:
                return group_id
        return None
