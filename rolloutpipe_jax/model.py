"""The policy: a decoder of the Qwen3, Qwen2 or Llama family in Flax NNX, asked for the log-probs of given tokens.

The weights of all layers are stacked on a leading axis and the layers are scanned, so the program is as small for 64 layers
as for 2. Attributes are named as the Hugging Face weights (docs/decisions/0005-jax-trainer.md); `weights.py` maps them.

dtypes, set here once: weights are stored in float32 (the master copy) and cast by the caller; norms, softmax, logits and
log-probs are float32 whatever the model computes in.

Axes: B rows, L tokens of a row, M scored places of a row, V vocabulary, D width, N layers, H heads, E width of a head.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from common.model_shape import Llama3Rope, ModelShape
from common.spool import TensorLayout
from rolloutpipe_jax.attention import Attention
from rolloutpipe_jax.layout import check_layout
from rolloutpipe_jax.shape import read_shape

# What scoring may hold on one device at one time: float32 logits, or hidden states where these are gathered. A vocabulary of
# 151 936 then goes in chunks of 441 tokens a device.
LOGIT_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Compute:
    """How a model is computed, as opposed to what it computes."""

    attend: Attention
    constrain: Callable[[Array], Array] = lambda x: x  # says how hidden states [B, L, D] lie on the devices
    look_up: Callable[[Array, Array], Array] = lambda table, ids: table[ids]  # [V, D], [B, L] -> [B, L, D]
    share_head: Callable[[Array], Array] = lambda head: head  # lays out the head [V, D] for scoring, once a batch
    share_scored: Callable[[Array], Array] = lambda x: x  # lays out the hidden states [B, M, D] of one chunk for scoring
    share_logits: Callable[[Array], Array] = lambda logits: logits  # lays out the logits [B, M, V] of one chunk
    remat: bool = False  # compute a layer again in the backward pass instead of keeping its activations
    shards: int = 1  # devices that share the logits of a batch


class Linear(nnx.Module):
    """x @ weight [out, in] transposed + bias [out]; `stack` is a leading axis, (N,) for layers.

    The Hugging Face layout, and the faster one: of it the gradient comes out without a transposition.
    """

    def __init__(self, size_in: int, size_out: int, *, stack: tuple[int, ...] = (), has_bias: bool = False) -> None:
        self.weight = nnx.Param(jnp.zeros((*stack, size_out, size_in)))
        if has_bias:
            self.bias = nnx.Param(jnp.zeros((*stack, size_out)))

    def __call__(self, x: Array) -> Array:
        y = jnp.einsum("...i,oi->...o", x, self.weight[...])
        return y + self.bias[...] if hasattr(self, "bias") else y


class RMSNorm(nnx.Module):
    """Root-mean-square norm over the last axis, in float32 (arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float, *, stack: tuple[int, ...] = ()) -> None:
        self.weight = nnx.Param(jnp.ones((*stack, size)))
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return self.weight[...] * normed.astype(x.dtype)


