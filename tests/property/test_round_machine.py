"""Policy and queue through whole rounds, with everything that goes wrong in one: rules 1, 2, 3 and 5 of the design.

The machine is a small round of its own: slots, engines that lose requests or answer with another version, members that fail
beyond their retries, groups cancelled, filtered, refilled, and dropped while they wait. It checks only what the rules say.
"""

from collections import Counter
from collections.abc import Hashable
from types import SimpleNamespace
from typing import Any

import pytest
from core_models import REASONS, MakePolicy, MakeQueue, refusal, run_machine
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from planted_queues import ClosesEarly, ClosesLate, LetsAnyVersionThrough

from common._admission import WaitingGroup
from common.errors import RoundFinished, StaleGroupError, UnknownRequestError
from common.history import History
from common.lengths import Expected
from common.policies import AdaptiveFrontierDispatch, AdmissionPolicy, FifoAdmission, FrontierGroupDispatch
from common.queue import CompleteGroupQueue
from common.records import Dispatch, PipelineState, Reason, Request

VERSION, GROUP_SIZE, MAX_RETRIES, MAX_REFILLS = 5, 3, 1, 3


class RoundMachine(RuleBasedStateMachine):
    make_policy: MakePolicy
    make_queue: MakeQueue = CompleteGroupQueue
    is_strict = False

    @initialize(
        sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
        slots=st.integers(1, 7),
        width=st.integers(1, 3),
        order=st.sampled_from(["arrival", "submission"]),
        data=st.data(),
    )
    def start(self, sizes: tuple[int, int], slots: int, width: int, order: str, data: st.DataObject) -> None:
        self.num_groups, self.per_update = max(sizes), min(sizes)
        self.slots, self.width = slots, width
        self.policy = type(self).make_policy(width)
        self.queue = type(self).make_queue(
            groups_per_round=self.num_groups, groups_per_update=self.per_update, weight_version=VERSION, order=order
        )
        self.running: dict[Hashable, Request] = {}
        self.retries: Counter[Hashable] = Counter()
        self.members: dict[Hashable, dict[int, int]] = {}  # group id -> member -> version of its accepted response
        self.orders: dict[Hashable, int] = {}
        self.books: Counter[str] = Counter()  # trained, filtered, dropped, refilled; in, finished, failed, cancelled
        self.trained: list[Hashable] = []
        self.updates: list[int] = []  # groups of each closed update
        self.in_update = 0
        self.is_over = False
        self.now_s = 0.0
        self.to_submit = data.draw(st.permutations([r for order in range(self.num_groups) for r in self.open_group(order)]))

    def open_group(self, order: int) -> list[Request]:
        group_id = f"g{order}"
        self.members[group_id] = {}
        self.orders[group_id] = order
        self.books["in"] += GROUP_SIZE
        return [Request(request_id=f"{group_id}/{m}", group_id=group_id, order=order, member=m) for m in range(GROUP_SIZE)]

    # --- rollout side

    @rule(count=st.integers(1, 8))
    def submit(self, count: int) -> None:
        batch, self.to_submit = self.to_submit[:count], self.to_submit[count:]
        self.policy.submit(batch)

    @rule()
    def admit(self) -> None:
        free_slots = self.slots - len(self.running)
        self.policy.observe(self.state())
        admitted = self.policy.admit(free_slots)
        assert len(admitted) <= free_slots, "more admitted than slots are free"
        for request in admitted:
            assert request.request_id not in self.running
            assert request.group_id in self.members, "a request of a group that has ended was admitted"
            self.running[request.request_id] = request
        if self.is_strict:
            frontier = sorted({*self.unserved()}, key=self.orders.__getitem__)[: self.width]
            assert {request.group_id for request in admitted} <= set(frontier), "the strict frontier leaks"

    def state(self) -> PipelineState:
        """A second has passed."""
        self.now_s += 1.0
        return PipelineState(
            now_s=self.now_s,
            trainer_backlog_groups=self.queue.snapshot().num_waiting,
            trainer_groups_per_s=0.5,
            engine_tokens_per_s=0.0,
            engine_running=len(self.running),
            engine_capacity=self.slots,
            trainer_tokens_per_s=1.0,
        )

    def unserved(self) -> list[Hashable]:
        """Groups that have arrived, at least in part, and of which a request is not served."""
        unsubmitted = Counter(request.group_id for request in self.to_submit)
        return [g for g, members in self.members.items() if GROUP_SIZE - len(members) > unsubmitted[g]]

    @rule(data=st.data(), is_filtered=st.booleans(), wants_refill=st.booleans())
    @precondition(lambda self: getattr(self, "running", None))
    def answer(self, data: st.DataObject, is_filtered: bool, wants_refill: bool) -> None:
        request = self.running.pop(data.draw(st.sampled_from(sorted(self.running, key=str))))
        self.policy.finish(request.request_id, 5)
        members = self.members[request.group_id]
        assert request.member not in members, "a member was sampled twice"
        members[request.member] = VERSION
        self.books["finished"] += 1
        if len(members) == GROUP_SIZE:
            self.complete(request.group_id, is_filtered, wants_refill)

    def complete(self, group_id: Hashable, is_filtered: bool, wants_refill: bool) -> None:
        if not is_filtered:
            group = self.materialize(group_id, VERSION)
            assert refusal(lambda: self.queue.put(group)) is None, "a whole group of the round was refused"
            return
        if wants_refill and self.books["refilled"] < MAX_REFILLS:
            self.books["refilled"] += 1
            self.queue.extend(1)
            self.to_submit += self.open_group(len(self.orders))
        self.drop(group_id, Reason.FILTERED)

    def materialize(self, group_id: Hashable, version: int) -> Any:
        members = tuple(sorted(self.members.pop(group_id)))
        return SimpleNamespace(group_id=group_id, order=self.orders[group_id], weight_version=version, members=members)

    @rule(data=st.data(), is_stale=st.booleans())
    @precondition(lambda self: getattr(self, "running", None))
    def lose_or_reject(self, data: st.DataObject, is_stale: bool) -> None:
        """An engine loses the request (retried, up to a limit), or answers with another version (rule 1: sampled again)."""
        request = self.running.pop(data.draw(st.sampled_from(sorted(self.running, key=str))))
        self.retries[request.request_id] += not is_stale
        if self.retries[request.request_id] <= MAX_RETRIES:
            self.policy.requeue(request.request_id)
            return
        self.policy.finish(request.request_id)
        self.books["failed"] += 1
        self.cancel(request.group_id, Reason.FAILED, num_failed=1)

    @rule(data=st.data(), reason=st.sampled_from(REASONS))
    @precondition(lambda self: getattr(self, "members", None))
    def give_up_a_group(self, data: st.DataObject, reason: Reason) -> None:
        group_id = data.draw(st.sampled_from(sorted(self.members, key=str)))
        if not any(request.group_id == group_id for request in self.to_submit):
            self.cancel(group_id, reason)

    def cancel(self, group_id: Hashable, reason: Reason, *, num_failed: int = 0) -> None:
        num_finished = len(self.members.pop(group_id))
        self.books["cancelled"] += GROUP_SIZE - num_finished - num_failed
        self.to_submit = [request for request in self.to_submit if request.group_id != group_id]
        aborted = {request.request_id for request in self.policy.cancel_group(group_id)}
        assert aborted == {name for name, request in self.running.items() if request.group_id == group_id}
        for name in aborted:
            del self.running[name]
            assert refusal(lambda: self.policy.finish(name)) is UnknownRequestError  # noqa: B023
        self.drop(group_id, reason)

    def drop(self, group_id: Hashable, reason: Reason) -> None:
        self.members.pop(group_id, None)
        self.books["filtered" if reason is Reason.FILTERED else "dropped"] += 1
        assert refusal(lambda: self.queue.drop(group_id, reason, order=self.orders[group_id])) is None, "a drop was refused"

    @rule(data=st.data(), version=st.sampled_from([VERSION - 1, VERSION + 1]))
    @precondition(lambda self: getattr(self, "members", None))
    def materialize_another_version(self, data: st.DataObject, version: int) -> None:
        group_id = data.draw(st.sampled_from(sorted(self.members, key=str)))
        stale = SimpleNamespace(group_id=group_id, order=self.orders[group_id], weight_version=version, members=(0, 1, 2))
        assert refusal(lambda: self.queue.put(stale)) is StaleGroupError, "a group of another version was let through (rule 1)"

    # --- train side

    @rule()
    def take(self) -> None:
        try:
            dispatch = self.queue.take_nowait()
        except RoundFinished:
            self.is_over = True
            return
        assert not (self.is_over and dispatch), "a group after the end of the round"
        if dispatch is not None:
            self.train(dispatch)

    def train(self, dispatch: Dispatch) -> None:
        assert dispatch.update_index == len(self.updates)
        for group in dispatch.groups:
            assert group.weight_version == VERSION, "another version is trained (rule 1)"
            assert group.members == tuple(range(GROUP_SIZE)), "not a whole group (rule 2)"
            assert group.group_id not in self.trained, "a group is trained twice (rule 10)"
            self.trained.append(group.group_id)
            self.books["trained"] += 1
            self.in_update += 1
        if dispatch.is_last_of_update:
            self.updates.append(self.in_update)
            self.in_update = 0

    @rule(data=st.data())
    def drop_one_that_waits_for_the_trainer(self, data: st.DataObject) -> None:
        waiting = sorted(self.queue._waiting, key=str)
        if waiting:
            self.drop(data.draw(st.sampled_from(waiting)), Reason.CANCELLED)

    # --- rules

    @invariant()
    def slots_are_respected(self) -> None:
        if hasattr(self, "policy"):
            assert self.policy.snapshot().num_in_flight == len(self.running) <= self.slots

    def teardown(self) -> None:
        """Play the round to its end, and audit it."""
        if not hasattr(self, "policy"):
            return
        self.submit(len(self.to_submit))
        while self.members:
            self.admit()
            assert self.running, f"nothing runs, and these groups are not served: {sorted(self.members, key=str)}"
            request = self.running.pop(next(iter(self.running)))
            self.policy.finish(request.request_id)
            self.members[request.group_id][request.member] = VERSION
            self.books["finished"] += 1
            if len(self.members[request.group_id]) == GROUP_SIZE:
                self.complete(request.group_id, False, False)
        for _ in range(2 * len(self.orders) + 2):
            self.take()
        assert self.is_over, f"the trainer waits for ever, {self.queue.snapshot()}"
        self.audit()

    def audit(self) -> None:
        books = self.books
        ended = books["trained"] + books["filtered"] + books["dropped"]
        assert self.num_groups + books["refilled"] == ended, f"groups are lost (rule 3): {books}"
        assert books["in"] == books["finished"] + books["failed"] + books["cancelled"], f"requests are lost (rule 3): {books}"
        *whole, last = self.updates or [0]
        assert set(whole) <= {self.per_update}, f"an update before the last has not U groups (rule 5): {self.updates}"
        assert last <= self.per_update, f"the last update has more than U groups (rule 5): {self.updates}"
        assert self.in_update == 0, "the last update was never closed"
        assert sum(self.updates) == len(self.trained) == self.queue.snapshot().num_taken
        assert (self.policy.snapshot().num_waiting, self.policy.snapshot().num_in_flight) == (0, 0)


