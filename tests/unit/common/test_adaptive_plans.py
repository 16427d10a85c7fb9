"""Adaptive frontier dispatch: the order and width that it plans, when it plans, and what its forecast starts from."""

import math
from itertools import pairwise

import pytest
from adaptive_lab import ARRIVALS, SIZE, draw, first_seen, group, groups, informed, oracle, plant, play, state

from common import _adaptive
from common._admission import WaitingGroup
from common._plans import Plan, Rest
from common.forecast import Pipeline, Width
from common.lengths import Expected
from common.policies import AdaptiveFrontierDispatch
from common.records import PipelineState

# --- members, order, width


@pytest.mark.parametrize("token_s", [1e-6, 0.01])
def test_members_of_a_group_stay_together(token_s: float) -> None:
    lengths = draw(range(60))
    policy = informed(expect=oracle(lengths))
    policy.submit(ARRIVALS["shuffled"]() + groups(range(12, 60)))
    admitted = play(policy, lengths, token_s=token_s)
    assert policy.plan is not None
    orders = [request.order for request in admitted]
    runs = [order for place, order in enumerate(orders) if place == 0 or orders[place - 1] != order]
    assert len(runs) == 60


def test_rollout_bound_it_takes_the_long_ones_first_and_train_bound_a_short_one() -> None:
    lengths = draw(range(40))
    expect = oracle(lengths)
    tokens = [expect(group(order)[0]).tokens for order in range(40)]
    began = {}
    for token_s in (1e-6, 0.01):
        policy = informed(expect=expect)
        policy.submit(groups(range(40)))
        began[token_s] = first_seen(play(policy, lengths, token_s=token_s))
    assert began[1e-6].index(tokens.index(max(tokens))) < 4
    assert sum(tokens[order] for order in began[1e-6][:10]) > 2 * sum(tokens[order] for order in began[1e-6][-10:])
    assert tokens[began[0.01][0]] == min(tokens)


@pytest.mark.parametrize("token_s", [1e-6, 4e-3, 0.01])
def test_without_reorder_the_order_is_that_of_fgd(token_s: float) -> None:
    lengths = draw(range(40))
    policy = informed(expect=oracle(lengths), reorder=False, in_order=True)
    policy.submit(list(reversed(groups(range(20, 40)))))
    policy.observe(state(0.0))
    policy.admit(0)  # plans
    assert policy.plan is not None
    policy.submit(groups(range(20)))
    began = first_seen(play(policy, lengths, token_s=token_s))
    assert began == list(range(40))


def test_a_full_width_follows_engines_that_grow() -> None:
    lengths = draw(range(40))
    policy = informed(expect=oracle(lengths))
    policy.submit(groups(range(40)))
    policy.observe(state(0.0, capacity=8))
    assert len(policy.admit(8)) == 8
    policy.observe(state(1.0, capacity=64))
    assert len(policy.admit(56)) == 56


def test_engines_without_capacity_and_back() -> None:
    lengths = draw(range(20))
    policy = informed(expect=oracle(lengths))
    policy.submit(groups(range(20)))
    for now, capacity in enumerate((0, 8, 0, 0, 8, 4, 16)):
        policy.observe(state(float(now), capacity=capacity))
        for request in policy.admit(min(capacity, 3)):
            policy.finish(request.request_id, lengths[request.request_id])
    play(policy, lengths)
    assert policy.snapshot().num_groups == 0


@pytest.mark.parametrize("times", [[0.0] * 30, [float(-now) for now in range(30)], [1e18 + now for now in range(30)]])
def test_a_clock_that_stands_or_runs_backwards_breaks_nothing(times: list[float]) -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups(range(20)))
    for now_s in times:
        policy.observe(state(now_s))
        for request in policy.admit(4):
            policy.finish(request.request_id, 10)
    assert policy.snapshot().num_groups == 0


def test_responses_in_no_time_break_nothing() -> None:
    """As fakes give them: tokens, and no second has passed when they are in."""
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups(range(30)))
    for now in range(8):
        policy.observe(state(now / 1000))
        admitted = policy.admit(8)
        policy.observe(state(now / 1000))
        for request in admitted:
            policy.finish(request.request_id, 10**9)
    assert policy.admit(200) != []


# --- when it plans


