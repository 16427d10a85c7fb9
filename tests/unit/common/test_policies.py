"""Admission policies, one claim of the design (sections 1 and 5) a test. R groups a, b, c ... have orders 0, 1, 2 ..."""

import pytest

from common.errors import DuplicateRequestError, UnknownRequestError, UsageError
from common.policies import AdaptiveFrontierDispatch, AdmissionPolicy, FifoAdmission, FrontierGroupDispatch
from common.records import PipelineState, Request

POLICIES = {
    "fifo": FifoAdmission,
    "fgd": FrontierGroupDispatch,
    "fgd-strict": lambda: FrontierGroupDispatch(work_conserving=False),
    "adaptive": AdaptiveFrontierDispatch,
}


@pytest.fixture(params=POLICIES.values(), ids=POLICIES)
def policy(request: pytest.FixtureRequest) -> AdmissionPolicy:
    return request.param()


def requests(names: str) -> list[Request]:
    """`"a0 b0"`: member 0 of group a (order 0) and of group b (order 1)."""
    return [Request(request_id=n, group_id=n[0], order=ord(n[0]) - ord("a"), member=int(n[1])) for n in names.split()]


def admitted(policy: AdmissionPolicy, free_slots: int) -> str:
    return " ".join(str(request.request_id) for request in policy.admit(free_slots))


def counts(policy: AdmissionPolicy) -> tuple[int, int, int]:
    """Waiting, in flight, open groups."""
    seen = policy.snapshot()
    return seen.num_waiting, seen.num_in_flight, seen.num_groups


# --- order of admission


def test_fifo_admits_in_order_of_arrival() -> None:
    policy = FifoAdmission()
    policy.submit(requests("c0 a0 b0 a1"))
    assert admitted(policy, 3) == "c0 a0 b0"
    assert admitted(policy, 3) == "a1"


@pytest.mark.parametrize("arrival", ["a0 a1 b0 b1 c0 c1", "a0 b0 c0 a1 b1 c1", "c1 b0 a1 c0 a0 b1"])
def test_fgd_admits_by_group_order_whatever_the_order_of_arrival(arrival: str) -> None:
    policy = FrontierGroupDispatch(frontier_width=2)
    policy.submit(requests(arrival))
    assert [name[0] for name in admitted(policy, 6).split()] == ["a", "a", "b", "b", "c", "c"]


def test_members_of_a_group_enter_in_order_of_arrival() -> None:
    policy = FrontierGroupDispatch()
    policy.submit(requests("b1 a1 b0 a0"))
    assert admitted(policy, 4) == "a1 a0 b1 b0"


def test_work_conserving_fills_free_slots_with_deferred_groups() -> None:
    policy = FrontierGroupDispatch(frontier_width=1)
    policy.submit(requests("a0 b0 c0"))
    assert admitted(policy, 3) == "a0 b0 c0"


def test_strict_leaves_slots_free_rather_than_admit_a_deferred_group() -> None:
    policy = FrontierGroupDispatch(frontier_width=2, work_conserving=False)
    policy.submit(requests("a0 a1 b0 c0 d0"))
    assert admitted(policy, 9) == "a0 a1 b0"
    assert admitted(policy, 9) == ""
    policy.finish("a0")
    assert admitted(policy, 9) == ""  # a1 is still in flight, so a is still frontier
    policy.finish("a1")
    assert admitted(policy, 9) == "c0"  # a has left, the lowest deferred group has entered
    policy.finish("b0")
    assert admitted(policy, 9) == "d0"


def test_groups_of_equal_order_are_served_in_order_of_arrival() -> None:
    policy = FrontierGroupDispatch(frontier_width=1, work_conserving=False)
    policy.submit(
        Request(request_id=f"{group}{member}", group_id=group, order=0, member=member) for member in (0, 1) for group in "yx"
    )
    assert admitted(policy, 9) == "y0 y1"
    assert policy.snapshot().frontier == ("y",)


