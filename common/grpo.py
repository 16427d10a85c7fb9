"""Advantages and losses in NumPy, one sequence after the other: the answer both trainers are held to.

Clear and slow on purpose. A loss is a SUM over sequences together with its denominator; whoever trains adds sums and
denominators over micro-batches, groups and ranks, and divides once when the update ends (rule 4).

| loss | of one sequence, before division | denominator | source |
| --- | --- | --- | --- |
| grpo | mean over its tokens | sequences | DeepSeekMath, arXiv 2402.03300, eq. 3 |
| dr_grpo | sum over its tokens | sequences x max_tokens, a constant of the task | Dr. GRPO, arXiv 2503.20783 |
| dapo | sum over its tokens | tokens | DAPO, arXiv 2503.14476, eq. 8 (clip-higher: clip_high > clip_low) |
| gspo | one value, from the mean log-ratio | sequences | GSPO, arXiv 2507.18071, eq. 5 to 7 |
| cispo | sum over its tokens | tokens | CISPO, arXiv 2506.13585, eq. 4 and 5 |

Three rules for all of them:
- a sequence counts in the denominator when it has a reward and at least one token; where it does not, it adds nothing;
- a group of zero reward spread that is kept (`filter: keep`) counts in the denominators but adds no gradient at all: its
  advantages are exactly 0 and the KL penalty leaves it alone, so no step is made of KL only;
- old policy = the sampler. With `importance_cap`, old policy = the trainer under the round's weights, and the sampler
  enters as a detached weight min(exp(old - sampler), cap) (truncated importance sampling).

Axes: T tokens of one response.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from common.config import Config

FloatArray = NDArray[np.float64]
LossKind = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"]
KlKind = Literal["k1", "k2", "k3"]
StdKind = Literal["group", "batch", "none"]

# Added to the standard deviation. As small as the spread test's tolerance: a group that passes the test keeps
# advantages of order 1 down to a spread of 1e-5.
STD_EPS = 1e-6
SPREAD_TOLERANCE = 1e-6
# Losses whose sequences weigh the same whatever their length; the KL penalty follows the loss.
SEQUENCE_MEAN: frozenset[str] = frozenset({"grpo", "gspo"})


def has_spread(rewards: Iterable[float | None], tolerance: float = SPREAD_TOLERANCE) -> bool:
    """Whether the scored rewards of a whole group differ by more than `tolerance` (largest minus smallest)."""
    scored = [reward for reward in rewards if reward is not None]
    return len(scored) > 1 and max(scored) - min(scored) > tolerance


def reward_std(rewards: Iterable[float | None]) -> float:
    """Population standard deviation of the scored rewards, for `std="batch"`; 0.0 of none."""
    scored = [reward for reward in rewards if reward is not None]
    return float(np.std(scored)) if scored else 0.0


def group_advantages(
    rewards: Sequence[float | None], *, std: StdKind = "group", batch_std: float | None = None
) -> tuple[float, ...]:
    """A_i = (r_i - mean) / (std + STD_EPS) over the scored members of one group, in their order.

    `std`: "group" divides by the population standard deviation of the group (DeepSeekMath, section 4.1.2), "none" does
    not divide (Dr. GRPO), "batch" divides by `batch_std`, the deviation of all rewards of the update's batch.
    A reward of None leaves its member out of the baseline, with advantage 0 (rule 9). A group without spread has
    advantages of exactly 0: dividing noise by noise would make a gradient of rounding errors.
    """
    if not has_spread(rewards):
        return (0.0,) * len(rewards)
    scored = np.array([reward for reward in rewards if reward is not None], np.float64)
    if std == "batch":
        if batch_std is None:
            raise ValueError('group_advantages: std="batch" needs batch_std, the deviation of all rewards of the batch')
        divisor = batch_std + STD_EPS
    else:
        divisor = float(scored.std()) + STD_EPS if std == "group" else 1.0
    mean = scored.mean()
    return tuple(0.0 if reward is None else float((reward - mean) / divisor) for reward in rewards)


def rewards_with_k1(
    rewards: Sequence[float | None],
    sampler_logprobs: Sequence[Sequence[float]],
    ref_logprobs: Sequence[Sequence[float]],
    coef: float,
) -> list[float | None]:
    """r_i - coef * sum_t (sampler - reference): the k1 penalty in the reward (arXiv 2009.01325, section 3.4).

    As a loss k1 would have a mean gradient of zero. Here it is a part of the reward, so the spread test sees it too.
    """
    return [
        None if reward is None else reward - coef * float(np.sum(np.subtract(sampler, ref, dtype=np.float64)))
        for reward, sampler, ref in zip(rewards, sampler_logprobs, ref_logprobs, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRules:
    """What a loss needs to know besides its sequences."""

    kind: LossKind = "grpo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    max_tokens: int = 1  # of a response; Dr. GRPO's constant
    kl_kind: KlKind | None = None  # in the loss: k2 or k3; k1 acts on rewards and is None here
    kl_coef: float = 0.0
    importance_cap: float | None = None

    @classmethod
    def from_config(cls, config: "Config") -> "LossRules":
        """The rules of a run."""
        training = config.training
        in_loss = training.kl if training.kl is not None and training.kl.kind != "k1" else None
        return cls(
            kind=training.loss,
            clip_low=training.clip_low,
            clip_high=training.clip_high,
            max_tokens=config.sampling.max_tokens,
            kl_kind=in_loss.kind if in_loss else None,
            kl_coef=in_loss.coef if in_loss else 0.0,
            importance_cap=training.importance_cap,
        )

    def denominator(self, num_tokens: int) -> int:
        """What one counted sequence of `num_tokens` adds to the denominator; a sequence without tokens adds nothing."""
        if num_tokens == 0:
            return 0
        return {"grpo": 1, "gspo": 1, "dr_grpo": self.max_tokens, "dapo": num_tokens, "cispo": num_tokens}[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSequence:
    """Log-probs of one response's tokens, each of shape [T], and what its group made of it."""

    logprobs: FloatArray  # under the weights being trained
    sampler: FloatArray
    advantage: float
    is_counted: bool = True  # False: no reward
    has_spread: bool = True  # of its group; False: no gradient
    old: FloatArray | None = None  # the trainer's under the round's weights; needed with importance_cap
    ref: FloatArray | None = None  # the starting weights'; needed with a KL penalty