def count_plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fresh groups at each plan, as they are made."""
    seen: list[int] = []

    def choose(pipeline: Pipeline, rest: Rest, *, reorder: bool) -> Plan:
        seen.append(len(rest.fresh))
        return Plan(list(reversed(range(len(rest.fresh)))), Width(pipeline.capacity, pipeline.capacity, 0), 0.0)

    monkeypatch.setattr(_adaptive, "choose", choose)
    return seen


@pytest.mark.parametrize("count", [1, 2, 10, 100, 2000])
def test_a_round_has_few_plans(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, lengths = count_plans(monkeypatch), draw(range(count))
    policy = informed(expect=oracle(lengths))
    policy.submit(groups(range(count)))
    play(policy, lengths)
    assert plans[0] == count
    assert 1 <= len(plans) <= 3 + math.log(count, 1.5)
    assert all(2 * before >= 3 * after - 2 for before, after in pairwise(plans))


def test_where_groups_keep_coming_it_plans_again_whenever_half_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, orders = count_plans(monkeypatch), iter(range(10**6))
    policy = informed(expect=lambda request: Expected(tokens=50.0, error=0.1))
    policy.submit(groups([next(orders) for _ in range(30)]))
    for now in range(200):
        policy.observe(state(float(now)))
        for request in policy.admit(SIZE):
            policy.finish(request.request_id, 50)
        policy.submit(group(next(orders)))
    assert plans == [30] * 14


def test_a_large_submit_is_planned_at_once_and_a_refill_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = count_plans(monkeypatch)
    policy = informed(expect=lambda request: Expected(tokens=50.0, error=0.1))
    policy.observe(state(0.0))
    for orders in (range(20), range(20, 21), range(21, 25), range(25, 45)):
        policy.submit(groups(orders))
        policy.admit(0)
    assert plans == [20, 45]


@pytest.mark.parametrize("backlog", [0, 1, 2, 3, 9])
def test_what_waits_for_the_trainer_is_what_ended_last(backlog: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of 10, 200 and 3,000 tokens have ended; half an update's time goes with each."""
    seen: list[float] = []

    def choose(pipeline: Pipeline, rest: Rest, *, reorder: bool) -> Plan:
        seen.append(pipeline.trainer_free_s)
        return Plan(rest.current, Width(pipeline.capacity, pipeline.capacity, 0), 0.0)

    monkeypatch.setattr(_adaptive, "choose", choose)
    policy = informed(expect=lambda request: Expected(tokens=50.0, error=0.1))
    policy.submit(groups(range(3), 1))
    for request, tokens in zip(policy.admit(3), (10, 200, 3000), strict=True):
        policy.finish(request.request_id, tokens)
    policy.submit(groups(range(3, 20)))
    policy.observe(state(1.0, backlog=backlog, token_s=1e-3, update_s=4.0))
    policy.admit(1)
    expected_s = {0: 0.0, 1: 3.0 + 2.0, 2: 3.2 + 4.0, 3: 3.21 + 6.0, 9: 3.21 + 6.0}
    assert seen == [pytest.approx(expected_s[backlog])]


# --- planted bugs


class PlansForTheEnginesOfNow(AdaptiveFrontierDispatch):
    def _follow(self, plan: Plan, begun: list[WaitingGroup], fresh: list[WaitingGroup], capacity: float) -> None:
        super()._follow(plan, begun, fresh, capacity)
        self._width = plan.width


class NothingWaitsForTheTrainer(AdaptiveFrontierDispatch):
    def _backlog_s(self, state: PipelineState) -> float:
        return 0.0


class FirstOnesWaitForTheTrainer(AdaptiveFrontierDispatch):
    def _backlog_s(self, state: PipelineState) -> float:
        self._closed_tokens.reverse()
        return super()._backlog_s(state)


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(PlansForTheEnginesOfNow, globals(), monkeypatch)
    with pytest.raises(AssertionError):
        test_a_full_width_follows_engines_that_grow()


@pytest.mark.parametrize("bug", [NothingWaitsForTheTrainer, FirstOnesWaitForTheTrainer])
def test_a_planted_bug_in_the_backlog_is_found(bug: type, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(bug, globals(), monkeypatch)
    with pytest.raises(AssertionError):
        test_what_waits_for_the_trainer_is_what_ended_last(1, monkeypatch)
