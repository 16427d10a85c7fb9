"""Each policy does, step by step, what the reference model does; and the machine finds every bug planted in a policy."""

from collections.abc import Hashable, Iterable

import pytest
from core_models import MakePolicy, ReferencePolicy, refusal, run_machine
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from common._admission import WaitingGroup
from common.errors import DuplicateRequestError, UnknownRequestError, UsageError
from common.policies import FifoAdmission, FrontierGroupDispatch
from common.records import Request

NUM_GROUPS = 6
GROUP_SIZE = 3
# Groups 4 and 5 share an order, so that ties are met; ids and orders run in different directions.
UNIVERSE = [
    Request(request_id=f"{group}/{member}", group_id=group, order=min(NUM_GROUPS - 1 - group, 4), member=member)
    for group in range(NUM_GROUPS)
    for member in range(GROUP_SIZE)
]
any_request = st.sampled_from(UNIVERSE)


class PolicyMachine(RuleBasedStateMachine):
    kind: str
    make_policy: MakePolicy

    @initialize(width=st.integers(1, 3))
    def start(self, width: int) -> None:
        self.model = ReferencePolicy(self.kind, width)
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
        assert admitted == self.model.admit(free_slots)

    @rule(request=any_request)
    def finish(self, request: Request) -> None:
        if request in self.model.in_flight:
            self.policy.finish(request.request_id)
            self.model.finish(request)
        else:
            assert refusal(lambda: self.policy.finish(request.request_id)) is UnknownRequestError

    @rule(data=st.data())
    def finish_one_in_flight(self, data: st.DataObject) -> None:
        if self.model.in_flight:
            self.finish(data.draw(st.sampled_from(self.model.in_flight)))

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


SHIPPED: dict[str, MakePolicy] = {
    "fifo": lambda width: FifoAdmission(),
    "fgd": FrontierGroupDispatch,
    "fgd-strict": lambda width: FrontierGroupDispatch(width, work_conserving=False),
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


PLANTED: dict[type, tuple[str, MakePolicy]] = {
    AdmitsOneTooMany: ("fifo", lambda width: AdmitsOneTooMany()),
    ForgetsRequeued: ("fgd", ForgetsRequeued),
    RequeuesToTheBack: ("fifo", lambda width: RequeuesToTheBack()),
    LeaksWhileAFrontierGroupIsInFlight: ("fgd-strict", LeaksWhileAFrontierGroupIsInFlight),
    LateGroupsStayOutside: ("fgd", LateGroupsStayOutside),
    CancelsOnlyWhatIsInFlight: ("fifo", lambda width: CancelsOnlyWhatIsInFlight()),
    SubmitsTwice: ("fifo", lambda width: SubmitsTwice()),
}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_the_machine_finds_the_planted_bug(bug: type) -> None:
    kind, make_policy = PLANTED[bug]
    with pytest.raises(AssertionError):
        run_machine(machine(kind, make_policy), max_examples=3000, steps=40, shrink=False)  # it stops at the first find