# --- frontier


def test_the_frontier_is_the_lowest_groups_not_yet_served_completely() -> None:
    policy = FrontierGroupDispatch(frontier_width=2)
    policy.submit(requests("d0 b0 c0 b1"))
    assert policy.snapshot().frontier == ("b", "c")
    policy.admit(2)
    policy.finish("b0")
    assert policy.snapshot().frontier == ("b", "c")
    policy.finish("b1")
    assert policy.snapshot().frontier == ("c", "d")


def test_a_late_lower_group_displaces_the_highest_of_the_frontier() -> None:
    policy = FrontierGroupDispatch(frontier_width=2, work_conserving=False)
    policy.submit(requests("b0 b1 c0 c1 d0"))
    assert admitted(policy, 1) == "b0"
    policy.submit(requests("a0 a1"))
    assert policy.snapshot().frontier == ("a", "b")
    assert admitted(policy, 9) == "a0 a1 b1"  # c waits again
    policy.finish("a0")
    policy.finish("a1")
    assert policy.snapshot().frontier == ("b", "c")
    assert admitted(policy, 9) == "c0 c1"


def test_a_late_group_between_enters_in_its_place() -> None:
    policy = FrontierGroupDispatch(frontier_width=2)
    policy.submit(requests("a0 d0"))
    policy.submit(requests("c0"))
    policy.submit(requests("b0"))
    assert policy.snapshot().frontier == ("a", "b")
    assert admitted(policy, 4) == "a0 b0 c0 d0"


def test_a_fifo_has_no_frontier() -> None:
    policy = FifoAdmission()
    policy.submit(requests("a0"))
    assert policy.snapshot().frontier == ()


def test_the_frontier_does_not_remember_what_has_left_it() -> None:
    policy = FrontierGroupDispatch(frontier_width=2)
    for order in range(1000):
        policy.submit([Request(request_id=order, group_id=order, order=order)])
        policy.admit(1)
        policy.finish(order)
    assert len(policy._highest) <= 4


# --- life of a request


def test_admit_gives_at_most_the_free_slots(policy: AdmissionPolicy) -> None:
    policy.submit(requests("a0 a1 a2"))
    assert admitted(policy, 0) == ""
    assert admitted(policy, 2) == "a0 a1"
    assert admitted(policy, 9) == "a2"
    assert admitted(policy, 9) == ""


def test_every_state_is_counted(policy: AdmissionPolicy) -> None:
    policy.submit(requests("a0 a1 b0 b1"))
    assert counts(policy) == (4, 0, 2)
    policy.admit(3)
    assert counts(policy) == (1, 3, 2)
    policy.finish("a0")
    policy.requeue("a1")
    assert counts(policy) == (2, 1, 2)
    policy.admit(9)
    for name in ("a1", "b0", "b1"):
        policy.finish(name)
    assert counts(policy) == (0, 0, 0)


def test_a_requeued_request_is_first_among_its_group(policy: AdmissionPolicy) -> None:
    policy.submit(requests("a0 a1 a2 b0"))
    policy.admit(2)
    policy.requeue("a0")
    policy.requeue("a1")
    assert admitted(policy, 3) == "a1 a0 a2"  # the last one requeued first


def test_fgd_requeues_within_the_group_and_fifo_before_all() -> None:
    fgd, fifo = FrontierGroupDispatch(), FifoAdmission()
    for policy in (fgd, fifo):
        policy.submit(requests("b0 b1 a0 a1"))
    fgd.admit(4)
    fgd.requeue("b1")
    fgd.requeue("a1")
    fgd.requeue("b0")
    assert admitted(fgd, 3) == "a1 b0 b1"
    fifo.admit(1)
    fifo.requeue("b0")
    assert admitted(fifo, 3) == "b0 b1 a0"


