"""How everything lies on the devices: the one place for the rules, outside the model.

The mesh has two axes. `fsdp` shares rows of the batch, and an equal part of each weight, gathered when it is used. `tp`
shares heads and the inner width of the MLP; between layers it shares the tokens of a row (arXiv 2205.05198, section 4.2.2).
Moments and gradient sums lie as their weights do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rolloutpipe_jax.attention import Kind, make_attention
from rolloutpipe_jax.model import Compute

FSDP, TP = "fsdp", "tp"
# By the part of a parameter's name that says what it does; None is the axis of stacked layers. Norms lie whole everywhere.
_COLUMNS = {"weight": (None, TP, FSDP), "bias": (None, TP)}
_ROWS = {"weight": (None, FSDP, TP), "bias": (None, None)}
_RULES: dict[str, dict[str, tuple[str | None, ...]]] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), _COLUMNS),
    **dict.fromkeys(("o_proj", "down_proj"), _ROWS),
}
_TABLES = {"embed_tokens": (TP, FSDP), "lm_head": (TP, FSDP)}
BATCH = P(FSDP)  # rows of a batch, whatever axes follow


def make_mesh(fsdp: int, tp: int, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh over the first `fsdp * tp` devices, or over those given, in their order."""
    chosen = np.array(jax.devices()[: fsdp * tp] if devices is None else devices).reshape(fsdp, tp)
    return Mesh(chosen, (FSDP, TP), axis_types=(AxisType.Auto, AxisType.Auto))


def param_sharding(name: str, shape: Sequence[int], mesh: Mesh) -> NamedSharding:
    """Where the parameter `name` lies. An axis that does not divide its dimension is left out there."""
    *_, owner, leaf = ["", *name.split(".")]
    rule = _TABLES.get(name) or _RULES.get(owner, {}).get(leaf, ())
    fitting = [axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(rule, shape, strict=False)]
    return NamedSharding(mesh, P(*fitting))


def param_shardings(shapes: Mapping[str, Sequence[int]], mesh: Mesh) -> dict[str, NamedSharding]:
    """Of all parameters."""
    return {name: param_sharding(name, shape, mesh) for name, shape in shapes.items()}


def compute_on(mesh: Mesh, attention: Kind, *, remat: bool, interpret: bool = False) -> Compute:
    """How a model is computed on `mesh`.

    The two tables of vocabulary x width are the largest weights, and neither they nor their gradients are ever whole on a
    device. Looking up takes every token's share of the width from all devices; scoring gives each device a share of the
    vocabulary, and every device the hidden states of one chunk of tokens.
    """
    attend = make_attention(attention, mesh, interpret=interpret)
    if mesh.size == 1:
        return Compute(attend, remat=remat)
    tp = mesh.shape[TP]

    def lay(x: Array, *axes: Any) -> Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))

    def constrain(x: Array) -> Array:
        return lay(x, FSDP, TP if x.shape[1] % tp == 0 else None, None)

    def look_up(table: Array, ids: Array) -> Array:
        vocabulary, width = param_sharding("embed_tokens", table.shape, mesh).spec
        return lay(lay(table, vocabulary, width)[lay(ids, None, None)], None, None, width)

    def share_head(head: Array) -> Array:
        return lay(head, (TP, FSDP), None)

    def share_scored(x: Array) -> Array:
        return lay(x, None, None, None)

    def share_logits(logits: Array) -> Array:
        return lay(logits, None, None, (TP, FSDP))

    return Compute(attend, constrain, look_up, share_head, share_scored, share_logits, remat=remat, shards=mesh.size)
