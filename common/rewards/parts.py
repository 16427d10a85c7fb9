"""The parts of a reward beside the answer, and their weighted sum."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from common.config_rewards import LengthConfig, RewardWeights
from common.errors import DataError, explain, is_finite
from common.protocols import Score
from common.records import Verdict
from common.rewards.answers import after_thinking, last_boxed

_BOX = r"\boxed{"


def weigh(weights: RewardWeights, answer: Score, others: Iterable[tuple[str, float]]) -> Score:
    """The sum of weight times part, with the parts kept apart; the verdict stays the answer's.

    A TIMEOUT keeps reward 0 and an ERROR none, whatever the other parts (rule 9). Named parts that the answer brought along
    are kept as `answer.NAME` and not summed again.
    """
    if answer.reward is None or answer.status is Verdict.TIMEOUT:
        return answer
    parts = (("answer", answer.reward), *others)
    reward = sum(getattr(weights, name) * value for name, value in parts)
    if not is_finite(reward):
        return replace(answer, reward=None, status=Verdict.ERROR, reason=f"the weighted sum of {dict(parts)} is {reward}")
    return replace(answer, reward=reward, parts=(*parts, *((f"answer.{name}", value) for name, value in answer.parts)))


def length_part(config: LengthConfig, num_tokens: int) -> float:
    """0 up to `limit - buffer` tokens, from there falling linearly to -1 at `limit` (DAPO, arXiv 2503.14476, equation 13)."""
    return max(-1.0, min(0.0, (config.limit - config.buffer - num_tokens) / config.buffer))


def num_tokens_of(task: dict[str, Any]) -> int:
    """Tokens of the response that is scored; DataError where the task does not tell."""
    found = task.get("num_tokens")
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        rule = "must be the response's number of tokens for rewards.weights.length"
        raise DataError(explain("task.num_tokens", rule, found, "add it, or remove that weight"))
    return found


def format_part(response: str) -> float:
    r"""1.0 where no think block is open and a `\boxed{...}` stands after it, the last one complete; else 0.0."""
    text = after_thinking(response)
    return float(text is not None and _BOX in text and last_boxed(text) is not None)


def pattern_part(task: dict[str, Any], response: str) -> float:
    """1.0 where the whole response matches `task["pattern"]`, in which a dot matches line breaks too; else 0.0.

    A reward function of its own, since a pattern may run forever on some text: asked in a killable process.
    """
    return float(re.fullmatch(task["pattern"], response, re.DOTALL) is not None)