def test_a_requeued_request_keeps_its_group_in_the_frontier() -> None:
    policy = FrontierGroupDispatch(frontier_width=1, work_conserving=False)
    policy.submit(requests("a0 b0"))
    policy.admit(1)
    policy.requeue("a0")
    assert policy.snapshot().frontier == ("a",)
    assert admitted(policy, 9) == "a0"


def test_requests_may_come_one_by_one_and_after_their_group_was_served(policy: AdmissionPolicy) -> None:
    policy.submit(requests("a0"))
    policy.admit(1)
    policy.finish("a0")
    assert counts(policy) == (0, 0, 0)
    policy.submit(requests("a1"))
    assert counts(policy) == (1, 0, 1)
    assert admitted(policy, 9) == "a1"


# --- cancellation


def test_cancel_forgets_what_waits_and_returns_what_is_in_flight(policy: AdmissionPolicy) -> None:
    policy.submit(requests("a0 a1 a2 b0"))
    policy.admit(2)
    assert [request.request_id for request in policy.cancel_group("a")] == ["a0", "a1"]
    assert counts(policy) == (1, 0, 1)
    assert admitted(policy, 9) == "b0"


def test_a_late_finish_or_requeue_of_a_cancelled_request_is_an_error(policy: AdmissionPolicy) -> None:
    policy.submit(requests("a0 a1 b0"))
    policy.admit(1)
    policy.cancel_group("a")
    for call in (policy.finish, policy.requeue):
        for name in ("a0", "a1"):
            with pytest.raises(UnknownRequestError, match=f"needs a request in flight.*'{name}'"):
                call(name)
    assert counts(policy) == (1, 0, 1)


def test_cancelling_twice_or_after_the_end_returns_nothing(policy: AdmissionPolicy) -> None:
    policy.submit(requests("a0 b0"))
    policy.admit(2)
    policy.finish("a0")
    assert policy.cancel_group("a") == []
    assert len(policy.cancel_group("b")) == 1
    assert policy.cancel_group("b") == []
    assert counts(policy) == (0, 0, 0)


def test_a_cancelled_requeued_request_never_enters(policy: AdmissionPolicy) -> None:
    policy.submit(requests("a0 a1 b0"))
    policy.admit(2)
    policy.requeue("a0")
    assert [request.request_id for request in policy.cancel_group("a")] == ["a1"]
    assert admitted(policy, 9) == "b0"


def test_a_cancelled_group_leaves_the_frontier_to_the_next() -> None:
    policy = FrontierGroupDispatch(frontier_width=1, work_conserving=False)
    policy.submit(requests("a0 b0"))
    policy.cancel_group("a")
    assert policy.snapshot().frontier == ("b",)
    assert admitted(policy, 9) == "b0"


def test_new_requests_of_a_cancelled_group_stand_where_they_arrived() -> None:
    policy = FifoAdmission()
    policy.submit(requests("a0 a1 b0"))
    policy.cancel_group("a")
    policy.submit(requests("a2"))
    assert admitted(policy, 9) == "b0 a2"


# --- misuse


@pytest.mark.parametrize("call", ["finish", "requeue"])
def test_finish_and_requeue_need_a_request_in_flight(policy: AdmissionPolicy, call: str) -> None:
    policy.submit(requests("a0 a1"))
    policy.admit(1)
    with pytest.raises(UnknownRequestError, match=rf"^request_id: {call} needs .* unknown, got 'z9'; call {call} once for each"):
        getattr(policy, call)("z9")
    with pytest.raises(UnknownRequestError, match="this one is waiting or out, got 'a1'"):
        getattr(policy, call)("a1")
    policy.finish("a0")
    with pytest.raises(UnknownRequestError, match="this one is waiting or out, got 'a0'"):
        getattr(policy, call)("a0")
    assert counts(policy) == (1, 0, 1)


