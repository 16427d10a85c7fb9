"""Adaptive frontier dispatch, driven by hand and by a small round of its own. Groups are named by their order."""

import math
import random
from collections.abc import Callable, Hashable
from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import pytest

from common import _adaptive
from common._admission import WaitingGroup
from common._patience import Patience
from common._plans import Plan, Rest
from common.errors import DuplicateRequestError, UnknownRequestError, UsageError
from common.forecast import Pipeline, Width
from common.history import History
from common.lengths import NOTHING_KNOWN, Expected
from common.policies import AdaptiveFrontierDispatch, AdmissionPolicy, FrontierGroupDispatch
from common.records import PipelineState, Request

SIZE, STEP_S = 4, 0.02
Lengths = dict[Hashable, int]


def group(order: int, size: int = SIZE) -> list[Request]:
    prompt = (1, 2, 3, order)
    return [Request(request_id=f"{order}/{m}", group_id=order, order=order, member=m, prompt_ids=prompt) for m in range(size)]


def groups(orders: range | list[int], size: int = SIZE) -> list[Request]:
    return [request for order in orders for request in group(order, size)]


def state(now_s: float, *, capacity: int = 16, backlog: int = 0, token_s: float = 1e-5, update_s: float = 0.0) -> PipelineState:
    return PipelineState(
        now_s=now_s,
        trainer_backlog_groups=backlog,
        trainer_groups_per_s=1.0,
        engine_tokens_per_s=0.0,
        engine_running=0,
        engine_capacity=capacity,
        trainer_tokens_per_s=1 / token_s if token_s else 0.0,
        trainer_update_s=update_s,
    )


def play(
    policy: AdmissionPolicy,
    lengths: Lengths,
    *,
    capacity: int = 16,
    token_s: float = 1e-5,
    on_tick: Callable[[float], None] = lambda now_s: None,
) -> list[Request]:
    """To the end, on an engine of constant speed; requests in order of admission."""
    now_s, running, admitted = 0.0, [], []
    while True:
        policy.observe(state(now_s, capacity=capacity, token_s=token_s))
        for request in policy.admit(capacity - len(running)):
            admitted.append(request)
            heappush(running, (now_s + STEP_S * lengths[request.request_id], len(admitted), request))
        if not running:
            return admitted
        now_s, _, request = heappop(running)
        policy.finish(request.request_id, lengths[request.request_id])
        on_tick(now_s)


def draw(orders: range, seed: int = 0, *, prompt_sigma: float = 0.8, member_sigma: float = 0.2) -> Lengths:
    rng = random.Random(seed)
    centers = [rng.lognormvariate(4.5, prompt_sigma) for _ in orders]
    return {
        request.request_id: max(1, round(center * rng.lognormvariate(0.0, member_sigma)))
        for order, center in zip(orders, centers, strict=True)
        for request in group(order)
    }


def oracle(lengths: Lengths) -> Callable[[Request], Expected]:
    def expect(request: Request) -> Expected:
        logs = [math.log(lengths[f"{request.group_id}/{member}"]) for member in range(SIZE)]
        return Expected(tokens=math.exp(sum(logs) / SIZE), error=0.1)

    return expect


def first_seen(requests: list[Request]) -> list[int]:
    """Orders of groups, as they began."""
    return list(dict.fromkeys(request.order for request in requests))


def informed(**settings: Any) -> AdaptiveFrontierDispatch:
    """One whose history knows the engine and the trainer already."""
    history = History()
    for _ in range(20):
        history.step_time.learn(STEP_S, 1.0)
    history.trainer_token_s = 1e-5
    return AdaptiveFrontierDispatch(history=history, **settings)


# --- cold start


ARRIVALS: dict[str, Callable[[], list[Request]]] = {
    "grouped": lambda: groups(range(12)),
    "backwards": lambda: groups(list(reversed(range(12)))),
    "interleaved": lambda: sorted(groups(range(12)), key=lambda request: request.member),
    "shuffled": lambda: random.Random(0).sample(groups(range(12)), 12 * SIZE),
}


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


