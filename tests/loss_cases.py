"""Sequences for the losses of both rooms: of every length, one that is not counted, one without a spread of rewards."""

import numpy as np

from common.batching import Row
from common.grpo import ScoredSequence

KINDS = ("grpo", "dr_grpo", "dapo", "gspo", "cispo")
LENGTHS = (1, 7, 4, 12, 3)
ADVANTAGES = (0.8, -1.2, 0.5, 1.5, 0.0)
COUNTED = (True, True, False, True, True)
SPREAD = (True, True, True, True, False)


def cases(dtype: str = "float64") -> tuple[list[Row], list[ScoredSequence]]:
    """Rows, and the same as sequences of the reference; log-probs that `dtype` can hold."""
    rng = np.random.default_rng(0)
    rows, sequences = [], []
    for length, advantage, counted, spread in zip(LENGTHS, ADVANTAGES, COUNTED, SPREAD, strict=True):
        logprobs, sampler, old, ref = rng.normal(-1.5, 0.3, (4, length)).astype(dtype).astype(float)
        rows.append(Row((1, 2), (5,) * length, tuple(sampler), advantage, counted, spread))
        sequences.append(
            ScoredSequence(
                logprobs=logprobs, sampler=sampler, advantage=advantage, is_counted=counted, has_spread=spread, old=old, ref=ref
            )
        )
    return rows, sequences
