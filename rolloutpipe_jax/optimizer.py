"""AdamW with clipping, on parameters and moments that lie alike on the devices."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from common.config import TrainingConfig

Params = dict[str, Array]


def adamw(training: TrainingConfig) -> optax.GradientTransformation:
    """AdamW (arXiv 1711.05101) up to the learning rate, which the driver gives with each step."""
    first, second = training.betas
    return optax.chain(
        optax.scale_by_adam(first, second, eps=training.eps, eps_root=0.0),
        optax.add_decayed_weights(training.weight_decay),
    )


def step(
    optimizer: optax.GradientTransformation,
    params: Params,
    moments: Any,
    sums: Params,
    denominator: Array,
    lr: Array,
    max_norm: float | None,
) -> tuple[Params, Any, Array]:
    """Divide the gradient sums by `denominator`, clip to `max_norm`, step. Also returns the norm before clipping.

    A norm that is not finite steps nothing: the caller must look at it.
    """
    gradients = {name: value / denominator for name, value in sums.items()}
    norm = optax.tree.norm(gradients)
    if max_norm is not None:
        clip = jnp.minimum(1.0, max_norm / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_
        gradients = {name: value * clip for name, value in gradients.items()}
    updates, stepped = optimizer.update(gradients, moments, params)
    new = {name: value - lr * updates[name] for name, value in params.items()}
    is_finite = jnp.isfinite(norm)

    def choose(after: Array, before: Array) -> Array:
        return jnp.where(is_finite, after, before)

    return jax.tree.map(choose, new, params), jax.tree.map(choose, stepped, moments), norm
