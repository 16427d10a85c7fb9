"""Causal attention within the segments of packed rows, in two forms that give the same numbers.

    xla      plain matrix products; runs anywhere, memory grows with the square of the row length
    splash   JAX's own TPU kernel, block by block; TPU only, or interpreted (slowly) for tests

Axes: B rows, L tokens of a row, H query heads, KV key and value heads (H a multiple of KV), E width of a head.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import (
    BlockSizes,
    CausalMask,
    MultiHeadMask,
    SegmentIds,
    make_splash_mha_single_device,
)
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

Kind = Literal["xla", "splash"]
# [B, L, H, E], [B, L, KV, E] twice, segments [B, L] -> [B, L, H, E]. Segment 0 is padding: its values are never used.
Attention = Callable[[Array, Array, Array, Array], Array]

SPLASH_BLOCK = 512  # tokens; rows must be a multiple of the lane width below
SPLASH_ROW = 128
_MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def make_attention(kind: Kind, mesh: Mesh | AbstractMesh, *, interpret: bool = False) -> Attention:
    """The attention of one model, for rows sharded over `fsdp` and heads over `tp`."""
    return xla_attention if kind == "xla" else _splash(mesh, interpret)


def xla_attention(query: Array, key: Array, value: Array, segments: Array) -> Array:
    """Scores and softmax in float32 whatever the inputs are."""
    rows, length, heads, width = query.shape
    kv_heads = key.shape[2]
    query = query.reshape(rows, length, kv_heads, heads // kv_heads, width)
    scores = jnp.einsum("blkge,bmke->bkglm", query, key, preferred_element_type=jnp.float32) * width**-0.5
    seen = jnp.tril(jnp.ones((length, length), bool)) & (segments[:, :, None] == segments[:, None, :])
    weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, _MASKED), axis=-1)
    result = jnp.einsum("bkglm,bmke->blkge", weights.astype(value.dtype), value)
    return result.reshape(rows, length, heads, width)


def _splash(mesh: Mesh | AbstractMesh, interpret: bool) -> Attention:
    """Each device computes its own rows and heads; no communication is needed."""
    heads = P("fsdp", None, "tp", None)

    def attend(query: Array, key: Array, value: Array, segments: Array) -> Array:
        return _splash_local(query, key, value, segments, interpret)

    return jax.shard_map(attend, mesh=mesh, in_specs=(heads, heads, heads, P("fsdp", None)), out_specs=heads, check_vma=False)


def _splash_local(query: Array, key: Array, value: Array, segments: Array, interpret: bool) -> Array:
    length, heads, width = query.shape[1:]
    block = next(size for size in (SPLASH_BLOCK, 384, 256, SPLASH_ROW) if length % size == 0)
    kernel = make_splash_mha_single_device(
        mask=MultiHeadMask([CausalMask((length, length))] * heads),
        block_sizes=BlockSizes(**_blocks(block)),
        interpret=interpret,
    )

    def one_row(q: Array, k: Array, v: Array, ids: Array) -> Array:
        out = kernel(q.swapaxes(0, 1) * width**-0.5, k.swapaxes(0, 1), v.swapaxes(0, 1), segment_ids=SegmentIds(ids, ids))
        return out.swapaxes(0, 1)

    return jax.vmap(one_row)(query, key, value, segments)


def _blocks(size: int) -> dict[str, Any]:
    """The same size for queries and keys, forward and backward."""
    passes = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    return {f"block_{name}": size for name in passes}
