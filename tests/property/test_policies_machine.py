"""Each policy does, step by step, what the reference model does; and the machine finds every bug planted in a policy.

The adaptive one decides by what it observes, which the machine makes up, as it does the predictions: there the order is not
checked, but all else that holds of any policy.
"""

import math
from collections.abc import Hashable, Iterable

import pytest
from core_models import MakePolicy, ReferencePolicy, refusal, run_machine
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from common._admission import WaitingGroup
from common._plans import Plan
from common.errors import DuplicateRequestError, RolloutPipeError, UnknownRequestError, UsageError
from common.forecast import Width
from common.history import History
from common.lengths import Expected
from common.policies import AdaptiveFrontierDispatch, FifoAdmission, FrontierGroupDispatch
from common.records import PipelineState, Request

NUM_GROUPS = 6
GROUP_SIZE = 3
# Groups 4 and 5 share an order, so that ties are met; ids and orders run in different directions.
UNIVERSE = [
    Request(request_id=f"{group}/{member}", group_id=group, order=min(NUM_GROUPS - 1 - group, 4), member=member)
    for group in range(NUM_GROUPS)
    for member in range(GROUP_SIZE)
]
any_request = st.sampled_from(UNIVERSE)


states = st.builds(
    PipelineState,
    now_s=st.floats(0, 100),
    trainer_backlog_groups=st.integers(0, 3),
    trainer_groups_per_s=st.floats(0, 2),
    engine_tokens_per_s=st.just(0.0),
    engine_running=st.just(0),
    engine_capacity=st.integers(0, 9),
    trainer_tokens_per_s=st.sampled_from([0.0, 0.01, 1.0, 1e6]),
    trainer_update_s=st.floats(0, 5),
)
expectations = st.builds(Expected, tokens=st.floats(1e-3, 1e6), error=st.sampled_from([0.0, 0.0, 0.5, 3.0, math.inf]))


class PolicyMachine(RuleBasedStateMachine):
    kind: str
    make_policy: MakePolicy

    @initialize(width=st.integers(1, 3), data=st.data())
    def start(self, width: int, data: st.DataObject) -> None:
        self.model = ReferencePolicy(self.kind, width)
        if self.kind == "adaptive":
            predicted = data.draw(st.none() | st.lists(expectations, min_size=NUM_GROUPS, max_size=NUM_GROUPS))
            self.policy = type(self).make_policy(width, predicted, data.draw(st.booleans()))
        else:
            self.policy = type(self).make_policy(width)

    def known(self) -> list[Request]:
        return self.model.waiting + self.model.in_flight + self.model.out

    @rule(batch=st.lists(any_request, max_size=8, unique=True))
    def submit(self, batch: list[Request]) -> None:
        if any(request in self.known() for request in batch):
            assert refusal(lambda: self.policy.submit(batch)) is DuplicateRequestError
            batch = [request for request in batch if request not in self.known()]
        self.policy.submit(iter(batch))
        self.model.submit(batch)

    @rule(free_slots=st.integers(0, 5))
    def admit(self, free_slots: int) -> None:
        admitted = self.policy.admit(free_slots)
        assert len(admitted) <= free_slots
        if self.kind == "adaptive":
            self.model.follow(admitted)
        else:
            assert admitted == self.model.admit(free_slots)

    @rule(state=states)
    def observe(self, state: PipelineState) -> None:
        self.policy.observe(state)

    @rule(request=any_request, num_tokens=st.none() | st.integers(0, 1000))
    def finish(self, request: Request, num_tokens: int | None = None) -> None:
        if request in self.model.in_flight:
            self.policy.finish(request.request_id, num_tokens)
            self.model.finish(request)
        else:
            assert refusal(lambda: self.policy.finish(request.request_id)) is UnknownRequestError

    @rule(data=st.data(), num_tokens=st.none() | st.integers(0, 1000))
    def finish_one_in_flight(self, data: st.DataObject, num_tokens: int | None) -> None:
        if self.model.in_flight:
            self.finish(data.draw(st.sampled_from(self.model.in_flight)), num_tokens)

    @rule(state=states, num_tokens=st.integers(1, 1000))
    def serve_all_in_flight(self, state: PipelineState, num_tokens: int) -> None:
        """Time passes, all responses come in, and the slots are filled again: an adaptive policy learns and plans."""
        for request in list(self.model.in_flight):
            self.finish(request, num_tokens)
        self.observe(state)
        self.admit(5)

    @rule(data=st.data())
    def requeue_one_in_flight(self, data: st.DataObject) -> None:
        if self.model.in_flight:
            request = data.draw(st.sampled_from(self.model.in_flight))
            self.policy.requeue(request.request_id)
            self.model.requeue(request)

    @rule(request=any_request)
    def requeue(self, request: Request) -> None:
        if request not in self.model.in_flight:
            assert refusal(lambda: self.policy.requeue(request.request_id)) is UnknownRequestError

    @rule(group_id=st.integers(0, NUM_GROUPS - 1))
    def cancel_group(self, group_id: int) -> None:
        if group_id in self.model.group_ids:
            cancelled = self.policy.cancel_group(group_id)
            assert sorted(cancelled, key=UNIVERSE.index) == sorted(self.model.cancel_group(group_id), key=UNIVERSE.index)
        else:
            assert refusal(lambda: self.policy.cancel_group(group_id)) is UnknownRequestError

    @rule(request=any_request)
    def give_a_group_another_order(self, request: Request) -> None:
        wrong = Request(request_id="new", group_id=request.group_id, order=99)
        if request.group_id in self.model.group_ids:
            assert refusal(lambda: self.policy.submit([wrong])) is UsageError

    @rule()
    def ask_for_negative_slots(self) -> None:
        assert refusal(lambda: self.policy.admit(-1)) is UsageError

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "policy"):
            return
        seen = self.policy.snapshot()
        assert seen.num_waiting == len(self.model.waiting)
        assert seen.num_in_flight == len(self.model.in_flight)
        assert seen.num_groups == len(self.model.open_groups())
        if self.kind != "adaptive":
            assert seen.frontier == self.model.frontier()

    def teardown(self) -> None:
        """Nothing is lost: whatever happened before, all that still waits is served to the end."""
        if not hasattr(self, "policy"):
            return
        while self.model.waiting or self.model.in_flight:
            self.admit(4)
            assert self.model.in_flight, "requests wait, nothing is in flight, and nothing is admitted"
            self.finish(self.model.in_flight[0])
        assert self.policy.admit(9) == []
        self.counts_agree()