# --- whatever the predictor says


def adversary(request: Request) -> Expected:
    """Lower orders are longest, so that they are never wanted where training is the bottleneck."""
    return Expected(tokens=10_000.0 / (1 + request.order), error=0.0)


WRONG: dict[str, Callable[[Request], Expected]] = {
    "adversary": adversary,
    "all one token": lambda request: Expected(tokens=1.0, error=0.0),
    "all enormous": lambda request: Expected(tokens=1e300, error=0.0),
    "tiny": lambda request: Expected(tokens=1e-300, error=9.0),
    "unsure": lambda request: Expected(tokens=100.0, error=1e6),
    "nothing known": lambda request: NOTHING_KNOWN,
    "of some": lambda request: NOTHING_KNOWN if request.order % 2 else Expected(tokens=50.0, error=0.1),
    "noise": lambda request: Expected(tokens=random.Random(request.order).lognormvariate(3.0, 3.0), error=1.0),
}


@pytest.mark.parametrize("token_s", [1e-6, 0.01])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_predictor_breaks_nothing(wrong: str, token_s: float) -> None:
    lengths, policy = draw(range(30)), informed(expect=WRONG[wrong])
    policy.submit(groups(range(30)))
    admitted = play(policy, lengths, token_s=token_s)
    assert sorted(request.request_id for request in admitted) == sorted(lengths)
    assert policy.snapshot().num_groups == 0


@pytest.mark.parametrize("answer", [None, 100.0, {"tokens": 5}, (5.0, 0.1)])
def test_an_expectation_of_another_type_is_refused(answer: object) -> None:
    policy = informed(expect=lambda request: answer)  # type: ignore[arg-type, return-value]
    policy.submit(groups(range(4)))
    policy.observe(state(0.0))
    for _ in range(2):  # as nothing has changed, it is refused again
        with pytest.raises(UsageError, match=r"^expect: must return a common.lengths.Expected for '0/0', got .*; return NOTHING"):
            policy.admit(4)
    assert policy.snapshot().num_waiting == 4 * SIZE


@pytest.mark.parametrize("bad", [math.nan, math.inf, -5.0, 0.0, 10**400, "5"])
def test_an_expectation_that_is_no_length_is_refused_before_anything_changes(bad: Any) -> None:
    policy = informed(expect=lambda request: Expected(tokens=bad, error=0.5))
    policy.submit(groups(range(4)))
    policy.observe(state(0.0))
    for _ in range(2):
        with pytest.raises(UsageError, match=r"^expected tokens: must be a finite number above 0, got"):
            policy.admit(4)
    assert policy.snapshot().num_in_flight == 0


@pytest.mark.parametrize("bad", [-1, 1.5, "7", 10**310])
def test_a_number_of_tokens_is_whole_and_not_negative(bad: object) -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups([0]))
    policy.admit(4)
    with pytest.raises(UsageError, match=r"^num_tokens: must be .*; pass the tokens of the response, or nothing"):
        policy.finish("0/0", bad)  # type: ignore[arg-type]
    assert policy.snapshot().num_in_flight == 4


NO_NUMBERS: list[tuple[str, list[Any]]] = [
    ("now_s", [math.nan, math.inf, -math.inf, "1", None, 10**400]),
    ("trainer_backlog_groups", [-1, 2.0, "2", 10**400, None]),
    ("engine_capacity", [-1, math.inf, math.nan, 16.0, "16", 10**400]),
    ("engine_running", [-1, 0.5]),
    ("trainer_tokens_per_s", [-1.0, math.nan, math.inf, "1"]),
    ("trainer_update_s", [-1.0, math.nan, math.inf, None]),
    ("trainer_groups_per_s", [math.nan]),
    ("engine_tokens_per_s", [-0.1]),
]


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, values in NO_NUMBERS for bad in values])
def test_an_observation_that_is_none_is_refused_and_changes_nothing(name: str, bad: Any) -> None:
    """The policy that was given it does, and has learned, what one does that was not."""
    lengths = draw(range(20))
    policy, reference = informed(), informed()
    for one in (policy, reference):
        one.submit(groups(range(20)))
        one.observe(state(0.0))
        for request in one.admit(8):
            one.finish(request.request_id, lengths[request.request_id])
    with pytest.raises(UsageError, match=rf"^{name}: must be .*, got .*; pass "):
        policy.observe(replace(state(1.0, update_s=3.0, token_s=1e-3), **{name: bad}))
    assert policy.history.trainer_token_s == reference.history.trainer_token_s == pytest.approx(1e-5)
    assert play(policy, lengths) == play(reference, lengths)
    assert policy.history.step_time.line() == reference.history.step_time.line()


