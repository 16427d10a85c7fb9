"""Draws of lengths, candidates and the choice among them."""

import math
import random
import statistics
from dataclasses import replace
from itertools import permutations
from statistics import NormalDist

import pytest

from common import _plans
from common._draws import NUM_DRAWS, Draws, GroupState
from common._plans import MAX_BEGUN, MAX_GROUPS, Order, Rest, choose
from common.forecast import Pipeline, Width, Work, forecast
from common.lengths import Expected

SIZE = 4
PARTS = tuple(sorted(NormalDist(0.0, 0.4).samples(512, seed=7)))  # member parts
ROLLOUT_BOUND, BALANCED, TRAIN_BOUND = 1e-6, 4e-3, 0.01  # seconds of training a token


def state(order: int, tokens: float, error: float = 0.0, *, running: tuple[float, ...] = (), done: int = 0) -> GroupState:
    """A group of SIZE, of which those in flight have `running` tokens."""
    in_flight = list(enumerate(running))
    return GroupState(order, Expected(tokens=tokens, error=error), list(range(len(running), SIZE)), in_flight, done)


def rest_of(
    tokens: list[float],
    *,
    error: float = 0.0,
    token_s: float = ROLLOUT_BOUND,
    parts: tuple[float, ...] = (),
    begun: list[GroupState] | None = None,
) -> Rest:
    return Rest(
        begun=begun or [],
        fresh=[state(order, one, error) for order, one in enumerate(tokens)],
        current=list(range(len(tokens))),
        members=SIZE,
        num_to_first=2,
        per_update=2,
        parts=parts,
        longest=10_000.0,
        token_s=token_s,
        update_s=0.0,
    )


def uneven(seed: int, count: int = 24) -> list[float]:
    rng = random.Random(seed)
    return [rng.lognormvariate(5.0, 0.9) for _ in range(count)]


ENGINE = Pipeline(16.0, 0.02, 0.0)


def lengths_in(plan: _plans.Plan, tokens: list[float]) -> list[float]:
    return [tokens[index] for index in plan.order]


# --- choice


