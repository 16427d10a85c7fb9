"""A complete group becomes trainable, filtered or failed: advantages are fixed here (paper, section "materialization")."""

import math
from collections.abc import Sequence
from dataclasses import replace

from common.grpo import StdKind, group_advantages, has_spread
from common.records import Group, Reason, Response, Sample


def materialize(group_id: str, order: int, version: int, samples: Sequence[Sample], *, std: StdKind, keep_flat: bool) -> Group:
    """Advantages of the scored members; members without a reward get 0 and stay out of the baseline (rule 9).

    `filtered` is FAILED with fewer than two scored members, FILTERED for zero reward spread unless `keep_flat`.
    """
    rewards = [sample.reward for sample in samples]
    scored = [reward for reward in rewards if reward is not None]
    filtered = None
    if len(scored) < 2:
        filtered = Reason.FAILED
    elif not keep_flat and not has_spread(scored):
        filtered = Reason.FILTERED
    advantages = [0.0] * len(samples) if len(scored) < 2 else [float(value) for value in group_advantages(rewards, std=std)]
    return Group(
        group_id=group_id,
        order=order,
        weight_version=version,
        samples=tuple(replace(sample, advantage=value) for sample, value in zip(samples, advantages, strict=True)),
        filtered=filtered,
    )


def is_broken(response: Response) -> bool:
    """A response without one finite log-prob per token comes from a broken engine and cannot be trained."""
    return len(response.logprobs) != len(response.token_ids) or not all(map(math.isfinite, response.logprobs))


def scale_to_batch(groups: Sequence[Group]) -> list[Group]:
    """`advantage_std: batch`: advantages that were (reward - group mean) are divided by the std over the whole batch."""
    rewards = [sample.reward for group in groups for sample in group.samples if sample.reward is not None]
    if not rewards:
        return list(groups)
    mean = sum(rewards) / len(rewards)
    std = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
    return [
        replace(group, samples=tuple(replace(sample, advantage=sample.advantage / (std + 1e-6)) for sample in group.samples))
        for group in groups
    ]