def machine(kind: str, make_policy: MakePolicy) -> type[PolicyMachine]:
    return type("Machine", (PolicyMachine,), {"kind": kind, "make_policy": staticmethod(make_policy)})


def make_adaptive(
    width: int, predicted: list[Expected] | None, reorder: bool, kind: type[AdaptiveFrontierDispatch] = AdaptiveFrontierDispatch
) -> AdaptiveFrontierDispatch:
    """Knows the engine and the trainer, so that it plans as soon as it can predict; `predicted` by group, None: learns it."""
    history = History()
    for occupancy in (0.2, 0.4, 0.6, 0.8, 1.0):
        history.step_time.learn(1.0 + occupancy, occupancy)
    history.trainer_token_s = 0.01
    expect = None if predicted is None else lambda request: predicted[request.group_id]
    return kind(width, history=history, expect=expect, reorder=reorder, in_order=not reorder)


SHIPPED: dict[str, MakePolicy] = {
    "fifo": lambda width: FifoAdmission(),
    "fgd": FrontierGroupDispatch,
    "fgd-strict": lambda width: FrontierGroupDispatch(width, work_conserving=False),
    "adaptive": make_adaptive,
}


@pytest.mark.parametrize("kind", SHIPPED)
def test_a_policy_does_what_its_reference_does(kind: str) -> None:
    run_machine(machine(kind, SHIPPED[kind]), max_examples=150, steps=40)


# --- planted bugs


class AdmitsOneTooMany(FifoAdmission):
    def admit(self, free_slots: int) -> list[Request]:
        return super().admit(free_slots + 1 if free_slots == 5 else free_slots)


class ForgetsRequeued(FrontierGroupDispatch):
    def requeue(self, request_id: Hashable) -> None:
        self.finish(request_id)


class RequeuesToTheBack(FifoAdmission):
    def _returned(self, request: Request, group: WaitingGroup) -> None:
        super()._returned(request, group)
        self._order.rotate(-1)


class LeaksWhileAFrontierGroupIsInFlight(FrontierGroupDispatch):
    """A strict frontier that counts only groups with waiting requests."""

    def __init__(self, width: int) -> None:
        super().__init__(width, work_conserving=False)

    def _next(self) -> WaitingGroup | None:
        group = super()._next()
        if group is None and not any(member.next_waiting() for member in self._frontier):
            return self._ready.lowest()
        return group


