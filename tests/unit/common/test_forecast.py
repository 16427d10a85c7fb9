"""The forward model against the simulator, and against arithmetic written out on small cases."""

import random
from itertools import permutations

import numpy as np
import pytest

from common.forecast import Pipeline, Width, Work, forecast
from common.simulation.lengths import RecordedLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel
from common.simulation.run import simulate

SIZE = 4
STEP_S, PER_REQUEST_S = 0.02, 0.003


def draw_lengths(seed: int, num_groups: int) -> list[list[int]]:
    rng = random.Random(seed)
    centers = [rng.lognormvariate(4.0, 0.6) for _ in range(num_groups)]
    return [[max(1, round(center * rng.lognormvariate(0.0, 0.4))) for _ in range(SIZE)] for center in centers]


def simulated_s(lengths: list[list[int]], *, capacity: int, token_s: float, group_order: str = "arrival") -> float:
    """Rollout to train end of one round, first come first served, one replica, no verifier."""
    scenario = Scenario(
        schedule="cgp",
        groups_per_round=len(lengths),
        responses_per_group=SIZE,
        groups_per_update=1,
        group_order=group_order,  # type: ignore[arg-type]
        engine=EngineModel(capacity=capacity, step_s=STEP_S, step_per_request_s=PER_REQUEST_S),
        lengths=RecordedLengths([np.array(lengths)]),
        trainer=TrainerModel(token_s=token_s, group_s=0.3),
    )
    (one,) = simulate(scenario).rounds
    assert one.r2t_end_s is not None
    return one.r2t_end_s


def forecast_s(
    lengths: list[list[int]], *, capacity: int, token_s: float, in_order: bool = False, width: float | None = None
) -> float:
    works = [Work(tuple(map(float, members)), (), 0.3 + token_s * sum(members)) for members in lengths]
    pipeline = Pipeline(capacity, STEP_S, PER_REQUEST_S * capacity, in_order=in_order)
    limit = width or capacity
    return forecast(pipeline, works, list(range(len(works))), Width(limit, limit, 0))


CASES = [(seed, capacity, token_s) for seed in range(3) for capacity in (3, 8, 200) for token_s in (1e-5, 1e-3, 0.02)]


@pytest.mark.parametrize(("seed", "capacity", "token_s"), CASES)
@pytest.mark.parametrize("group_order", ["arrival", "submission"])
def test_it_is_what_the_simulator_does(seed: int, capacity: int, token_s: float, group_order: str) -> None:
    lengths = draw_lengths(seed, 24)
    expected = simulated_s(lengths, capacity=capacity, token_s=token_s, group_order=group_order)
    found = forecast_s(lengths, capacity=capacity, token_s=token_s, in_order=group_order == "submission")
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("width", [1, 4, 10])
def test_a_width_is_a_smaller_capacity_of_an_engine_of_the_same_speed(width: int) -> None:
    lengths = draw_lengths(5, 20)
    expected = simulated_s(lengths, capacity=width, token_s=1e-3)
    assert forecast_s(lengths, capacity=32, token_s=1e-3, width=width) == pytest.approx(expected, rel=1e-6)


def test_what_the_trainer_has_now_delays_it() -> None:
    """Groups are complete after 10 and 20 s, and take 5 s each: 15 s of backlog are gone when the second one comes."""
    works = [Work((10.0,), (), 5.0), Work((20.0,), (), 5.0)]
    full = Width(2, 2, 0)
    for backlog_s, expected in ((0.0, 20 + 5), (15.0, 20 + 5), (16.0, 16 + 5 + 5), (40.0, 40 + 5 + 5)):
        pipeline = Pipeline(2, 1.0, 0.0, trainer_free_s=backlog_s)
        assert forecast(pipeline, works, [0, 1], full) == pytest.approx(expected)


def test_an_engine_is_slower_the_more_runs() -> None:
    """Two requests of 10 tokens at 1 + 2/2 seconds a step; together 20 s, one after the other 2 * 10 * 1.5."""
    works, pipeline = [Work((10.0, 10.0), (), 1.0)], Pipeline(2, 1.0, 1.0)
    assert forecast(pipeline, works, [0], Width(2, 2, 0)) == pytest.approx(21.0)
    assert forecast(pipeline, works, [0], Width(1, 1, 0)) == pytest.approx(31.0)


def test_what_runs_now_goes_on_whatever_the_width() -> None:
    works = [Work((), (4.0, 6.0), 1.0), Work((5.0,), (), 1.0)]
    assert forecast(Pipeline(4, 1.0, 0.0), works, [0, 1], Width(1, 1, 0)) == pytest.approx(6 + 5 + 1)
    assert forecast(Pipeline(4, 1.0, 0.0), works, [0, 1], Width(3, 3, 0)) == pytest.approx(5 + 1 + 1)


def test_the_width_opens_after_so_many_groups() -> None:
    works = [Work((10.0,), (), 0.0) for _ in range(4)]
    order, pipeline = [0, 1, 2, 3], Pipeline(4, 1.0, 0.0)
    ends = [forecast(pipeline, works, order, Width(1, 4, opens)) for opens in (0, 1, 2, 3, 4)]
    assert ends == pytest.approx([10, 20, 30, 40, 40])


def test_nothing_left_is_done_when_the_trainer_is() -> None:
    assert forecast(Pipeline(4, 1.0, 0.0, trainer_free_s=3.0), [], [], Width(4, 4, 0)) == 3.0


def brute_force_s(slots: int, works: list[tuple[int, int]], in_order: bool) -> float:
    """Single-member groups (tokens, training), second by second: each slot takes the next one as soon as it is free."""
    free = [0] * slots
    ends = []
    for tokens, _ in works:
        slot = free.index(min(free))
        free[slot] += tokens
        ends.append(free[slot])
    if in_order:
        ends = [max(ends[: place + 1]) for place in range(len(ends))]
    line = sorted(range(len(works)), key=lambda place: ends[place])
    now = 0.0
    for place in line:
        now = max(now, ends[place]) + works[place][1]
    return now


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_small_cases_by_hand(slots: int, in_order: bool) -> None:
    for works in permutations([(3, 2), (7, 1), (2, 9), (11, 4)]):
        made = [Work((float(tokens),), (), float(train_s)) for tokens, train_s in works]
        found = forecast(Pipeline(slots, 1.0, 0.0, in_order=in_order), made, [0, 1, 2, 3], Width(slots, slots, 0))
        assert found == pytest.approx(brute_force_s(slots, list(works), in_order)), works


def test_an_order_is_the_same_as_works_in_that_order() -> None:
    rng = random.Random(1)
    works = [Work((rng.uniform(1, 9), rng.uniform(1, 9)), (), rng.uniform(1, 9)) for _ in range(6)]
    pipeline, width = Pipeline(3, 1.0, 0.5), Width(3, 3, 0)
    for _ in range(20):
        order = rng.sample(range(6), 6)
        again = forecast(pipeline, [works[index] for index in order], list(range(6)), width)
        assert forecast(pipeline, works, order, width) == pytest.approx(again)
