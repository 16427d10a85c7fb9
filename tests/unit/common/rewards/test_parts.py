"""The parts of a reward and their sum."""

import math

import pytest

from common.config_rewards import LengthConfig, RewardWeights
from common.errors import DataError
from common.protocols import Score
from common.records import Verdict
from common.rewards.parts import format_part, length_part, num_tokens_of, pattern_part, weigh

# DAPO's own setting, and its equation 13 worked by hand: L_max = 20480, L_cache = 4096.
DAPO = [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20479, -4095 / 4096), (20480, -1.0), (20481, -1.0)]


@pytest.mark.parametrize(("num_tokens", "expected"), DAPO)
def test_length_is_punished_as_dapo_does(num_tokens: int, expected: float) -> None:
    assert length_part(LengthConfig(limit=20480, buffer=4096), num_tokens) == expected


def test_length_is_punished_in_every_case_of_the_equation() -> None:
    for limit in range(1, 12):
        for buffer in range(1, limit + 1):
            for num_tokens in range(15):
                if num_tokens <= limit - buffer:
                    expected = 0.0
                elif num_tokens <= limit:
                    expected = ((limit - buffer) - num_tokens) / buffer
                else:
                    expected = -1.0
                assert length_part(LengthConfig(limit=limit, buffer=buffer), num_tokens) == expected


@pytest.mark.parametrize("found", [None, -1, 1.5, "3", True])
def test_a_length_needs_a_count(found: object) -> None:
    with pytest.raises(DataError, match=r"^task\.num_tokens: must be the response's number of tokens .*; add it"):
        num_tokens_of({"num_tokens": found})


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"so \boxed{4}", 1.0),
        (r"<think>hm</think> \boxed{4}", 1.0),
        (r"hm</think> \boxed{4}", 1.0),  # the block was opened in the prompt
        (r"\boxed{1} no, \boxed{\frac{1}{2}} it is", 1.0),
        (r"<think>\boxed{4}</think> so 4", 0.0),
        (r"<think>hm \boxed{4}", 0.0),
        (r"<think>a</think> \boxed{4} <think>b", 0.0),
        (r"\boxed{4} and \boxed{5", 0.0),
        (r"\boxed{\frac{1}{2}", 0.0),
        ("so 4", 0.0),
        ("", 0.0),
    ],
)
def test_the_format_is_a_complete_box_after_thinking(response: str, expected: float) -> None:
    assert format_part(response) == expected


def test_a_pattern_must_match_the_whole_response_across_lines() -> None:
    task = {"pattern": r"<think>.*</think>\s*\d+"}
    assert pattern_part(task, "<think>a\nb</think>\n42") == 1.0
    assert pattern_part(task, "<think>a\nb</think>\n42 apples") == 0.0
    assert pattern_part(task, "well <think></think>42") == 0.0


def test_the_reward_is_the_weighted_sum_and_the_verdict_the_answers() -> None:
    weights = RewardWeights(answer=2.0, format=0.5, length=0.25)
    answer = Score(reward=0.75, status=Verdict.WRONG, extracted="7", reason="close", parts=(("style", 0.1),))
    found = weigh(weights, answer, (("format", 1.0), ("length", -0.5)))
    assert found.reward == 2.0 * 0.75 + 0.5 * 1.0 + 0.25 * -0.5
    assert (found.status, found.extracted, found.reason) == (Verdict.WRONG, "7", "close")
    assert found.parts == (("answer", 0.75), ("format", 1.0), ("length", -0.5), ("answer.style", 0.1))


def test_no_answer_still_gets_the_other_parts() -> None:
    found = weigh(RewardWeights(format=0.5), Score(reward=0.0, status=Verdict.NO_ANSWER), (("format", 1.0),))
    assert (found.reward, found.status) == (0.5, Verdict.NO_ANSWER)


@pytest.mark.parametrize(("status", "reward"), [(Verdict.TIMEOUT, 0.0), (Verdict.ERROR, None)])
def test_timeout_keeps_0_and_error_none(status: Verdict, reward: float | None) -> None:
    answer = Score(reward=reward, status=status, reason="why")
    assert weigh(RewardWeights(format=0.5), answer, (("format", 1.0),)) == answer


def test_a_sum_beyond_every_float_is_an_error() -> None:
    found = weigh(RewardWeights(answer=1e300), Score(reward=1e300, status=Verdict.OK), ())
    assert (found.reward, found.status) == (None, Verdict.ERROR)
    assert "inf" in found.reason and not math.isfinite(1e300 * 1e300)