class LateGroupsStayOutside(FrontierGroupDispatch):
    """A lower-order group that arrives late does not displace the frontier."""

    def _opened(self, group: WaitingGroup) -> None:
        if len(self._frontier) < self._width:
            self._enter_frontier(group)
        else:
            self._deferred.push(group)


class CancelsOnlyWhatIsInFlight(FifoAdmission):
    """What waits of a cancelled group still enters."""

    def cancel_group(self, group_id: Hashable) -> list[Request]:
        waiting = [request for request in self._order if request.group_id == group_id]
        cancelled = super().cancel_group(group_id)
        self._known -= {request.request_id for request in waiting}
        super().submit(waiting)
        return cancelled


class SubmitsTwice(FifoAdmission):
    def submit(self, requests: Iterable[Request]) -> None:
        new = list(requests)
        super().submit([request for request in new if request.request_id not in self._known])


class LosesAGroupOnReplan(AdaptiveFrontierDispatch):
    """The last group of a new plan is left out of the heap."""

    def _follow(self, plan: Plan, begun: list[WaitingGroup], fresh: list[WaitingGroup], capacity: float) -> None:
        super()._follow(plan, begun, fresh, capacity)
        self._heap = [entry for entry in self._heap if entry[-1] is not fresh[plan.order[-1]]]


class RanksAreStale(AdaptiveFrontierDispatch):
    """A group that is popped because it has nothing waiting never enters the heap again."""

    def _first_by_rank(self) -> WaitingGroup | None:
        group = super()._first_by_rank()
        for known in self._groups.values():
            known.is_ready = True
        return group


class MayRunNothing(AdaptiveFrontierDispatch):
    """A plan that is left with one group holds it back until another ends, and nothing may be in flight."""

    def _follow(self, plan: Plan, begun: list[WaitingGroup], fresh: list[WaitingGroup], capacity: float) -> None:
        super()._follow(plan, begun, fresh, capacity)
        if len(fresh) == 1:
            self._width = Width(0, math.inf, self._num_closed + 1)


class ExceedsTheSlots(AdaptiveFrontierDispatch):
    """Once it has a plan."""

    def admit(self, free_slots: int) -> list[Request]:
        return super().admit(free_slots + (self.plan is not None))


class RequeuesToTheEnd(AdaptiveFrontierDispatch):
    def _returned(self, request: Request, group: WaitingGroup) -> None:
        assert group.returned is not None
        group.returned.insert(0, group.returned.pop())
        super()._returned(request, group)


class HalfRefuses(AdaptiveFrontierDispatch):
    """A finish that is refused has counted."""

    def finish(self, request_id: Hashable, num_tokens: int | None = None) -> None:
        self._num_waiting -= request_id not in self._in_flight
        super().finish(request_id, num_tokens)


def adaptive(kind: type[AdaptiveFrontierDispatch]) -> tuple[str, MakePolicy]:
    return "adaptive", lambda width, predicted, reorder: make_adaptive(width, predicted, reorder, kind)


PLANTED: dict[type, tuple[str, MakePolicy]] = {
    AdmitsOneTooMany: ("fifo", lambda width: AdmitsOneTooMany()),
    ForgetsRequeued: ("fgd", ForgetsRequeued),
    RequeuesToTheBack: ("fifo", lambda width: RequeuesToTheBack()),
    LeaksWhileAFrontierGroupIsInFlight: ("fgd-strict", LeaksWhileAFrontierGroupIsInFlight),
    LateGroupsStayOutside: ("fgd", LateGroupsStayOutside),
    CancelsOnlyWhatIsInFlight: ("fifo", lambda width: CancelsOnlyWhatIsInFlight()),
    SubmitsTwice: ("fifo", lambda width: SubmitsTwice()),
    **{
        kind: adaptive(kind)
        for kind in (LosesAGroupOnReplan, RanksAreStale, MayRunNothing, ExceedsTheSlots, RequeuesToTheEnd, HalfRefuses)
    },
}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_the_machine_finds_the_planted_bug(bug: type) -> None:
    kind, make_policy = PLANTED[bug]
    with pytest.raises((AssertionError, RolloutPipeError)):
        run_machine(machine(kind, make_policy), max_examples=3000, steps=40, shrink=False)  # it stops at the first find
