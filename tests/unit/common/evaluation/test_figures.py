"""The figures of an evaluation against brute force, scipy, simulation and known values."""

import itertools
import math
import random
import statistics

import pytest
from scipy import stats

from common.errors import UsageError
from common.evaluation.figures import Estimate, Outcome, by_category, estimate, figures_of, pass_at, wilson
from common.records import Verdict


def outcome(problem: str, is_right: bool, **fields: object) -> Outcome:
    base = {"status": Verdict.OK if is_right else Verdict.WRONG, "reward": float(is_right), "num_tokens": 10}
    return Outcome(problem=problem, **{**base, **fields})  # type: ignore[arg-type]


def outcomes(*rows: str) -> list[Outcome]:
    """A problem for each row; `1` is a right sample, `0` a wrong one, `e` one without a verdict."""
    error = {"status": Verdict.ERROR, "reward": None}
    return [outcome(f"p{place}", sign == "1", **(error if sign == "e" else {})) for place, row in enumerate(rows) for sign in row]


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_is_the_share_of_all_subsets_that_hold_a_right_sample(n: int) -> None:
    for right in range(n + 1):
        samples = [place < right for place in range(n)]
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(samples, k))
            assert pass_at(n, right, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_of_many_samples_is_the_hypergeometric_distribution() -> None:
    for n, right, k in ((200, 3, 100), (1000, 17, 10), (10_000, 1, 1), (10_000, 9_999, 2)):
        assert pass_at(n, right, k) == pytest.approx(1 - stats.hypergeom(n, right, k).pmf(0), rel=1e-9)


def test_pass_at_k_at_its_ends() -> None:
    assert pass_at(5, 0, 5) == 0.0 and pass_at(5, 0, 1) == 0.0  # c = 0
    assert pass_at(5, 5, 1) == 1.0 and pass_at(5, 1, 5) == 1.0  # c = n; n = k
    assert pass_at(4, 1, 1) == pytest.approx(0.25)


@pytest.mark.parametrize(("n", "right", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_pass_at_k_refuses_what_cannot_be(n: int, right: int, k: int) -> None:
    with pytest.raises(UsageError):
        pass_at(n, right, k)


@pytest.mark.parametrize(("right", "n"), [(0, 10), (1, 10), (5, 10), (10, 10), (1, 1), (37, 500), (499, 500)])
def test_one_sample_a_problem_gives_the_wilson_interval_of_scipy(right: int, n: int) -> None:
    found = figures_of(outcomes(*("1" if place < right else "0" for place in range(n)))).accuracy
    assert found is not None
    wanted = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert (found.value, found.problems) == (right / n, n)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_samples_that_repeat_themselves_are_worth_one_a_problem() -> None:
    single, repeated = ["1", "0", "0", "1", "1"], ["1111", "0000", "0000", "1111", "1111"]
    assert figures_of(outcomes(*repeated)).accuracy == figures_of(outcomes(*single)).accuracy


def test_samples_that_do_not_depend_on_their_problem_are_worth_each_their_own() -> None:
    found = figures_of(outcomes(*["1010"] * 25)).accuracy
    wanted = stats.binomtest(50, 100).proportion_ci(method="wilson")
    assert found is not None and (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_problems_that_are_more_alike_than_chance_are_worth_no_more_than_their_samples() -> None:
    """Their shares hardly differ, so that a variance taken at its word would stand for hundreds of samples."""
    found = figures_of(outcomes(*["1010"] * 24, "1110")).accuracy
    wanted = stats.binomtest(51, 100).proportion_ci(method="wilson")
    assert found is not None and (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_between_them_the_interval_is_that_of_the_spread_of_the_problems() -> None:
    """The width is close to the normal interval of the per-problem means, where that one is good."""
    rng = random.Random(1)
    values = [sum(rng.random() < p for _ in range(4)) / 4 for p in (rng.uniform(0.2, 0.8) for _ in range(2000))]
    found = estimate(values, [4.0] * len(values))
    assert found is not None
    normal = 2 * 1.959964 * statistics.pstdev(values) / math.sqrt(len(values))
    assert found.high - found.low == pytest.approx(normal, rel=0.01)


@pytest.mark.parametrize(("low", "high", "samples"), [(0.0, 1.0, 4), (0.5, 0.5, 4), (0.9, 1.0, 8), (0.0, 0.1, 2)])
def test_the_interval_holds_the_truth_as_often_as_it_says(low: float, high: float, samples: int) -> None:
    """2,000 evaluations of 40 problems whose chances are uniform between `low` and `high`; seeded, so always the same."""
    rng = random.Random(f"{low}{high}{samples}")
    hits = 0
    for _ in range(2000):
        chances = [rng.uniform(low, high) for _ in range(40)]
        values = [sum(rng.random() < chance for _ in range(samples)) / samples for chance in chances]
        found = estimate(values, [float(samples)] * 40)
        assert found is not None
        hits += found.low <= (low + high) / 2 <= found.high
    assert 0.93 <= hits / 2000 <= 1.0


def test_errors_are_left_out_and_counted_and_each_problem_weighs_the_same() -> None:
    found = figures_of(outcomes("1e", "0000", "ee"))
    assert found.accuracy is not None and found.accuracy.value == 0.5  # not 1 of 5
    assert (found.accuracy.problems, found.problems, found.samples, found.errors) == (2, 3, 8, 3)


def test_a_time_out_is_a_wrong_answer_and_counted() -> None:
    late = {"status": Verdict.TIMEOUT, "reward": 0.0}
    found = figures_of([outcome("a", True), outcome("b", False, **late)])
    assert found.accuracy is not None and found.accuracy.value == 0.5
    assert (found.timeouts, found.errors) == (1, 0)


def test_lengths_and_shares() -> None:
    lost = {"status": Verdict.ERROR, "reward": None, "num_tokens": None}
    rows = [
        outcome("a", True, num_tokens=4),
        outcome("b", False, num_tokens=8, is_cut_off=True, status=Verdict.NO_ANSWER),
        outcome("c", False, num_tokens=3, status=Verdict.ERROR, reward=None),
        outcome("d", False, **lost),
    ]
    found = figures_of(rows)
    assert found.length_mean == 5.0  # of the three that came
    assert found.cut_off_share == pytest.approx(1 / 3)
    assert found.no_answer_share == 0.5  # of the two that were scored
    assert (found.errors, found.lost, found.reward_mean) == (2, 1, 0.5)


def test_a_right_answer_is_one_by_its_verdict_not_by_its_reward() -> None:
    found = figures_of([outcome("a", True, reward=0.7), outcome("b", True, reward=0.4), outcome("c", False, reward=1.2)])
    assert found.accuracy is not None and found.accuracy.value == pytest.approx(2 / 3)
    assert found.reward_mean == pytest.approx(2.3 / 3)


def test_pass_at_k_is_averaged_over_problems_with_enough_samples() -> None:
    found = figures_of(outcomes("1000", "0000", "1111", "1e0e"), (1, 2, 3)).pass_at
    assert found[1] is not None and found[1].value == pytest.approx((0.25 + 0 + 1 + 0.5) / 4)
    assert found[2] is not None and found[2].value == pytest.approx((0.5 + 0 + 1 + 1) / 4)
    assert found[3] is not None and found[3].value == pytest.approx((0.75 + 0 + 1) / 3) and found[3].problems == 3


def test_pass_at_1_is_the_accuracy() -> None:
    found = figures_of(outcomes("10", "11", "0e", "00"))
    assert found.accuracy is not None and found.pass_at[1] is not None
    assert found.pass_at[1].value == pytest.approx(found.accuracy.value)
    assert (found.pass_at[1].low, found.pass_at[1].high) == pytest.approx((found.accuracy.low, found.accuracy.high))


def test_pass_at_k_is_unbiased() -> None:
    """Its mean over all outcomes of n tries with chance p is 1 - (1 - p)^k."""
    for n, k, p in ((6, 3, 0.2), (8, 5, 0.55), (5, 5, 0.1)):
        mean = sum(stats.binom(n, p).pmf(right) * pass_at(n, right, k) for right in range(n + 1))
        assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


def test_without_a_verdict_there_is_no_accuracy() -> None:
    found = figures_of(outcomes("ee", "e"), (1, 2))
    assert found.accuracy is None and found.pass_at == {1: None, 2: None} and found.no_answer_share is None
    assert found.errors == 3 and found.length_mean == 10.0
    assert figures_of([]).accuracy is None


def test_one_problem_has_an_honest_interval() -> None:
    found = figures_of(outcomes("1"), (1,)).accuracy
    assert found is not None and found.value == found.high == 1.0 and found.low == pytest.approx(0.2065, abs=1e-4)
    many = figures_of(outcomes("1" * 50)).accuracy
    assert many is not None and many.low == found.low  # one problem is one problem


def test_the_interval_holds_its_value_and_stays_within_0_and_1() -> None:
    rng = random.Random(5)
    for _ in range(2000):
        num_problems, n = rng.randint(1, 12), rng.randint(1, 6)
        values = [rng.randint(0, n) / n for _ in range(num_problems)]
        found = estimate(values, [float(n)] * num_problems)
        assert found is not None and 0.0 <= found.low <= found.value <= found.high <= 1.0
        assert found.high > found.low


def test_wilson_of_known_values() -> None:
    assert wilson(0.5, 100) == pytest.approx((0.403832, 0.596168), abs=1e-6)


def test_categories_part_the_outcomes() -> None:
    rows = [outcome("a", True, category="x"), outcome("b", False, category="y"), outcome("c", True, category="y")]
    found = by_category(rows)
    assert list(found) == ["x", "y"]
    assert found["y"].accuracy is not None and found["y"].accuracy.value == 0.5 and found["y"].samples == 2
    assert by_category(rows[1:]) == {}


def test_figures_are_plain_json() -> None:
    found = figures_of(outcomes("10", "11"), (1, 2)).to_json()
    assert found["pass_at"]["2"] == {"value": 1.0, "low": found["pass_at"]["2"]["low"], "high": 1.0, "problems": 2}
    assert found["accuracy"]["value"] == 0.75
    assert isinstance(estimate([1.0], [1.0]), Estimate)
