"""A complete group becomes trainable, filtered or failed: advantages are fixed here (paper, section "materialization")."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from common.errors import StaleGroupError, explain
from common.grpo import StdKind, group_advantages, has_spread
from common.protocols import Problem, Score
from common.records import Group, Reason, Request, Response, Sample, Times, Verdict


def task_of(problem: Problem, response: Response) -> dict[str, Any]:
    """What the verifier is handed: the problem's task, and how long its response is and why it ended."""
    return {**problem.task, "num_tokens": len(response.token_ids), "finish_reason": response.finish_reason.value}


def make_sample(request: Request, response: Response, score: Score, text: str, times: Times) -> Sample:
    """A scored member. A reward that is no finite number is a verifier's failure: it would poison the whole baseline (rule 9)."""
    if score.reward is not None and not math.isfinite(score.reward):
        score = replace(score, reward=None, status=Verdict.ERROR, reason=f"the reward is {score.reward}")
    return Sample(
        request=request,
        response=replace(response, times=times),
        reward=score.reward,
        status=score.status,
        text=text,
        reason=score.reason,
        extracted=score.extracted,
        parts=score.parts,
    )


def materialize(group_id: str, order: int, version: int, samples: Sequence[Sample], *, std: StdKind, keep_flat: bool) -> Group:
    """Advantages of the scored members; members without a reward get 0 and stay out of the baseline (rule 9).

    `filtered` is FAILED with fewer than two scored members, FILTERED for zero reward spread unless `keep_flat`.
    Raises StaleGroupError unless every response carries `version`, at its start and at its end: whatever was let through
    before, nothing else is ever trained (rule 1).
    """
    _check_versions(version, samples)
    rewards = [sample.reward for sample in samples]
    scored = [reward for reward in rewards if reward is not None]
    filtered = None
    if len(scored) < 2:
        filtered = Reason.FAILED
    elif not keep_flat and not has_spread(scored):
        filtered = Reason.FILTERED
    return Group(
        group_id=group_id,
        order=order,
        weight_version=version,
        samples=tuple(
            replace(sample, advantage=value) for sample, value in zip(samples, group_advantages(rewards, std=std), strict=True)
        ),
        filtered=filtered,
    )


def _check_versions(version: int, samples: Sequence[Sample]) -> None:
    for sample in samples:
        found = (sample.response.version_start, sample.response.version_end)
        if found != (version, version):
            rule = f"must be the round's version {version} at start and end (request {sample.request.request_id})"
            raise StaleGroupError(explain("weight_version", rule, found, "sample the request again"))


def is_broken(response: Response) -> bool:
    """A response without one finite log-prob per token comes from a broken engine and cannot be trained."""
    if len(response.logprobs) != len(response.token_ids):
        return True
    try:
        return not all(map(math.isfinite, response.logprobs))
    except TypeError:  # what comes over the wire may hold None for a missing one, whatever the type says
        return True


def reward_stats(samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    """Mean and population standard deviation of the rewards; None without any."""
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    if not rewards:
        return None, None
    mean = sum(rewards) / len(rewards)
    return mean, (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5


def scale_to_batch(groups: Sequence[Group]) -> list[Group]:
    """`advantage_std: batch`: advantages that were (reward - group mean) are divided by the std over the whole batch."""
    _, std = reward_stats([sample for group in groups for sample in group.samples])
    if std is None:
        return list(groups)
    scale = 1 / (std + 1e-6)
    return [
        replace(group, samples=tuple(replace(sample, advantage=sample.advantage * scale) for sample in group.samples))
        for group in groups
    ]