def shorter_first(request: Request) -> Expected:
    return Expected(tokens=1000.0 / (1 + request.order), error=0.3)


def make_adaptive(width: int) -> AdmissionPolicy:
    """Knows engine, trainer and lengths, so that it plans from the start."""
    history = History()
    for occupancy in (0.2, 0.6, 1.0):
        history.step_time.learn(1.0 + 2 * occupancy, occupancy)
    history.trainer_token_s = 1.0
    return AdaptiveFrontierDispatch(width, history=history, expect=shorter_first)


POLICIES: dict[str, MakePolicy] = {
    "fifo": lambda width: FifoAdmission(),
    "fgd": FrontierGroupDispatch,
    "fgd-strict": lambda width: FrontierGroupDispatch(width, work_conserving=False),
    "adaptive": make_adaptive,
}


def machine(kind: str, **planted: Any) -> type[RoundMachine]:
    settings = {"make_policy": staticmethod(POLICIES[kind]), "is_strict": kind == "fgd-strict", **planted}
    return type("Machine", (RoundMachine,), settings)


@pytest.mark.parametrize("kind", POLICIES)
def test_whole_rounds_keep_the_rules(kind: str) -> None:
    run_machine(machine(kind), max_examples=150, steps=50)


# --- planted bugs


class TrainsTwice(CompleteGroupQueue):
    """The first group taken comes again in place of the second."""

    def take_nowait(self) -> Dispatch | None:
        dispatch = super().take_nowait()
        if dispatch and dispatch.groups:
            self.first = getattr(self, "first", dispatch.groups)
            dispatch = Dispatch(
                groups=self.first, update_index=dispatch.update_index, is_last_of_update=dispatch.is_last_of_update
            )
        return dispatch


