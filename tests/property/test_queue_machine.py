"""The queue does, step by step, what the reference model does (rules 1, 3, 5, 10); and the machine finds every planted bug."""

from types import SimpleNamespace
from typing import Any

import pytest
from core_models import REASONS, MakeQueue, ReferenceQueue, refusal, run_machine
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from planted_queues import ClosesEarly, ClosesLate, LetsAnyVersionThrough

from common.errors import DuplicateGroupError, QueueClosedError, RoundFinished, StaleGroupError, UsageError
from common.queue import CompleteGroupQueue
from common.records import Dispatch, Reason

VERSION = 3
MAX_GROUPS = 8
any_order = st.integers(0, MAX_GROUPS + 1)
any_reason = st.sampled_from(REASONS)


def make_group(order: int, version: int = VERSION) -> Any:
    return SimpleNamespace(group_id=f"g{order}", order=order, weight_version=version)


class QueueMachine(RuleBasedStateMachine):
    make_queue: MakeQueue = CompleteGroupQueue

    @initialize(sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)), order=st.sampled_from(["arrival", "submission"]))
    def start(self, sizes: tuple[int, int], order: str) -> None:
        num_groups, per_update = max(sizes), min(sizes)
        self.model = ReferenceQueue(num_groups, per_update, order)
        self.queue = type(self).make_queue(
            groups_per_round=num_groups, groups_per_update=per_update, weight_version=VERSION, order=order
        )
        self.error: BaseException | None = None

    def reported(self) -> set[str]:
        """Ids of all groups put or dropped."""
        return {group.group_id for group in self.model.waiting + self.model.taken} | set(self.model.dropped)

    def expected_refusal(self, order: int) -> type[Exception] | None:
        """What a first report of this group must raise; None: it is welcome."""
        is_known = f"g{order}" in self.reported()
        if self.error is not None:
            return QueueClosedError
        if self.model.num_left() == 0:
            return DuplicateGroupError if is_known else QueueClosedError
        if is_known:
            return DuplicateGroupError
        if len(self.reported()) == self.model.num_expected:
            return UsageError
        if self.model.order == "submission" and order >= self.model.num_expected:
            return UsageError
        return None

    @rule(order=any_order)
    def put(self, order: int) -> None:
        expected = self.expected_refusal(order)
        assert refusal(lambda: self.queue.put(make_group(order))) is expected
        if expected is None:
            self.model.put(make_group(order))

    @rule(order=any_order, version=st.sampled_from([VERSION - 1, VERSION + 1]))
    def put_another_version(self, order: int, version: int) -> None:
        if self.error is None and self.model.num_left():
            assert refusal(lambda: self.queue.put(make_group(order, version))) is StaleGroupError

    @rule(order=any_order, reason=any_reason)
    def drop(self, order: int, reason: Reason) -> None:
        group_id = f"g{order}"
        is_waiting = any(group.group_id == group_id for group in self.model.waiting)
        expected = None if is_waiting and self.error is None else self.expected_refusal(order)
        assert refusal(lambda: self.queue.drop(group_id, reason, order=order)) is expected
        if expected is None:
            self.model.drop(group_id, order)

    @rule(num_groups=st.integers(0, 2))
    def extend(self, num_groups: int) -> None:
        if self.error is not None or self.model.num_left() == 0:
            assert refusal(lambda: self.queue.extend(num_groups)) is QueueClosedError
        elif num_groups == 0 or self.model.num_expected + num_groups > MAX_GROUPS:
            assert refusal(lambda: self.queue.extend(0)) is UsageError
        else:
            self.queue.extend(num_groups)
            self.model.num_expected += num_groups

    @rule()
    def take(self) -> None:
        if self.error is not None:
            with pytest.raises(type(self.error)) as caught:
                self.queue.take_nowait()
            assert caught.value is self.error
            return
        try:
            dispatch = self.queue.take_nowait()
        except RoundFinished:
            seen: tuple[list[Any], int, bool] | str = "end"
        else:
            seen = (list(dispatch.groups), dispatch.update_index, dispatch.is_last_of_update) if dispatch else "not yet"
        assert seen == self.model.take()
        assert all(group.weight_version == VERSION for group in (() if isinstance(seen, str) else seen[0]))

    @rule(luck=st.integers(0, 9))
    def fail(self, luck: int) -> None:
        if luck == 0:
            error = OSError("lost")
            self.queue.fail(error)
            self.error = self.error or error

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "queue"):
            return
        seen = self.queue.snapshot()
        assert seen.num_expected == seen.num_waiting + seen.num_taken + seen.num_dropped + seen.num_missing
        assert seen.num_expected == self.model.num_expected
        assert seen.num_waiting == len(self.model.waiting)
        assert seen.num_taken == len(self.model.taken)
        assert seen.num_dropped == sum(seen.dropped.values()) == len(self.model.dropped)
        assert seen.update_index == len(self.model.updates) - 1
        assert seen.is_closed == (self.error is not None or self.model.num_left() == 0)

    def teardown(self) -> None:
        """Whatever happened before, once all groups are reported the round ends, in updates of exactly U."""
        if not hasattr(self, "queue") or self.error is not None:
            return
        for order in range(self.model.num_expected):
            if self.expected_refusal(order) is None:
                self.put(order)
        for _ in range(2 * self.model.num_expected + 2):
            self.take()
        assert self.model.num_left() == 0
        assert refusal(lambda: self.queue.take_nowait()) is RoundFinished
        *whole, last = [len(update) for update in self.model.updates if update] or [0]
        assert set(whole) <= {self.model.per_update}
        assert last <= self.model.per_update


def test_the_queue_does_what_its_reference_does() -> None:
    run_machine(QueueMachine, max_examples=300, steps=40)


# --- planted bugs


class TrainsTwice(CompleteGroupQueue):
    """A group that was taken may be put again."""

    def take_nowait(self) -> Dispatch | None:
        dispatch = super().take_nowait()
        for group in dispatch.groups if dispatch else ():
            self._reported.discard(group.group_id)
        return dispatch


class LosesAGroup(CompleteGroupQueue):
    """The third group put is counted and never comes out."""

    def put(self, group: Any) -> None:
        super().put(group)
        if len(self._reported) == 3:
            del self._waiting[group.group_id]


class LeavesTheUpdateOpen(CompleteGroupQueue):
    """No empty dispatch where the rest of an update was dropped."""

    def _close_update(self, groups: tuple[Any, ...]) -> Dispatch:
        if not groups:
            raise RoundFinished
        return super()._close_update(groups)


class WaitsForTheDropped(CompleteGroupQueue):
    """Under submission, an order that was dropped is still waited for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._lineup.skip = lambda order: None  # type: ignore[method-assign]


PLANTED = [LetsAnyVersionThrough, TrainsTwice, LosesAGroup, ClosesEarly, ClosesLate, LeavesTheUpdateOpen, WaitsForTheDropped]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_the_machine_finds_the_planted_bug(bug: type[CompleteGroupQueue]) -> None:
    machine = type("Machine", (QueueMachine,), {"make_queue": bug})
    with pytest.raises(AssertionError):
        run_machine(machine, max_examples=3000, steps=40, shrink=False)  # it stops at the first find