@dataclass(frozen=True, slots=True)
class LossSum:
    """A loss before its one division."""

    total: float
    denominator: int
    gradients: tuple[FloatArray, ...]  # of `total` with respect to `logprobs`: [T] for each sequence


def loss_sum(sequences: Sequence[ScoredSequence], rules: LossRules) -> LossSum:
    """Sum, denominator and gradients over sequences of any groups, in order."""
    total, denominator, gradients = 0.0, 0, []
    for sequence in sequences:
        gradient = np.zeros(len(sequence.logprobs))
        if sequence.is_counted and len(gradient):
            denominator += rules.denominator(len(gradient))
            if sequence.has_spread:
                value, gradient = _sequence_loss(sequence, rules)
                total += value
        gradients.append(gradient)
    return LossSum(total, denominator, tuple(gradients))


def _sequence_loss(sequence: ScoredSequence, rules: LossRules) -> tuple[float, FloatArray]:
    policy = {"gspo": _gspo, "cispo": _cispo}.get(rules.kind, _clipped)
    losses, gradient = policy(sequence, rules)
    if rules.kl_kind is not None:
        assert sequence.ref is not None, "a KL penalty needs the reference's log-probs"
        penalty, slope = kl(sequence.logprobs, sequence.ref, rules.kl_kind)
        losses, gradient = losses + rules.kl_coef * penalty, gradient + rules.kl_coef * slope
    scale = 1 / len(losses) if rules.kind in SEQUENCE_MEAN else 1.0
    return float(losses.sum() * scale), gradient * scale


def _clipped(sequence: ScoredSequence, rules: LossRules) -> tuple[FloatArray, FloatArray]:
    """-w min(p A, clip(p) A) at each token, p = exp(logprobs - old) (PPO, arXiv 1707.06347, eq. 7); losses [T], slopes [T]."""
    old, weight = _old_and_weight(sequence, rules)
    ratio = np.exp(sequence.logprobs - old)
    free, held = ratio * sequence.advantage, _clip(ratio, rules) * sequence.advantage
    # The minimum's slope is the free branch's wherever that is the smaller; the held branch is a constant.
    return -weight * np.minimum(free, held), np.where(free <= held, -weight * free, 0.0)


def _gspo(sequence: ScoredSequence, rules: LossRules) -> tuple[FloatArray, FloatArray]:
    """-w min(s A, clip(s) A), s = exp(mean_t(logprobs - old)), laid on every token so that their mean is the value.

    The weight is one number a sequence too, from the mean log-ratio of old policy and sampler, cut at the cap.
    """
    old, _ = _old_and_weight(sequence, rules)
    weight = 1.0
    if rules.importance_cap is not None:
        weight = min(float(np.exp(np.mean(old - sequence.sampler))), rules.importance_cap)
    ratio = np.exp(np.mean(sequence.logprobs - old))
    free, held = ratio * sequence.advantage, float(_clip(ratio, rules)) * sequence.advantage
    ones = np.ones(len(sequence.logprobs))
    # ds/dlogprobs_t = s / T: the caller's division by T supplies the T.
    return -weight * min(free, held) * ones, (-weight * free if free <= held else 0.0) * ones


def _cispo(sequence: ScoredSequence, rules: LossRules) -> tuple[FloatArray, FloatArray]:
    """-w stop_gradient(clip(p)) A logprobs at each token: clipped tokens still learn, with a bounded weight."""
    old, weight = _old_and_weight(sequence, rules)
    slope = -weight * _clip(np.exp(sequence.logprobs - old), rules) * sequence.advantage
    return slope * sequence.logprobs, slope


def _clip(ratio: FloatArray, rules: LossRules) -> FloatArray:
    clipped: FloatArray = np.clip(ratio, 1 - rules.clip_low, 1 + rules.clip_high)
    return clipped


def _old_and_weight(sequence: ScoredSequence, rules: LossRules) -> tuple[FloatArray, FloatArray]:
    """The old policy's log-probs [T] and the truncated importance weights [T]."""
    if rules.importance_cap is None:
        return sequence.sampler, np.ones(len(sequence.sampler))
    assert sequence.old is not None, "importance_cap needs the trainer's log-probs under the round's weights"
    return sequence.old, truncated_weights(sequence.old, sequence.sampler, rules.importance_cap)


def truncated_weights(old: FloatArray, sampler: FloatArray, cap: float) -> FloatArray:
    """min(exp(old - sampler), cap) at each token [T]: what the sampler over- or under-drew, bounded above."""
    weights: FloatArray = np.minimum(np.exp(old - sampler), cap)
    return weights


def kl(logprobs: FloatArray, ref: FloatArray, kind: KlKind) -> tuple[FloatArray, FloatArray]:
    """Estimates of KL(policy || reference) at each token [T], and their slopes with respect to `logprobs` [T].

    With d = logprobs - ref: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1 (Schulman, "Approximating KL divergence", 2020).
    """
    d = logprobs - ref
    if kind == "k1":
        return d, np.ones_like(d)
    if kind == "k2":
        return d**2 / 2, d
    return np.exp(-d) + d - 1, 1 - np.exp(-d)