class LosesAGroup(CompleteGroupQueue):
    """The second group put is reported and never comes out."""

    def put(self, group: Any) -> None:
        super().put(group)
        if len(self._reported) == 2:
            del self._waiting[group.group_id]


class AdmitsOneTooMany(FifoAdmission):
    def admit(self, free_slots: int) -> list[Request]:
        return super().admit(free_slots + 1)


class ForgetsRequeued(FifoAdmission):
    def requeue(self, request_id: Hashable) -> None:
        self.finish(request_id)


class LeakyFrontier(FrontierGroupDispatch):
    """Strict in name: deferred groups enter once no frontier group waits."""

    def _next(self) -> WaitingGroup | None:
        return super()._next() or self._ready.lowest()


PLANTED = {
    "mixed version": machine("fgd", make_queue=LetsAnyVersionThrough),
    "trained twice": machine("fgd", make_queue=TrainsTwice),
    "lost group": machine("fifo", make_queue=LosesAGroup),
    "update of U-1": machine("fifo", make_queue=ClosesEarly),
    "update of U+1": machine("fifo", make_queue=ClosesLate),
    "too many admitted": machine("fifo", make_policy=staticmethod(lambda width: AdmitsOneTooMany())),
    "requeued forgotten": machine("fifo", make_policy=staticmethod(lambda width: ForgetsRequeued())),
    "leaky frontier": machine("fgd-strict", make_policy=staticmethod(lambda width: LeakyFrontier(width, work_conserving=False))),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_the_round_finds_the_planted_bug(bug: str) -> None:
    with pytest.raises(AssertionError):
        run_machine(PLANTED[bug], max_examples=3000, steps=50, shrink=False)  # it stops at the first find
