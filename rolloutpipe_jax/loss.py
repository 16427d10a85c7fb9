"""The losses of `common.grpo` in JAX: sums over a micro-batch, and what is measured on the way.

Formulas, sources and denominators stand in `common.grpo`; `tests/unit/jax/test_loss.py` holds the two together. The
denominator does not appear here: it is known to the driver, which divides once when the update ends (rule 4).

Axes: R rows, L response tokens of a row, several sequences in each. All values outside the mask are 0, so exponents of
differences stay finite there.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from common.grpo import SEQUENCE_MEAN, LossRules
from rolloutpipe_jax.batch import Batch

Sums = dict[str, Array]  # scalars, float32, to be added over micro-batches; `*_max` are maxima


class TokenLogprobs(NamedTuple):
    """Log-probs of the response tokens of a batch, [R, L] float32, 0 outside the mask."""

    current: Array  # under the weights being trained, with gradient
    old: Array | None = None  # the trainer's under the round's weights; None: `current`, which is them before the first step
    ref: Array | None = None  # the starting weights'; needed with a KL penalty


class _Parts(NamedTuple):
    """What the loss is made of, for the measurements; each [R, L]."""

    ratios: Array
    weights: Array | None  # truncated importance weights
    penalty: Array | None  # KL to the reference, before its coefficient


def loss_sum(batch: Batch, logprobs: TokenLogprobs, rules: LossRules) -> tuple[Array, Sums]:
    """The undivided loss (scalar) and sums of measurements. Sequences without reward or group spread give exactly 0."""
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
    if rules.kind in SEQUENCE_MEAN:
        losses = losses * batch.shares
    total = jnp.where(batch.trained, losses, 0.0).sum()
    return total, _measure(batch, logprobs.current, total, _Parts(ratios, weights, penalty), rules)


def _old_and_weights(batch: Batch, logprobs: TokenLogprobs, rules: LossRules) -> tuple[Array, Array | None]:
    """The old policy's log-probs [R, L], and truncated importance weights [R, L] (GSPO: one value a sequence, repeated)."""
    if rules.importance_cap is None:
        return jnp.asarray(batch.sampler), None
    old = jax.lax.stop_gradient(logprobs.current) if logprobs.old is None else logprobs.old
    gap = old - batch.sampler
    if rules.kind == "gspo":
        gap = _mean_over_tokens(batch, gap)
    return old, jnp.minimum(jnp.exp(gap), rules.importance_cap)


def _clipped(batch: Batch, current: Array, old: Array, rules: LossRules) -> tuple[Array, Array]:
    """PPO's clipped objective at each token: losses [R, L], ratios [R, L]."""
    return _clipped_at(batch, jnp.exp(current - old), rules)


def _gspo(batch: Batch, current: Array, old: Array, rules: LossRules) -> tuple[Array, Array]:
    """The clipped objective with one ratio a sequence, laid on every token so that their mean is the sequence's value."""
    return _clipped_at(batch, jnp.exp(_mean_over_tokens(batch, current - old)), rules)


def _clipped_at(batch: Batch, ratios: Array, rules: LossRules) -> tuple[Array, Array]:
    free, held = ratios * batch.advantages, _clip(ratios, rules) * batch.advantages
    # Where both are equal the free branch's slope counts, as in the reference; `minimum` would mix the two.
    return -jnp.where(free <= held, free, held), jax.lax.stop_gradient(ratios)


def _cispo(batch: Batch, current: Array, old: Array, rules: LossRules) -> tuple[Array, Array]:
    """Log-probs under a clipped, detached weight: losses [R, L], ratios [R, L]."""
    ratios = jax.lax.stop_gradient(jnp.exp(current - old))
    return -_clip(ratios, rules) * batch.advantages * current, ratios


def _clip(ratios: Array, rules: LossRules) -> Array:
    return jnp.clip(ratios, 1 - rules.clip_low, 1 + rules.clip_high)


def _mean_over_tokens(batch: Batch, values: Array) -> Array:
    """[R, L], 0 outside the mask -> each sequence's mean at all of its places, [R, L]."""
    length = values.shape[1]

    def one_row(row: Array, owners: Array) -> Array:
        return jax.ops.segment_sum(row, owners, num_segments=length)[owners]

    # Padding belongs to sequence 0 and adds its zeros there.
    return jax.vmap(one_row)(values, jnp.asarray(batch.owners)) * batch.shares


def _kl(d: Array, kind: str) -> Array:
    """k2 or k3 at each token from d = current - ref."""
    return d * d / 2 if kind == "k2" else jnp.exp(-d) + d - 1


def _measure(batch: Batch, current: Array, total: Array, parts: _Parts, rules: LossRules) -> Sums:
    """Sums over all response tokens (gap), or over those with a loss (the rest)."""
    current, ratios = jax.lax.stop_gradient(current), parts.ratios
    gap = jnp.where(batch.mask, current - batch.sampler, 0.0)
    outside = (ratios < 1 - rules.clip_low) | (ratios > 1 + rules.clip_high)

    def over_trained(values: Array) -> Array:
        return jnp.where(batch.trained, values, 0.0).sum(dtype=jnp.float32)

    sums = {
        "loss": total,
        "tokens": jnp.sum(batch.mask, dtype=jnp.float32),
        "gap_sum": jnp.abs(gap).sum(),
        "gap_max": jnp.abs(gap).max(),
        "kl_sampler_sum": _kl(-gap, "k3").sum(),  # KL(sampler || trainer): the tokens are the sampler's own draws
        "trained_tokens": over_trained(jnp.ones_like(ratios)),
        "ratio_sum": over_trained(ratios),
        "clipped_sum": over_trained(outside),
    }
    if parts.weights is not None and rules.importance_cap is not None:
        sums |= {
            "weight_sum": over_trained(parts.weights),
            "weight_capped_sum": over_trained(parts.weights >= rules.importance_cap),
        }
    if parts.penalty is not None:
        sums["kl_ref_sum"] = over_trained(parts.penalty)
    return jax.lax.stop_gradient(sums)