class SelfAttention(nnx.Module):
    """Grouped-query attention (arXiv 2305.13245) with rotary positions (arXiv 2104.09864)."""

    def __init__(self, shape: ModelShape, *, stack: tuple[int, ...]) -> None:
        heads, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = Linear(shape.hidden_size, heads, stack=stack, has_bias=shape.has_qkv_bias)
        self.k_proj = Linear(shape.hidden_size, kv, stack=stack, has_bias=shape.has_qkv_bias)
        self.v_proj = Linear(shape.hidden_size, kv, stack=stack, has_bias=shape.has_qkv_bias)
        self.o_proj = Linear(heads, shape.hidden_size, stack=stack, has_bias=shape.has_o_bias)
        if shape.has_qk_norm:
            self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps, stack=stack)
            self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps, stack=stack)
        self.head_dim = shape.head_dim

    def __call__(self, x: Array, turns: tuple[Array, Array], segments: Array, attend: Attention) -> Array:
        query, key, value = (self._heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if hasattr(self, "q_norm"):
            query, key = self.q_norm(query), self.k_norm(key)
        out = attend(_turn(query, turns), _turn(key, turns), value, segments)
        return self.o_proj(out.reshape(*x.shape[:2], -1))

    def _heads(self, x: Array) -> Array:
        return x.reshape(*x.shape[:2], -1, self.head_dim)


class MLP(nnx.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, shape: ModelShape, *, stack: tuple[int, ...]) -> None:
        hidden, inner, bias = shape.hidden_size, shape.intermediate_size, shape.has_mlp_bias
        self.gate_proj = Linear(hidden, inner, stack=stack, has_bias=bias)
        self.up_proj = Linear(hidden, inner, stack=stack, has_bias=bias)
        self.down_proj = Linear(inner, hidden, stack=stack, has_bias=bias)

    def __call__(self, x: Array) -> Array:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nnx.Module):
    """One decoder layer, or with `stack=(N,)` the weights of N."""

    def __init__(self, shape: ModelShape, *, stack: tuple[int, ...] = ()) -> None:
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, stack=stack)
        self.self_attn = SelfAttention(shape, stack=stack)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, stack=stack)
        self.mlp = MLP(shape, stack=stack)

    def __call__(self, x: Array, turns: tuple[Array, Array], segments: Array, attend: Attention) -> Array:
        x = x + self.self_attn(self.input_layernorm(x), turns, segments, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Policy(nnx.Module):
    """The decoder. Made with zeros: weights always come from files (`weights.load_params`)."""

    def __init__(self, shape: ModelShape) -> None:
        self.embed_tokens = nnx.Param(jnp.zeros((shape.vocab_size, shape.hidden_size)))
        self.layers = Layer(shape, stack=(shape.num_layers,))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        if not shape.is_tied:
            self.lm_head = nnx.Param(jnp.zeros((shape.vocab_size, shape.hidden_size)))
        self.shape = shape

    def hidden(self, input_ids: Array, positions: Array, segments: Array, compute: Compute) -> Array:
        """[B, L] ids, positions within their segment, segments (0: padding) -> normed hidden states [B, L, D]."""
        turns = _turns(self.shape, positions)
        graph, stacked = nnx.split(self.layers)

        def layer(x: Array, weights: nnx.State) -> tuple[Array, None]:
            return compute.constrain(nnx.merge(graph, weights)(x, turns, segments, compute.attend)), None

        # What is kept of a layer for its backward pass: nothing, or the products with weights. The rest is cheap to compute
        # and dear to store. prevent_cse is for unrolled loops; within a scan it only costs time.
        policies = jax.checkpoint_policies
        kept = policies.nothing_saveable if compute.remat else policies.dots_with_no_batch_dims_saveable
        body = jax.checkpoint(layer, prevent_cse=False, policy=kept)
        x, _ = jax.lax.scan(body, compute.constrain(compute.look_up(self.embed_tokens[...], input_ids)), stacked)
        return self.norm(x)

    def head(self) -> Array:
        """[V, D], the embedding itself where the head is tied."""
        return self.embed_tokens[...] if self.shape.is_tied else self.lm_head[...]

    def logits(self, hidden: Array) -> Array:
        """[..., D] -> [..., V] in float32."""
        return jnp.einsum("...d,vd->...v", hidden, self.head(), preferred_element_type=jnp.float32)

    def score(
        self, hidden: Array, places: Array, targets: Array, mask: Array, temperature: Array, compute: Compute
    ) -> tuple[Array, Array]:
        """Log-probs [B, M] of `targets` [B, M] and entropies [B, M] (no gradient), 0 where `mask` [B, M] is not set.

        `places` [B, M] say which of a row's L hidden states stands before each target. Rows have their scored places
        first, so a chunk that no row needs is skipped. Logits exist for one chunk at a time, in the backward pass too.
        """
        hidden = jnp.take_along_axis(hidden, places[..., None], axis=1)
        rows, width = targets.shape
        chunks, step = _chunks(hidden.shape, self.shape.vocab_size, compute.shards)
        head = compute.share_head(self.head())

        def chunk(parts: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            x, target, seen = parts
            nothing = jnp.zeros(seen.shape), jnp.zeros(seen.shape)
            return jax.lax.cond(seen.any(), lambda: score(x, target, seen), lambda: nothing)

        def score(x: Array, target: Array, seen: Array) -> tuple[Array, Array]:
            logits = jnp.einsum("bmd,vd->bmv", compute.share_scored(x), head, preferred_element_type=jnp.float32)
            return _score(compute.share_logits(logits) / temperature, target, seen)

        if chunks == 1:
            return score(hidden, targets, mask)
        parts = [_split(array, chunks, step) for array in (hidden, targets, mask)]
        found = jax.lax.map(jax.checkpoint(chunk), tuple(parts))
        return tuple(array.swapaxes(0, 1).reshape(rows, -1)[:, :width] for array in found)


def _chunks(scored: tuple[int, ...], vocab_size: int, shards: int) -> tuple[int, int]:
    """Number and width of the chunks that hidden states of shape [B, M, D] are scored in."""
    rows, width, size = scored
    of_logits, of_hidden = 4 * vocab_size * rows // shards, 4 * size * rows
    chunks = -(-width // max(1, LOGIT_BYTES // max(of_logits, of_hidden, 1)))
    return chunks, -(-width // chunks)


def _split(array: Array, chunks: int, step: int) -> Array:
    """[B, M, ...] -> [chunks, B, step, ...], padded with zeros."""
    padding = [(0, 0), (0, chunks * step - array.shape[1]), *[(0, 0)] * (array.ndim - 2)]
    return jnp.pad(array, padding).reshape(array.shape[0], chunks, step, *array.shape[2:]).swapaxes(0, 1)


def _score(logits: Array, targets: Array, mask: Array) -> tuple[Array, Array]:
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    fixed, base = jax.lax.stop_gradient((logits, normaliser))
    entropies = base - (jnp.exp(fixed - base[..., None]) * fixed).sum(-1)
    return jnp.where(mask, chosen - normaliser, 0.0), jnp.where(mask, entropies, 0.0)


def _turns(shape: ModelShape, positions: Array) -> tuple[Array, Array]:
    """Cosines and sines [B, L, 1, E] of the angles at `positions` [B, L]."""
    powers = jnp.arange(0, shape.head_dim, 2, dtype=jnp.float32) / shape.head_dim
    frequencies = 1.0 / (shape.rope_theta**powers)
    if shape.rope_scaling is not None:
        frequencies = _llama3(frequencies, shape.rope_scaling)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    angles = jnp.concatenate([angles, angles], axis=-1)[:, :, None]
    return jnp.cos(angles), jnp.sin(angles)


def _llama3(frequencies: Array, rope: Llama3Rope) -> Array:
    """Long waves are slowed down by `factor`, short ones kept, those between mixed."""
    lengths = 2 * jnp.pi / frequencies
    kept = (rope.original_context / lengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = jnp.clip(kept, 0.0, 1.0)
    return (1 - kept) * frequencies / rope.factor + kept * frequencies


def _turn(x: Array, turns: tuple[Array, Array]) -> Array:
    """Rotate the two halves of each head (the half-split form) in float32."""
    cos, sin = turns
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return (x * cos + jnp.concatenate([-second, first], axis=-1) * sin).astype(x.dtype)


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The model without weights. Parameters go by flat names, such as `layers.self_attn.q_proj.weight`."""

    graph: nnx.GraphDef[Policy]
    tree: Any  # how nnx arranges the parameters
    shapes: dict[str, tuple[int, ...]]  # by name, in the order of the tree

    def build(self, params: Mapping[str, Array]) -> Policy:
        """The model with these weights; costs nothing, also while it is traced."""
        policy: Policy = nnx.merge(self.graph, jax.tree.unflatten(self.tree, [params[name] for name in self.shapes]))
        return policy


def skeleton(shape: ModelShape) -> Skeleton:
    """Of a model of this shape; allocates nothing."""
    with nnx.use_eager_sharding(False):
        graph, state = nnx.split(nnx.eval_shape(lambda: Policy(shape)))
    names = [".".join(map(str, path)) for path, _ in nnx.to_flat_state(state)]
    leaves, tree = jax.tree.flatten(state)
    return Skeleton(graph, tree, {name: leaf.shape for name, leaf in zip(names, leaves, strict=True)})


def check_model(model_dir: Path, layout: Mapping[str, TensorLayout]) -> int:
    """The size of the vocabulary. Raises DataError where this room cannot build the model, or where config.json and the
    weights do not belong together. Reads no weights and touches no device: the driver, which asks, must not take them.
    """
    shape = read_shape(model_dir)
    check_layout(skeleton(shape).shapes, layout, model_dir)
    return shape.vocab_size
