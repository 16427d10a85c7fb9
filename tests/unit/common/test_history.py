"""What a run has shown: the line of the step time."""

import math
import random

import pytest

from common.history import History, StepTime

BASE_S, SLOPE_S = 0.02, 0.05


def learned(occupancies: list[float], noise: float = 0.0, seed: int = 0, slope_s: float = SLOPE_S) -> StepTime:
    rng, step_time = random.Random(seed), StepTime()
    for occupancy in occupancies:
        step_time.learn((BASE_S + slope_s * occupancy) * (1 + rng.gauss(0.0, noise)), occupancy)
    return step_time


def spread(count: int, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [rng.random() for _ in range(count)]


def test_nothing_is_known_at_first() -> None:
    assert StepTime().line() is None
    history = History()
    assert (history.step_time.line(), history.trainer_token_s, history.trainer_update_s) == (None, None, 0.0)


@pytest.mark.parametrize("count", [3, 10, 5000])
def test_a_line_without_noise_is_found_exactly(count: int) -> None:
    assert learned(spread(count)).line() == pytest.approx((BASE_S, SLOPE_S), rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_line_is_found_within_its_error(seed: int) -> None:
    """1,000 responses, 10 % noise: the slope's standard error is about 0.0007 s."""
    assert learned(spread(1000), noise=0.1, seed=seed).line() == pytest.approx((BASE_S, SLOPE_S), abs=0.003)


@pytest.mark.parametrize("occupancies", [[1.0], [1.0, 1.0], [0.9] * 50, [0.0, 1.0]])
def test_without_variation_or_with_two_responses_a_fuller_engine_counts_as_no_slower(occupancies: list[float]) -> None:
    line = learned(occupancies).line()
    assert line is not None
    mean_s = BASE_S + SLOPE_S * sum(occupancies) / len(occupancies)
    assert line == (pytest.approx(mean_s, rel=1e-3), 0.0)  # earlier ones weigh a little less


@pytest.mark.parametrize("seed", range(5))
def test_where_occupancy_hardly_varies_the_noise_makes_no_slope(seed: int) -> None:
    rng = random.Random(seed)
    line = learned([0.95 + 0.01 * rng.random() for _ in range(30)], noise=0.2, seed=seed).line()
    assert line is not None
    assert line[1] < 0.5 * SLOPE_S  # of a standard error of 0.9 s in the bare slope


@pytest.mark.parametrize("slope_s", [-0.015, 0.0])
def test_an_engine_that_seems_faster_when_full_has_no_slope(slope_s: float) -> None:
    line = learned(spread(100), slope_s=slope_s).line()
    assert line is not None
    assert line[0] > 0
    assert line[1] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_neither_number_is_ever_negative(seed: int) -> None:
    rng, step_time = random.Random(seed), StepTime()
    for _ in range(50):
        occupancy = rng.random()
        step_time.learn(max(occupancy * rng.lognormvariate(0.0, 1.0) - 0.1, 1e-6), occupancy)  # a line through below 0
        line = step_time.line()
        assert line is not None
        assert line[0] >= 0
        assert line[1] >= 0


def test_a_changed_engine_is_followed() -> None:
    step_time = learned(spread(3000))
    for occupancy in spread(6000, seed=2):
        step_time.learn(3 * (BASE_S + SLOPE_S * occupancy), occupancy)
    assert step_time.line() == pytest.approx((3 * BASE_S, 3 * SLOPE_S), rel=0.05)


@pytest.mark.parametrize(
    ("step_s", "occupancy"),
    [
        (math.nan, 0.5),
        (math.inf, 0.5),
        (-0.1, 0.5),
        (0.0, 0.5),
        (1e200, 0.5),
        (0.1, math.nan),
        (0.1, math.inf),
        (0.1, -0.1),
        (0.1, 9.0),
    ],
)
def test_what_cannot_be_is_not_learned(step_s: float, occupancy: float) -> None:
    step_time = learned(spread(50))
    before = step_time.line()
    step_time.learn(step_s, occupancy)
    assert step_time.line() == before
