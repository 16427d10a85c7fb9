"""The length predictor on synthetic data, whose truth is known. All lengths are log-normal unless a test says otherwise."""

import math
import random
import statistics
from collections.abc import Callable

import pytest

from common.errors import UsageError
from common.lengths import NOTHING_KNOWN, Expected, LengthPredictor

SIZE = 8
PROMPT_SIGMA, MEMBER_SIGMA = 0.6, 0.4


class World:
    """Prompts with a part of their own; `visit` draws one group."""

    def __init__(self, seed: int = 0, *, tasks: tuple[float, ...] = (5.0,), slope: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.tasks, self.slope = tasks, slope
        self.part: dict[int, float] = {}
        self.drift = 0.0

    def tokens(self, prompt: int) -> int:
        return 20 + 37 * prompt % 400

    def task(self, prompt: int) -> int:
        return prompt % len(self.tasks)

    def center(self, prompt: int) -> float:
        """Log of the geometric mean of its lengths."""
        part = self.part.setdefault(prompt, self.rng.gauss(0.0, PROMPT_SIGMA))
        return self.tasks[self.task(prompt)] + self.slope * math.log(self.tokens(prompt)) + part + self.drift

    def visit(self, prompt: int, size: int = SIZE) -> list[int]:
        center = self.center(prompt)
        return [max(round(math.exp(self.rng.gauss(center, MEMBER_SIGMA))), 1) for _ in range(size)]

    def expect(self, predictor: LengthPredictor, prompt: int) -> Expected:
        return predictor.expect(prompt, prompt_tokens=self.tokens(prompt), task=self.task(prompt))

    def learn(self, predictor: LengthPredictor, prompt: int, size: int = SIZE) -> tuple[Expected, float]:
        """What it expected, and the mean log length that came."""
        expected, lengths = self.expect(predictor, prompt), self.visit(prompt, size)
        predictor.learn(prompt, lengths, prompt_tokens=self.tokens(prompt), task=self.task(prompt))
        return expected, statistics.fmean(math.log(length) for length in lengths)


def misses(pairs: list[tuple[Expected, float]]) -> list[float]:
    return [mean - math.log(expected.tokens) for expected, mean in pairs]


def rms(values: list[float]) -> float:
    return math.sqrt(statistics.fmean(value * value for value in values))


def test_it_knows_nothing_before_the_first_response() -> None:
    assert LengthPredictor().expect("p") == NOTHING_KNOWN
    assert NOTHING_KNOWN.error == math.inf


def test_a_new_prompt_is_unknown_until_two_prompts_were_seen() -> None:
    predictor = LengthPredictor()
    predictor.learn("p", [100, 100])
    assert predictor.expect("q").error == math.inf
    assert predictor.expect("p").tokens == pytest.approx(100)
    predictor.learn("q", [400, 400])
    assert predictor.expect("r").tokens == pytest.approx(200, rel=0.01)  # the geometric mean
    assert predictor.expect("r").error < math.inf


def test_no_lengths_teach_nothing() -> None:
    predictor = LengthPredictor()
    predictor.learn("p", [])
    assert predictor.expect("p") == NOTHING_KNOWN
    assert predictor.member_parts == []


def test_it_finds_the_effects_of_task_and_prompt_length() -> None:
    world, predictor = World(tasks=(4.0, 6.5), slope=0.5), LengthPredictor()
    for prompt in range(1000):
        world.learn(predictor, prompt)
    for prompt in range(1000, 1040):
        truth = world.tasks[world.task(prompt)] + 0.5 * math.log(world.tokens(prompt))
        assert math.log(world.expect(predictor, prompt).tokens) == pytest.approx(truth, abs=0.2)  # the latest 400 count


def test_prompts_of_one_length_have_no_slope() -> None:
    world, predictor = World(), LengthPredictor()
    for prompt in range(200):
        predictor.learn(prompt, world.visit(prompt), prompt_tokens=100)
    assert predictor.expect("new", prompt_tokens=10_000).tokens == pytest.approx(math.exp(5.0), rel=0.2)


def test_a_visited_prompt_is_predicted_better_than_a_new_one() -> None:
    world, predictor = World(), LengthPredictor()
    first = [world.learn(predictor, prompt) for prompt in range(300)]
    again = [world.learn(predictor, prompt) for prompt in range(300)]
    assert rms(misses(first[50:])) == pytest.approx(math.hypot(PROMPT_SIGMA, MEMBER_SIGMA / math.sqrt(SIZE)), rel=0.15)
    assert rms(misses(again)) == pytest.approx(MEMBER_SIGMA * math.sqrt(2 / SIZE), rel=0.15)
    assert again[-1][0].error < 0.5 * first[-1][0].error


@pytest.mark.parametrize("size", [1, 2, SIZE])
def test_the_posterior_mean_is_that_of_normal_parts(size: int) -> None:
    """1,000 other prompts show the parts; the last one has `size` responses. K=1 in every group would hide the member part."""
    world, predictor = World(3), LengthPredictor()
    for prompt in range(1000):
        world.learn(predictor, prompt)
    predictor.learn("p", [1000] * size, prompt_tokens=200, task=0)
    trust = PROMPT_SIGMA**2 / (PROMPT_SIGMA**2 + MEMBER_SIGMA**2 / size)
    expected = 5.0 + trust * (math.log(1000) - 5.0)
    assert math.log(predictor.expect("p", prompt_tokens=200, task=0).tokens) == pytest.approx(expected, abs=0.08)


def test_prompts_that_do_not_differ_earn_no_trust() -> None:
    """All the differences are the members': one visit of a prompt says nothing about the next."""
    rng, predictor = random.Random(1), LengthPredictor()
    for prompt in range(2000):
        predictor.learn(prompt, [max(round(rng.lognormvariate(5.0, 0.5)), 1) for _ in range(4)])
    predictor.learn("long", [300] * 4)
    assert predictor.expect("long").tokens == pytest.approx(math.exp(5.0), rel=0.15)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share_again", [0.0, 0.5, 0.95])
def test_the_error_that_it_states_is_honest(seed: int, share_again: float) -> None:
    world, predictor = World(seed, slope=0.3), LengthPredictor()
    rng, scores = random.Random(seed), []
    for visit in range(1500):
        prompt = rng.randrange(visit) if visit and rng.random() < share_again else visit
        expected, mean = world.learn(predictor, prompt)
        if visit >= 100:
            scores.append((mean - math.log(expected.tokens)) / expected.error)
    assert 0.85 < rms(scores) < 1.15


def test_a_task_of_its_own_is_predicted_from_all_until_it_was_seen_twice() -> None:
    world, predictor = World(), LengthPredictor()
    for prompt in range(100):
        world.learn(predictor, prompt)
    everyone = predictor.expect("new", task=0).tokens
    assert predictor.expect("new", task="rare").tokens == pytest.approx(everyone)
    predictor.learn("rare 1", [3] * SIZE, task="rare")
    predictor.learn("rare 2", [3] * SIZE, task="rare")
    assert predictor.expect("rare 3", task="rare").tokens == pytest.approx(3.0)


def test_empty_and_one_token_responses_count_as_one_token() -> None:
    predictor = LengthPredictor()
    predictor.learn("p", [0, 1, 0])
    predictor.learn("q", [1, 1])
    for prompt in ("p", "q", "r"):
        assert predictor.expect(prompt) == Expected(tokens=1.0, error=0.0)
    assert predictor.member_parts == [0.0] * 5


def test_it_never_expects_more_than_it_has_seen() -> None:
    """Two prompts of 100 and 110 tokens with lengths 1 and 1,000,000: the line through them leads nowhere."""
    predictor = LengthPredictor()
    predictor.learn("p", [1], prompt_tokens=100)
    predictor.learn("q", [1_000_000], prompt_tokens=110)
    assert predictor.expect("r", prompt_tokens=100_000_000).tokens == pytest.approx(1_000_000)
    assert predictor.expect("r", prompt_tokens=1).tokens == 1.0
    assert predictor.longest == 1_000_000


def test_a_prompt_that_grows_longer_is_followed() -> None:
    """Lengths double from visit to visit: what is expected after five of them is nearer to the last than to the mean."""
    world, predictor = World(), LengthPredictor()
    for prompt in range(100):
        world.learn(predictor, prompt)
    for visit in range(6):
        predictor.learn("p", [100 * 2**visit] * SIZE, prompt_tokens=100, task=0)
    last, mean = math.log(100 * 2**5), math.log(100 * 2**2.5)
    expected = math.log(predictor.expect("p", prompt_tokens=100, task=0).tokens)
    assert last - expected < 0.6 * (last - mean)


def test_new_prompts_are_expected_longer_when_all_responses_grow() -> None:
    """The policy that is trained changes: lengths double every 300 prompts."""
    world, predictor, pairs = World(), LengthPredictor(), []
    for prompt in range(2000):
        world.drift = math.log(2) * prompt / 300
        pairs.append(world.learn(predictor, prompt))
    late = pairs[1000:]
    assert abs(statistics.fmean(misses(late))) < 0.5  # a mean over all that was seen would be off by 1.7 here
    assert 0.8 < rms([miss / expected.error for miss, (expected, _) in zip(misses(late), late, strict=True)]) < 1.25


def test_member_parts_are_of_the_size_of_the_members_differences() -> None:
    world, predictor = World(), LengthPredictor()
    for prompt in range(300):
        world.learn(predictor, prompt, size=4)
    parts = predictor.member_parts
    assert parts == sorted(parts)
    assert len(parts) == 512  # of the latest responses
    assert rms(parts) == pytest.approx(MEMBER_SIGMA, rel=0.1)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_an_expected_length_is_a_number_above_zero(bad: float) -> None:
    with pytest.raises(UsageError, match=r"^expected tokens: must be a finite number above 0, got .*; use a geometric mean"):
        Expected(tokens=bad, error=0.5)


@pytest.mark.parametrize("bad", [-0.1, math.nan])
def test_an_expected_error_is_no_negative_number(bad: float) -> None:
    with pytest.raises(
        UsageError, match=r"^expected error: must be a number of 0 or more, got .*; use inf where nothing is known"
    ):
        Expected(tokens=5.0, error=bad)


# --- planted bugs


class ForgetsTheMembers(LengthPredictor):
    """Trusts one visit fully: no shrinkage."""

    def _member_variance(self) -> float:
        return 0.0


class BoastsOfItsError(LengthPredictor):
    def _make(self, log_tokens: float, variance: float, seen: bool) -> Expected:
        expected = super()._make(log_tokens, variance, seen)
        return Expected(tokens=expected.tokens, error=0.5 * expected.error)


@pytest.mark.parametrize(
    ("bug", "test"),
    [
        (ForgetsTheMembers, lambda: test_the_posterior_mean_is_that_of_normal_parts(2)),
        (ForgetsTheMembers, test_prompts_that_do_not_differ_earn_no_trust),
        (BoastsOfItsError, lambda: test_the_error_that_it_states_is_honest(0, 0.5)),
    ],
)
def test_a_planted_bug_is_found(bug: type, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "LengthPredictor", bug)
    with pytest.raises(AssertionError):
        test()
