"""Adaptive frontier dispatch: misuse, lost and cancelled requests, groups that come late or grow, and what the snapshot shows."""

import math
from collections.abc import Callable, Hashable

import pytest
from adaptive_lab import SIZE, draw, first_seen, group, groups, informed, oracle, plant, state

from common.errors import DuplicateRequestError, UnknownRequestError, UsageError
from common.policies import AdaptiveFrontierDispatch
from common.records import Request


def test_misuse_changes_nothing() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups(range(2)))
    policy.admit(2)
    for call, error in (
        (lambda: policy.submit(group(1)), DuplicateRequestError),
        (lambda: policy.finish("1/0", 5), UnknownRequestError),  # it waits
        (lambda: policy.finish("9/9", 5), UnknownRequestError),
        (lambda: policy.requeue("1/0"), UnknownRequestError),
        (lambda: policy.cancel_group(9), UnknownRequestError),
        (lambda: policy.admit(-1), UsageError),
    ):
        before = policy.snapshot()
        with pytest.raises(error):
            call()  # type: ignore[no-untyped-call]
        assert policy.snapshot() == before
    policy.finish("0/0", 5)
    with pytest.raises(UnknownRequestError):
        policy.finish("0/0", 5)


def test_a_requeued_request_is_first_of_its_group_and_its_time_is_not_learned() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups(range(3)))
    policy.observe(state(0.0))
    assert [request.request_id for request in policy.admit(2)] == ["0/0", "0/1"]
    policy.observe(state(100.0))
    policy.requeue("0/1")
    assert [request.request_id for request in policy.admit(2)] == ["0/1", "0/2"]
    policy.observe(state(101.0))
    policy.admit(0)
    policy.finish("0/1", 50)
    policy.observe(state(101.0))
    line = policy.history.step_time.line()
    assert line == (pytest.approx(1 / 50), 0.0)


def test_lengths_of_a_cancelled_group_are_not_learned() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups(range(2)))
    policy.observe(state(0.0))
    policy.admit(8)
    policy.finish("0/0", 3)
    assert [request.request_id for request in policy.cancel_group(0)] == ["0/1", "0/2", "0/3"]
    for member in range(SIZE):
        policy.finish(f"1/{member}", 40)
    assert policy.history.lengths.expect((1, 2, 3, 0)).error == math.inf
    assert policy.history.lengths.expect((1, 2, 3, 1)).tokens == pytest.approx(40)
    with pytest.raises(UnknownRequestError):
        policy.finish("0/1", 3)
    assert policy.snapshot().num_groups == 0


def test_empty_responses_are_learned_as_the_shortest() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups(range(2)))
    policy.observe(state(0.0))
    for request in policy.admit(8):
        policy.finish(request.request_id, 0)
    policy.observe(state(1.0))
    assert policy.history.lengths.expect((1, 2, 3, 0)).tokens == 1.0
    assert policy.history.step_time.line() is None  # no token, no time a token


def test_a_refill_comes_after_the_plan() -> None:
    policy = informed(expect=oracle(draw(range(40))))
    policy.submit(groups(range(30)))
    policy.observe(state(0.0))
    policy.admit(16)
    assert policy.plan is not None
    policy.submit(group(35))
    assert first_seen(policy.admit(200))[-1] == 35


def test_a_group_that_grows_keeps_its_place() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit([*group(0)[:2], *group(1)])
    assert [request.request_id for request in policy.admit(3)] == ["0/0", "0/1", "1/0"]
    policy.finish("0/0", 5)
    policy.finish("0/1", 5)  # closed, as far as anyone knows
    policy.submit(group(0)[2:])
    assert [request.request_id for request in policy.admit(9)] == ["0/2", "0/3", "1/1", "1/2", "1/3"]


def test_the_snapshot_shows_the_first_groups_begun() -> None:
    policy = AdaptiveFrontierDispatch(2)
    policy.submit(groups([5, 3, 1, 2]))
    assert policy.snapshot().frontier == ()
    policy.admit(9)
    seen = policy.snapshot()
    assert (seen.frontier, seen.num_waiting, seen.num_in_flight, seen.num_groups) == ((1, 2), 7, 9, 4)
    for member in range(SIZE):
        policy.finish(f"1/{member}")
    assert policy.snapshot().frontier == (2, 3)


# --- planted bugs


class LearnsCancelled(AdaptiveFrontierDispatch):
    def cancel_group(self, group_id: Hashable) -> list[Request]:
        seen = self._seen[self._groups[group_id]]
        self.history.lengths.learn(seen.prompt, seen.lengths, prompt_tokens=len(seen.prompt))
        return super().cancel_group(group_id)


class KeepsTheFlight(AdaptiveFrontierDispatch):
    """Of a requeued request."""

    def requeue(self, request_id: Hashable) -> None:
        self.kept = {request_id: self._flights._flights[request_id]}
        super().requeue(request_id)

    def admit(self, free_slots: int) -> list[Request]:
        admitted = super().admit(free_slots)
        self._flights._flights |= getattr(self, "kept", {})
        self.kept = {}
        return admitted


PLANTED: list[tuple[type, Callable[[], object]]] = [
    (LearnsCancelled, test_lengths_of_a_cancelled_group_are_not_learned),
    (KeepsTheFlight, test_a_requeued_request_is_first_of_its_group_and_its_time_is_not_learned),
]


@pytest.mark.parametrize(("bug", "test"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_is_found(bug: type, test: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(bug, globals(), monkeypatch)
    with pytest.raises(AssertionError):
        test()