def test_something_else_than_an_observation_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^state: must be a PipelineState, got None"):
        AdaptiveFrontierDispatch().observe(None)  # type: ignore[arg-type]


def test_a_rate_next_to_nothing_is_not_learned() -> None:
    policy = informed()
    policy.observe(replace(state(0.0), trainer_tokens_per_s=1e-320))
    assert policy.history.trainer_token_s == 1e-5


@pytest.mark.parametrize("jump_s", [-100.0, -1.0, 1e300, 1e9])
def test_one_glitch_of_the_clock_teaches_nothing_wrong(jump_s: float) -> None:
    policy, running, now_s = AdaptiveFrontierDispatch(), [], 0.0
    policy.submit(groups(range(40)))
    while True:
        policy.observe(state(now_s + (jump_s if now_s == 20.0 else 0.0), capacity=8))
        running += policy.admit(8 - len(running))
        if not running:
            break
        now_s += 1.0
        policy.observe(state(now_s + (jump_s if now_s == 20.0 else 0.0), capacity=8))
        for request in running[:2]:  # each runs four seconds
            policy.finish(request.request_id, 200)
        del running[:2]
    line = policy.history.step_time.line()
    assert line is not None
    assert line[0] + line[1] == pytest.approx(STEP_S, rel=0.15)


def raises(request: Request) -> Hashable:
    raise KeyError("the caller's")


@pytest.mark.parametrize(
    ("task", "error", "message"), [(lambda r: [1], UsageError, "^task: must"), (raises, KeyError, "caller's")]
)
@pytest.mark.parametrize("size", [1, 2])
def test_a_task_that_fails_leaves_the_policy_as_it_was(task: Any, error: type[Exception], message: str, size: int) -> None:
    answers = iter([task])  # the first time, then a good one
    policy = AdaptiveFrontierDispatch(task=lambda request: next(answers, lambda r: "math")(request))
    policy.submit(group(0, size))
    policy.admit(size)
    before = policy.snapshot()
    with pytest.raises(error, match=message):
        policy.finish("0/0", 5)
    assert policy.snapshot() == before
    for member in range(size):
        policy.finish(f"0/{member}", 5)
    assert policy.snapshot().num_groups == 0
    assert policy.history.lengths.expect((1, 2, 3, 0), task="math").tokens == pytest.approx(5.0)


def test_a_prompt_that_cannot_be_learned_is_refused_before_the_group_closes() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit([Request(request_id="a", group_id=0, order=0, prompt_ids=[1, 2])])  # type: ignore[arg-type]
    policy.admit(1)
    with pytest.raises(UsageError, match=r"^prompt_ids: must be hashable for 'a', got \[1, 2\]; pass a tuple of ints"):
        policy.finish("a", 5)
    assert policy.snapshot().num_in_flight == 1
    policy.finish("a")
    assert policy.snapshot().num_groups == 0


def test_a_width_beyond_every_float_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^frontier_width: must be .* or less"):
        AdaptiveFrontierDispatch(10**400)


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


@pytest.mark.parametrize("width", [0, -3])
def test_a_width_below_one_is_refused(width: int) -> None:
    with pytest.raises(UsageError, match=rf"^frontier_width: must be 1 or more, got {width}; use groups_per_update"):
        AdaptiveFrontierDispatch(width)