@pytest.mark.parametrize("seed", range(3))
def test_rollout_bound_longest_first(seed: int) -> None:
    tokens = uneven(seed)
    planned = lengths_in(choose(ENGINE, rest_of(tokens), reorder=True), tokens)
    assert planned[:4] != tokens[:4]
    first, last = planned[: len(planned) // 2], planned[len(planned) // 2 :]
    assert statistics.mean(first) > 1.5 * statistics.mean(last)
    assert max(last[-4:]) < statistics.median(tokens)  # nothing long is left for the end


@pytest.mark.parametrize("seed", range(3))
def test_train_bound_shortest_first(seed: int) -> None:
    """The trainer never catches up, so all that counts is its first group."""
    tokens = uneven(seed)
    planned = lengths_in(choose(ENGINE, rest_of(tokens, token_s=TRAIN_BOUND), reorder=True), tokens)
    assert planned[0] == min(tokens)


@pytest.mark.parametrize("token_s", [ROLLOUT_BOUND, BALANCED, TRAIN_BOUND])
@pytest.mark.parametrize("count", [1, 2, 5, 30, 200])
def test_equal_expectations_stay_as_submitted(token_s: float, count: int) -> None:
    plan = choose(ENGINE, rest_of([200.0] * count, error=0.5, token_s=token_s, parts=PARTS), reorder=True)
    assert plan.order == list(range(count))


@pytest.mark.parametrize("token_s", [ROLLOUT_BOUND, BALANCED, TRAIN_BOUND])
def test_where_an_order_gains_nothing_it_stays(token_s: float) -> None:
    """All enter at once: there is no order."""
    tokens = uneven(0)
    plan = choose(replace(ENGINE, capacity=200.0), rest_of(tokens, token_s=token_s), reorder=True)
    assert plan.order == list(range(len(tokens)))
    assert plan.width == Width(200, 200, 0)


def test_expectations_that_are_worth_nothing_seldom_change_the_order() -> None:
    """An error ten times the spread: what an order gains on such a forecast is chance."""
    changed = 0
    for seed in range(40):
        rng = random.Random(seed)
        tokens = [rng.lognormvariate(5.0, 0.1) for _ in range(24)]
        changed += choose(ENGINE, rest_of(tokens, error=1.0), reorder=True).order != list(range(24))
    assert changed <= 8


@pytest.mark.parametrize("token_s", [ROLLOUT_BOUND, BALANCED, TRAIN_BOUND])
def test_it_never_reorders_where_it_must_not(token_s: float) -> None:
    for seed in range(3):
        rest = rest_of(uneven(seed), token_s=token_s)
        shuffled = random.Random(seed).sample(rest.current, len(rest.current))
        assert choose(ENGINE, rest._replace(current=shuffled), reorder=False).order == shuffled


def test_no_width_where_a_full_engine_is_no_slower() -> None:
    for token_s in (ROLLOUT_BOUND, BALANCED, TRAIN_BOUND):
        assert choose(ENGINE, rest_of(uneven(1), token_s=token_s), reorder=False).width == Width(16, 16, 0)


def test_a_width_where_the_trainer_waits_for_its_first_groups_only() -> None:
    """Each group takes the trainer longer than a wave the engine, which is ten times as slow when full: begin with few."""
    engine = Pipeline(96.0, 0.01, 0.1)
    plan = choose(engine, rest_of([200.0] * 24, token_s=5e-3), reorder=False)
    assert plan.width.first < 96
    held = forecast(engine, works_of([200.0] * 24, 5e-3), list(range(24)), plan.width)
    full = forecast(engine, works_of([200.0] * 24, 5e-3), list(range(24)), Width(96, 96, 0))
    assert held < 0.95 * full


def test_no_width_where_rollout_is_the_bottleneck() -> None:
    assert choose(Pipeline(96.0, 0.02, 0.01), rest_of(uneven(2)), reorder=False).width == Width(96, 96, 0)


def works_of(tokens: list[float], token_s: float) -> list[Work]:
    draws = Draws((), 10_000.0, 1, token_s, 0.0)
    return draws.works([state(order, one) for order, one in enumerate(tokens)], 0)


@pytest.mark.parametrize("token_s", [ROLLOUT_BOUND, BALANCED, TRAIN_BOUND])
@pytest.mark.parametrize("seed", range(4))
def test_close_to_the_best_of_all_orders_where_they_can_be_tried(seed: int, token_s: float) -> None:
    """Six groups, two at a time: what is gained over the order of submission is most of what the best of 720 orders gains."""
    tokens, engine = uneven(seed, 6), Pipeline(8.0, 0.02, 0.0)
    works = works_of(tokens, token_s)
    ends = {order: forecast(engine, works, list(order), Width(8, 8, 0)) for order in permutations(range(6))}
    planned = choose(engine, rest_of(tokens, token_s=token_s), reorder=True).order
    best, stays, found = min(ends.values()), ends[0, 1, 2, 3, 4, 5], ends[tuple(planned)]
    assert found <= stays + 1e-9
    assert found <= best + 0.5 * (stays - best) + 0.02 * best


@pytest.mark.parametrize(("num_fresh", "num_begun"), [(1, 0), (64, 10), (65, 0), (1000, 3), (3, 1000), (2, 100_000)])
def test_any_number_of_groups_is_ordered_and_the_model_stays_small(
    num_fresh: int, num_begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    real = _plans.forecast

    def spy(pipeline: Pipeline, works: list, order: list[int], width: Width) -> float:  # type: ignore[type-arg]
        assert sorted(order) == list(range(len(works)))
        assert pipeline.capacity >= 1
        assert min(width[:2]) >= 1
        sizes.append(len(works))
        return real(pipeline, works, order, width)

    monkeypatch.setattr(_plans, "forecast", spy)
    begun = [state(-1 - index, 100.0, running=(20.0,)) for index in range(num_begun)]
    tokens = uneven(0, num_fresh)
    plan = choose(replace(ENGINE, full_step_s=0.01), rest_of(tokens, begun=begun, token_s=BALANCED), reorder=True)
    assert sorted(plan.order) == list(range(num_fresh))
    assert max(sizes) <= MAX_GROUPS + MAX_BEGUN
    assert len(sizes) <= 150


@pytest.mark.parametrize(("count", "capacity"), [(340, 16.0), (640, 13.0), (640, 400.0), (100, 5.0), (130, 24.0)])
def test_the_forecast_of_a_thinned_round_is_close_to_that_of_the_whole(
    count: int, capacity: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one in n of the slots is no whole number, such as 16 / 6."""
    tokens = uneven(4, count)
    rest, engine = rest_of(tokens), Pipeline(capacity, 0.02, 0.02)
    thinned = choose(engine, rest, reorder=False).end_s
    monkeypatch.setattr(_plans, "MAX_GROUPS", count)
    assert thinned == pytest.approx(choose(engine, rest, reorder=False).end_s, rel=0.1)


# --- orders


def test_candidate_orders() -> None:
    expected = [30.0, 10.0, 50.0, 20.0, 40.0]
    assert Order().arrange(expected) == [0, 1, 2, 3, 4]
    assert Order(middle="longest").arrange(expected) == [2, 4, 0, 3, 1]
    assert Order(middle="shortest").arrange(expected) == [1, 3, 0, 4, 2]
    assert Order(first=2).arrange(expected) == [1, 3, 0, 2, 4]
    assert Order(last=2).arrange(expected) == [0, 2, 4, 3, 1]
    assert Order(first=1, last=2, middle="longest").arrange(expected) == [1, 2, 4, 0, 3]


@pytest.mark.parametrize(
    "order",
    [Order(first=k, last=m, middle=mid) for k in (0, 2, 9) for m in (0, 1, 9) for mid in ("longest", "shortest", "submitted")],
)
def test_every_order_has_every_group_once(order: Order) -> None:
    for count in range(7):
        assert sorted(order.arrange(uneven(0, count))) == list(range(count))


# --- draws


def test_a_certain_group_has_the_lengths_expected() -> None:
    (work,) = Draws((), 1e6, 1, 0.01, 2.0).works([state(3, 100.0)], 0)
    assert work.waiting == pytest.approx((100.0,) * SIZE)
    assert work.train_s == pytest.approx(0.01 * 400 + 2.0)


def test_draws_have_the_spread_of_the_error_and_of_the_members() -> None:
    draws = Draws(PARTS, math.inf, 1, 0.0, 0.0)
    states = [state(order, 100.0, 0.5) for order in range(200)]
    groups = [work.waiting for draw in range(NUM_DRAWS) for work in draws.works(states, draw)]
    logs = [[math.log(length / 100.0) for length in group] for group in groups]
    everything = [one for group in logs for one in group]
    within = statistics.fmean(statistics.variance(group) for group in logs)
    assert statistics.fmean(everything) == pytest.approx(statistics.fmean(PARTS), abs=0.02)
    assert statistics.pstdev(everything) == pytest.approx(math.hypot(0.5, 0.4), rel=0.05)
    assert within == pytest.approx(0.4**2, rel=0.25)


def test_odd_draws_are_the_mirror_image() -> None:
    draws, states = Draws((-0.3, 0.0, 0.3), math.inf, 1, 0.0, 0.0), [state(order, 100.0, 0.5) for order in range(50)]
    for even in range(0, NUM_DRAWS, 2):
        pairs = zip(draws.works(states, even), draws.works(states, even + 1), strict=True)
        assert [math.log(a.waiting[0] * b.waiting[0]) for a, b in pairs] == pytest.approx([2 * math.log(100.0)] * 50)


def test_a_group_keeps_its_draw_whatever_else_is_drawn() -> None:
    draws = Draws(PARTS, 1e6, 1, 0.01, 0.0)
    alone, among = [state(7, 100.0, 0.5)], [state(order, 100.0, 0.5) for order in range(10)]
    for draw in range(NUM_DRAWS):
        assert draws.works(alone, draw) == [draws.works(among, draw)[7]]


def test_what_is_decoded_already_is_not_to_go_and_is_trained() -> None:
    (work,) = Draws((), 1000.0, 1, 0.01, 0.0).works([state(0, 100.0, running=(30.0, 99.0), done=55)], 0)
    assert work.running == pytest.approx((70.0, 1.0))
    assert work.waiting == pytest.approx((100.0, 100.0))
    assert work.train_s == pytest.approx(0.01 * (55 + 4 * 100))


@pytest.mark.parametrize("had", [101.0, 150.0, 990.0, 1000.0, 5000.0])
def test_one_that_is_past_its_expected_end_still_has_to_go(had: float) -> None:
    (work,) = Draws((), 1000.0, 1, 0.0, 0.0).works([state(0, 100.0, running=(had,))], 0)
    assert 1.0 <= work.running[0] <= max(0.2 * had, 1.0)
    assert work.running[0] <= max(1000.0 - had, 1.0)


def test_a_large_group_is_thinned_and_keeps_its_longest() -> None:
    whole = Draws(PARTS, 1e6, 1, 0.01, 0.0).works([state(2, 100.0, 0.3)], 0)[0]
    thin = Draws(PARTS, 1e6, 2, 0.01, 0.0).works([state(2, 100.0, 0.3)], 0)[0]
    assert len(thin.waiting) == SIZE // 2
    assert max(thin.waiting) == max(whole.waiting)
    assert thin.train_s == whole.train_s


@pytest.mark.parametrize("order", [-1, -(10**9), 10**18, 10**400, 2**64])
def test_any_whole_number_is_an_order(order: int) -> None:
    draws = Draws(PARTS, 1e6, 1, 0.01, 0.0)
    for draw in range(NUM_DRAWS):
        (work,) = draws.works([state(order, 100.0, 0.5)], draw)
        assert all(1.0 < length < 10_000 for length in work.waiting)


def test_time_stamps_as_orders_are_drawn_apart() -> None:
    states = [state(10**18 + index, 100.0, 0.5) for index in range(100)]
    assert len({work.waiting[0] for work in Draws((), 1e6, 1, 0.0, 0.0).works(states, 0)}) > 8


def test_orders_have_names_that_say_what_they_are() -> None:
    assert Order().name == "submitted"
    assert Order(0, 0, "longest").name == "longest first"
    assert Order(2, 8, "submitted").name == "2 shortest, then submitted, 8 short ones last"