@pytest.mark.parametrize("again", ["a0", "b1 a0", "b0 b0"])
def test_a_request_submitted_twice_is_refused_with_all_that_came_with_it(policy: AdmissionPolicy, again: str) -> None:
    policy.submit(requests("a0"))
    with pytest.raises(
        DuplicateRequestError, match=r"^request_id: must be new to this policy, got '.0'; submit each request once"
    ):
        policy.submit(requests(again))
    assert counts(policy) == (1, 0, 1)
    policy.submit(requests("b0 b1"))  # so nothing of them was kept


def test_a_finished_or_cancelled_request_may_not_come_again(policy: AdmissionPolicy) -> None:
    policy.submit(requests("a0 b0"))
    policy.admit(1)
    policy.finish("a0")
    policy.cancel_group("b")
    for name in ("a0", "b0"):
        with pytest.raises(DuplicateRequestError):
            policy.submit(requests(name))


def test_a_group_has_one_order(policy: AdmissionPolicy) -> None:
    policy.submit(requests("a0"))
    other = Request(request_id="a1", group_id="a", order=7)
    with pytest.raises(UsageError, match=r"^order: must be 0 for every request of group 'a', got 7; give a group one order"):
        policy.submit([*requests("b0"), other])
    with pytest.raises(UsageError, match=r"^order: must be 1 for every request of group 'b', got 7"):
        policy.submit([*requests("b0"), Request(request_id="b1", group_id="b", order=7)])
    assert counts(policy) == (1, 0, 1)


@pytest.mark.parametrize("order", [None, "1", 0.5])
def test_an_order_is_a_whole_number(policy: AdmissionPolicy, order: object) -> None:
    policy.submit(requests("a0"))
    with pytest.raises(UsageError, match=r"^order: must be a whole number, got .*; number the groups of a round from 0"):
        policy.submit([*requests("b0"), Request(request_id="c0", group_id="c", order=order)])  # type: ignore[arg-type]
    assert counts(policy) == (1, 0, 1)


def test_an_iterable_that_fails_half_way_submits_nothing(policy: AdmissionPolicy) -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield from requests("a0 a1")
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        policy.submit(broken())
    assert counts(policy) == (0, 0, 0)


def test_unhashable_ids_submit_nothing(policy: AdmissionPolicy) -> None:
    for broken in (Request(request_id=[], group_id="a", order=0), Request(request_id="a1", group_id=[], order=0)):  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            policy.submit([*requests("a0"), broken])
    assert counts(policy) == (0, 0, 0)
    policy.submit(requests("a0"))


def test_negative_slots_are_refused(policy: AdmissionPolicy) -> None:
    policy.submit(requests("a0"))
    with pytest.raises(UsageError, match=r"^free_slots: must be 0 or more, got -1; pass capacity minus requests in flight"):
        policy.admit(-1)
    with pytest.raises(UsageError, match=r"^free_slots: must be a whole number, got 1.5"):
        policy.admit(1.5)  # type: ignore[arg-type]
    assert counts(policy) == (1, 0, 1)


def test_an_unknown_group_cannot_be_cancelled(policy: AdmissionPolicy) -> None:
    with pytest.raises(
        UnknownRequestError, match=r"^group_id: cancel_group needs a group that was submitted, got 'z'; check the id"
    ):
        policy.cancel_group("z")


@pytest.mark.parametrize("width", [0, -3])
def test_a_frontier_of_no_group_is_refused(width: int) -> None:
    with pytest.raises(UsageError, match=rf"^frontier_width: must be 1 or more, got {width}; use groups_per_update"):
        FrontierGroupDispatch(frontier_width=width)


def test_these_policies_ignore_what_they_observe(policy: AdmissionPolicy) -> None:
    policy.submit(requests("a0"))
    rates = {"trainer_groups_per_s": 0.0, "engine_tokens_per_s": 0.0, "engine_running": 0, "engine_capacity": 1}
    policy.observe(PipelineState(now_s=0.0, trainer_backlog_groups=9, **rates))  # type: ignore[arg-type]
    assert admitted(policy, 1) == "a0"