# --- misuse and loss


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


# --- nobody starves


def overtaken_too_often(policy: AdaptiveFrontierDispatch, seed: int) -> list[int]:
    """Orders of groups before which more than twice the groups open at their arrival began that came later.

    Groups come one or several at a time, most of them just as old ones end."""
    rng = random.Random(seed)
    limits: dict[int, int] = {}
    began: list[int] = []
    running: list[Request] = []
    for now in range(400):
        if rng.random() < 0.6:
            new = list(range(len(limits), len(limits) + rng.choice([1, 1, 1, 2, 12])))
            policy.submit(groups(new))
            limits |= dict.fromkeys(new, 2 * policy.snapshot().num_groups)
        policy.observe(state(float(now), capacity=8, token_s=0.01))
        admitted = policy.admit(8 - len(running))
        running += admitted
        began += [order for order in first_seen(admitted) if order not in began]
        rng.shuffle(running)
        for _ in range(min(rng.randrange(8), len(running))):
            policy.finish(running.pop().request_id, 20)
    before = {order: began[:place] for place, order in enumerate(began)}
    return [order for order, limit in limits.items() if sum(other > order for other in before.get(order, began)) > limit]


def shorter_and_shorter(request: Request) -> Expected:
    return Expected(tokens=1e6 * 0.97**request.order, error=0.0)


@pytest.mark.parametrize("seed", range(6))
def test_no_group_is_overtaken_too_often(seed: int) -> None:
    policy = informed(expect=shorter_and_shorter)
    assert overtaken_too_often(policy, seed) == []
    assert policy.plan is not None


def test_lower_orders_that_keep_coming_do_not_starve_a_group() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups([1000]))
    policy.submit(groups([900]))
    began = []
    for order in range(899, 880, -1):
        policy.submit(group(order))
        admitted = policy.admit(SIZE)
        assert admitted == group(admitted[0].order), "members of a group are apart"
        began.append(admitted[0].order)
        for request in admitted:
            policy.finish(request.request_id)
    assert began[:6] == [899, 898, 1000, 896, 900, 894]


def test_a_group_that_comes_when_few_are_open_does_not_wait_for_the_patience_of_an_older_one() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups([1000, *range(49)]))  # 1000 may be overtaken by 100
    for request in policy.admit(49 * SIZE):
        policy.finish(request.request_id)
    policy.submit(groups([900]))  # and this one by 4
    began = []
    for order in range(899, 880, -1):
        policy.submit(group(order))
        admitted = policy.admit(SIZE)
        began.append(admitted[0].order)
        for request in admitted:
            policy.finish(request.request_id)
    assert began[:6] == [899, 898, 897, 896, 900, 894]


@pytest.mark.parametrize("known", [False, True])
def test_the_rest_of_a_group_that_has_begun_does_not_starve(known: bool) -> None:
    """One slot, groups of two; lower orders keep coming once its first member is in. One is open at its turn: 2 may pass."""
    policy = informed(expect=shorter_and_shorter) if known else AdaptiveFrontierDispatch()
    policy.submit(group(1000, 2))
    (running,) = policy.admit(1)
    admitted = []
    for order in range(30):
        policy.submit(group(order, 2))
        policy.observe(state(float(order)))
        policy.finish(running.request_id, 20)
        (running,) = policy.admit(1)
        admitted.append(running.request_id)
    assert "1000/1" in admitted[:5]


@pytest.mark.parametrize("known", [False, True])
def test_a_group_that_gets_new_members_for_ever_starves_nobody(known: bool) -> None:
    """Two are open when the fresh one comes: 4 turns may pass, each of one member here."""
    policy = informed(expect=shorter_and_shorter) if known else AdaptiveFrontierDispatch()
    policy.submit([*group(0, 1), *group(1, 1)])
    (running,) = policy.admit(1)
    admitted = []
    for member in range(1, 30):
        policy.submit([Request(request_id=f"0/{member}", group_id=0, order=0, member=member)])
        policy.observe(state(float(member)))
        policy.finish(running.request_id, 20)
        (running,) = policy.admit(1)
        admitted.append(running.request_id)
    assert "1/0" in admitted[:4]


