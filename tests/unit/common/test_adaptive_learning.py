"""Adaptive frontier dispatch: what it does while it knows nothing, and what it learns, in a round and across rounds."""

import math
import random
from collections.abc import Callable

import pytest
from adaptive_lab import ARRIVALS, SIZE, STEP_S, Lengths, draw, first_seen, group, groups, plant, play, state

from common._admission import WaitingGroup
from common.history import History
from common.lengths import NOTHING_KNOWN
from common.policies import AdaptiveFrontierDispatch, FrontierGroupDispatch
from common.records import PipelineState, Request

# --- cold start


@pytest.mark.parametrize("batch", [1, 20, 48])
@pytest.mark.parametrize("arrival", ARRIVALS)
def test_while_nothing_is_known_it_admits_as_fgd(arrival: str, batch: int) -> None:
    """Also where requests come in batches, of which the later ones hold lower orders and more of open groups."""
    requests, policies = ARRIVALS[arrival](), (AdaptiveFrontierDispatch(), FrontierGroupDispatch())
    admitted: tuple[list[Request], list[Request]] = ([], [])
    for start in range(0, len(requests), batch):
        for policy, log in zip(policies, admitted, strict=True):
            policy.submit(requests[start : start + batch])
            log += policy.admit(3)
    for policy, log in zip(policies, admitted, strict=True):
        while one := policy.admit(5):
            log += one
    assert admitted[0] == admitted[1]
    assert len(admitted[0]) == len(requests)


def test_without_observations_it_admits_as_fgd() -> None:
    """A caller that never calls `observe`, and one that never gives the tokens."""
    for with_tokens in (True, False):
        policy, reference = AdaptiveFrontierDispatch(), FrontierGroupDispatch()
        for one in (policy, reference):
            one.submit(groups(range(10)))
        while admitted := policy.admit(6):
            assert admitted == reference.admit(6)
            for request in admitted:
                policy.finish(request.request_id, 50 if with_tokens else None)
                reference.finish(request.request_id)
        assert policy.plan is None
        assert policy.snapshot().num_waiting == 0


def test_without_tokens_nothing_is_learned() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups(range(10)))
    for now in range(10):
        policy.observe(state(float(now)))
        for request in policy.admit(4):
            policy.finish(request.request_id)
    assert policy.history.step_time.line() is None
    assert policy.history.lengths.expect((1, 2, 3, 0)) == NOTHING_KNOWN


@pytest.mark.parametrize("rate", [0.0, 1e5])
def test_without_the_trainers_speed_nothing_is_planned(rate: float) -> None:
    policy, lengths = AdaptiveFrontierDispatch(), draw(range(40))
    policy.submit(groups(range(40)))
    play(policy, lengths, token_s=1 / rate if rate else 0.0)
    assert (policy.plan is None) == (rate == 0.0)


# --- learning


def test_it_learns_within_the_round() -> None:
    """Two kinds of prompts, told apart by their length; the long ones first once that is seen."""
    long = {order: order % 3 == 0 for order in range(60)}
    requests = [
        Request(request_id=f"{order}/{m}", group_id=order, order=order, member=m, prompt_ids=(0,) * (400 if long[order] else 20))
        for order in range(60)
        for m in range(SIZE)
    ]
    rng = random.Random(0)
    lengths: Lengths = {r.request_id: max(1, round(rng.lognormvariate(6.0 if long[r.order] else 3.5, 0.3))) for r in requests}
    policy = AdaptiveFrontierDispatch()
    policy.submit(requests)
    began = first_seen(play(policy, lengths))
    assert began[:4] == [0, 1, 2, 3]
    assert sum(long[order] for order in began[20:30]) < 6  # as submitted: a third are long
    middle, end = began[30:40], began[-10:]  # planned when half had begun
    assert sum(long[order] for order in middle) > 7
    assert not any(long[order] for order in end)


def test_groups_without_prompt_ids_are_not_taken_for_visits_to_one_prompt() -> None:
    history = History()
    policy = AdaptiveFrontierDispatch(history=history)
    requests = [Request(request_id=f"{o}/{m}", group_id=o, order=o, member=m) for o in range(20) for m in range(SIZE)]
    policy.submit(requests)
    play(policy, {request.request_id: 10 * (1 + request.order) for request in requests})
    assert history.lengths.expect(19).tokens > 2 * history.lengths.expect(0).tokens
    assert history.lengths.expect("never seen").error > 0.5


def test_it_learns_across_rounds_through_the_history() -> None:
    lengths, history = draw(range(40)), History()
    first = AdaptiveFrontierDispatch(history=history)
    first.submit(groups(range(40)))
    play(first, lengths)
    again = AdaptiveFrontierDispatch(history=history)
    again.submit(groups(range(40)))
    began = first_seen(play(again, lengths))

    def mean(orders: list[int]) -> float:
        return sum(lengths[request.request_id] for order in orders for request in group(order)) / len(orders) / SIZE

    assert again.plan is not None
    assert mean(began[:8]) > 2 * mean(began[-8:])


def test_what_it_learns_is_what_was() -> None:
    policy, lengths = AdaptiveFrontierDispatch(), draw(range(30))
    policy.submit(groups(range(30)))
    play(policy, lengths, token_s=0.003)
    line = policy.history.step_time.line()
    assert line is not None
    assert line[0] + line[1] * 0.9 == pytest.approx(STEP_S)
    assert policy.history.trainer_token_s == pytest.approx(0.003)
    for order in range(30):
        logs = [math.log(lengths[request.request_id]) for request in group(order)]
        expected = policy.history.lengths.expect((1, 2, 3, order), prompt_tokens=4)
        assert math.log(expected.tokens) == pytest.approx(sum(logs) / SIZE, abs=0.3)


def test_the_time_of_an_update_outlasts_the_round() -> None:
    """At the start of a round no update of it is known."""
    history = History()
    AdaptiveFrontierDispatch(history=history).observe(state(1.0, update_s=2.5))
    AdaptiveFrontierDispatch(history=history).observe(state(0.0, update_s=0.0, token_s=1e-3))
    assert history.trainer_update_s == 2.5
    assert history.trainer_token_s == 1e-3


def test_progress_of_those_that_ran_before_the_step_time_was_known() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups([0]))
    policy.observe(state(0.0))
    policy.admit(4)
    policy.observe(state(2.0))
    assert policy.admit(4) == []
    policy.finish("0/0", 100)
    policy.observe(state(2.0))
    assert policy._flights.tokens("0/1") == pytest.approx(100.0)
    policy.observe(state(3.0))
    assert policy._flights.tokens("0/1") == pytest.approx(150.0)
    assert policy._flights.tokens("0/0") is None


# --- planted bugs


class ForgetsTheUpdate(AdaptiveFrontierDispatch):
    def observe(self, state: PipelineState) -> None:
        super().observe(state)
        self.history.trainer_update_s = state.trainer_update_s


class RanksByArrival(AdaptiveFrontierDispatch):
    """While there is no plan."""

    def _key(self, group: WaitingGroup) -> tuple[float, int, int]:
        return (self._rank.get(group, len(self._groups)), group.order, group.arrival)


PLANTED: list[tuple[type, Callable[[], object]]] = [
    (ForgetsTheUpdate, test_the_time_of_an_update_outlasts_the_round),
    (RanksByArrival, lambda: test_while_nothing_is_known_it_admits_as_fgd("backwards", 20)),
]


@pytest.mark.parametrize(("bug", "test"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_is_found(bug: type, test: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(bug, globals(), monkeypatch)
    with pytest.raises(AssertionError):
        test()
