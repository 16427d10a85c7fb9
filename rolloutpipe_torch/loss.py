"""The losses of `common.grpo` in torch: sums over a micro-batch, and what is measured on the way.

Formulas, sources and denominators stand in `common.grpo`; `tests/unit/torch/test_loss.py` holds the two together. The
denominator does not appear here: it is known to the driver, which divides once when the update ends (rule 4).

Axes: B rows, T longest response. All values outside the mask are 0, so exponents of differences stay finite there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from common.grpo import SEQUENCE_MEAN, LossRules
from rolloutpipe_torch.batch import Batch

Sums = dict[str, Tensor]  # scalars, float64, to be added over micro-batches; `*_max` are maxima


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probs of the response tokens of a batch, [B, T] float32, 0 outside the mask."""

    current: Tensor  # under the weights being trained, with gradient
    old: Tensor | None = None  # the trainer's under the round's weights; None: `current`, which is them before the first step
    ref: Tensor | None = None  # the starting weights'; needed with a KL penalty


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the loss is made of, for the measurements; each [B, T]."""

    trained: Tensor  # bool: where a token has a loss
    ratios: Tensor
    weights: Tensor | None  # truncated importance weights
    penalty: Tensor | None  # KL to the reference, before its coefficient


def loss_sum(batch: Batch, logprobs: TokenLogprobs, rules: LossRules) -> tuple[Tensor, Sums]:
    """The undivided loss (scalar) and sums of measurements. Rows without reward or group spread give exactly 0."""
    old, weights = _old_and_weights(batch, logprobs, rules)
    policy = {"gspo": _gspo, "cispo": _cispo}.get(rules.kind, _clipped)
    losses, ratios = policy(batch, logprobs.current, old, rules)
    if weights is not None:
        losses = weights * losses
    penalty = None
    if rules.kl_kind is not None:
        assert logprobs.ref is not None, "a KL penalty needs the reference's log-probs"
        penalty = _kl(logprobs.current - logprobs.ref, rules.kl_kind)
        losses = losses + rules.kl_coef * penalty
    trained = batch.mask & (batch.is_counted & batch.has_spread)[:, None]
    # where, not a product: it keeps rows of weight zero out even if something in them is not finite.
    by_row = torch.where(trained, losses, 0.0).sum(-1)
    if rules.kind in SEQUENCE_MEAN:
        by_row = by_row / batch.mask.sum(-1)
    total = by_row.sum()
    return total, _measure(batch, logprobs.current, total, _Parts(trained, ratios, weights, penalty), rules)


def _old_and_weights(batch: Batch, logprobs: TokenLogprobs, rules: LossRules) -> tuple[Tensor, Tensor | None]:
    """The old policy's log-probs [B, T], and truncated importance weights [B, T] (GSPO: one value a row, repeated)."""
    if rules.importance_cap is None:
        return batch.sampler, None
    old = logprobs.current.detach() if logprobs.old is None else logprobs.old
    gap = old - batch.sampler
    if rules.kind == "gspo":
        gap = _mean_over_tokens(batch, gap)
    return old, gap.exp().clamp(max=rules.importance_cap)


def _clipped(batch: Batch, current: Tensor, old: Tensor, rules: LossRules) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective at each token: losses [B, T], ratios [B, T]."""
    return _clipped_at(batch, (current - old).exp(), rules)


def _gspo(batch: Batch, current: Tensor, old: Tensor, rules: LossRules) -> tuple[Tensor, Tensor]:
    """The clipped objective with one ratio a row, laid on every token so that their mean is the row's value."""
    return _clipped_at(batch, _mean_over_tokens(batch, current - old).exp(), rules)


def _clipped_at(batch: Batch, ratios: Tensor, rules: LossRules) -> tuple[Tensor, Tensor]:
    advantages = batch.advantages[:, None]
    return -torch.minimum(ratios * advantages, _clip(ratios, rules) * advantages), ratios.detach()


def _cispo(batch: Batch, current: Tensor, old: Tensor, rules: LossRules) -> tuple[Tensor, Tensor]:
    """Log-probs under a clipped, detached weight: losses [B, T], ratios [B, T]."""
    ratios = (current - old).exp().detach()
    return -_clip(ratios, rules) * batch.advantages[:, None] * current, ratios


def _clip(ratios: Tensor, rules: LossRules) -> Tensor:
    return ratios.clamp(1 - rules.clip_low, 1 + rules.clip_high)


def _mean_over_tokens(batch: Batch, values: Tensor) -> Tensor:
    """[B, T], 0 outside the mask -> each row's mean at all of its places, [B, T]."""
    return (values.sum(-1) / batch.mask.sum(-1))[:, None].expand_as(values)


def _kl(d: Tensor, kind: str) -> Tensor:
    """k2 or k3 at each token from d = current - ref."""
    return d.square() / 2 if kind == "k2" else (-d).exp() + d - 1


@torch.no_grad()
def _measure(batch: Batch, current: Tensor, total: Tensor, parts: _Parts, rules: LossRules) -> Sums:
    """Sums over all response tokens (gap), or over those with a loss (the rest)."""
    gap = (current - batch.sampler)[batch.mask & batch.is_real[:, None]]
    ratios = parts.ratios[parts.trained]
    outside = (ratios < 1 - rules.clip_low) | (ratios > 1 + rules.clip_high)
    sums = {
        "loss": total,
        "tokens": torch.tensor(len(gap)),
        "gap_sum": gap.abs().sum(),
        "gap_max": gap.abs().max() if len(gap) else gap.sum(),
        "kl_sampler_sum": _kl(-gap, "k3").sum(),  # KL(sampler || trainer): the tokens are the sampler's own draws
        "trained_tokens": parts.trained.sum(),
        "ratio_sum": ratios.sum(),
        "clipped_sum": outside.sum(),
    }
    if parts.weights is not None and rules.importance_cap is not None:
        weights = parts.weights[parts.trained]
        sums |= {"weight_sum": weights.sum(), "weight_capped_sum": (weights >= rules.importance_cap).sum()}
    if parts.penalty is not None:
        sums["kl_ref_sum"] = parts.penalty[parts.trained].sum()
    return {name: value.detach().double() for name, value in sums.items()}


def add_sums(sums: Sums, more: Sums) -> None:
    """Add `more` into `sums`; maxima stay maxima."""
    for name, value in more.items():
        if name not in sums:
            sums[name] = value
        else:
            sums[name] = torch.maximum(sums[name], value) if name.endswith("_max") else sums[name] + value