# --- planted bugs


class NeverPatient(Patience):
    def first(self) -> WaitingGroup | None:
        return None


class OldestOnly(Patience):
    """Looks at the oldest group alone; the limit of a later one may be lower."""

    def first(self) -> WaitingGroup | None:
        oldest = min(self._waits, key=self._waits.__getitem__)
        late = super().first()
        return late if late is oldest else None


class PatientWithFreshOnly(AdaptiveFrontierDispatch):
    """Once something of a group was admitted, nobody looks after the rest."""

    def _start_turn(self, first: WaitingGroup) -> WaitingGroup:
        group = super()._start_turn(first)
        self._patience.forget(group)
        return group


class NewMembersGoOn(AdaptiveFrontierDispatch):
    """A turn lasts as long as anything of the group waits."""

    def _next(self) -> WaitingGroup | None:
        if self._turn is not None and self._turn.next_waiting():
            return self._turn
        return super()._next()


class OneMemberOnly(AdaptiveFrontierDispatch):
    """A group whose patience has ended has one member admitted, and waits again."""

    def _next(self) -> WaitingGroup | None:
        self._is_late = False
        return super()._next()


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


class ForgetsTheUpdate(AdaptiveFrontierDispatch):
    def observe(self, state: PipelineState) -> None:
        super().observe(state)
        self.history.trainer_update_s = state.trainer_update_s


class RanksByArrival(AdaptiveFrontierDispatch):
    """While there is no plan."""

    def _key(self, group: WaitingGroup) -> tuple[float, int, int]:
        return (self._rank.get(group, len(self._groups)), group.order, group.arrival)


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


PLANTED: list[tuple[str, type, Callable[[], object]]] = [
    ("Patience", NeverPatient, test_lower_orders_that_keep_coming_do_not_starve_a_group),
    ("Patience", OldestOnly, test_a_group_that_comes_when_few_are_open_does_not_wait_for_the_patience_of_an_older_one),
    ("AdaptiveFrontierDispatch", PatientWithFreshOnly, lambda: test_the_rest_of_a_group_that_has_begun_does_not_starve(False)),
    ("AdaptiveFrontierDispatch", NewMembersGoOn, lambda: test_a_group_that_gets_new_members_for_ever_starves_nobody(False)),
    ("AdaptiveFrontierDispatch", OneMemberOnly, test_lower_orders_that_keep_coming_do_not_starve_a_group),
    ("AdaptiveFrontierDispatch", LearnsCancelled, test_lengths_of_a_cancelled_group_are_not_learned),
    ("AdaptiveFrontierDispatch", KeepsTheFlight, test_a_requeued_request_is_first_of_its_group_and_its_time_is_not_learned),
    ("AdaptiveFrontierDispatch", ForgetsTheUpdate, test_the_time_of_an_update_outlasts_the_round),
    ("AdaptiveFrontierDispatch", RanksByArrival, lambda: test_while_nothing_is_known_it_admits_as_fgd("backwards", 20)),
    ("AdaptiveFrontierDispatch", PlansForTheEnginesOfNow, test_a_full_width_follows_engines_that_grow),
]


@pytest.mark.parametrize(("name", "bug", "test"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_is_found(name: str, bug: type, test: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_adaptive, "Patience", bug if name == "Patience" else Patience)
    if name != "Patience":
        monkeypatch.setitem(globals(), name, bug)
    with pytest.raises(AssertionError):
        test()


@pytest.mark.parametrize("bug", [NothingWaitsForTheTrainer, FirstOnesWaitForTheTrainer])
def test_a_planted_bug_in_the_backlog_is_found(bug: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "AdaptiveFrontierDispatch", bug)
    with pytest.raises(AssertionError):
        test_what_waits_for_the_trainer_is_what_ended_last(1, monkeypatch)
