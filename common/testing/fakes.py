"""What the fakes share, and the smallest of them.

The shared "model" is one number w, the weight. A token's log-prob is a function of w and the token (`fake_logprob`), so an
engine that serves other weights than the trainer's is found by the same probe that finds a real one.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from common.protocols import Problem, Score
from common.records import Verdict
from common.spool import TensorLayout

FAKE_LAYOUT = {"w": TensorLayout((1,), "float32")}
VOCAB_SIZE = 64


def fake_logprob(weight: float, token: int) -> float:
    """Log-prob of a token under the one-number model."""
    return -0.5 - ((token * 0.37 + weight) % 1.0)


def make_problems(num_problems: int, prompt_length: int = 4) -> list[Problem]:
    """Problems whose prompts differ."""
    return [
        Problem(
            problem_id=f"p{i}",
            prompt=f"prompt {i}",
            prompt_ids=tuple(range(i, i + prompt_length)),
            task={"workload": "fake", "gold": i},
        )
        for i in range(num_problems)
    ]


class FakeVerifier:
    """Rewards by the response's text, after `seconds` of the loop's time. `verdicts` fixes some by (gold, call number)."""

    def __init__(self, *, seconds: float = 0.1, reward: Callable[[dict[str, Any], str], float | None] | None = None) -> None:
        self._seconds = seconds
        self._reward = reward or (lambda task, text: float(hash_of(text) % 2))
        self.calls: Counter[int] = Counter()
        self.is_closed = False

    async def score(self, task: dict[str, Any], response: str) -> Score:
        self.calls[task["gold"]] += 1
        await asyncio.sleep(self._seconds)
        reward = self._reward(task, response)
        if reward is None:
            return Score(reward=None, status=Verdict.ERROR, reason="planted failure")
        return Score(reward=reward, status=Verdict.OK if reward >= 1 else Verdict.WRONG)

    async def close(self) -> None:
        self.is_closed = True


def hash_of(text: str) -> int:
    """The same on every run, unlike `hash`."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
