"""What a trainer rank needs on its device, in parts, before there is one. No torch is imported.

It is counted from what `model`, `parallelize`, `optimizer` and transformers' layers keep and make; tests hold it to tensors that
live while a model trains on the CPU. Attention is a kernel that keeps no scores. The peak is the largest of three moments of
the last backward pass of an update, when the gradient sums are there too:

    head    all kept activations, and the logits of one chunk
    layer   all kept activations, and the parts of one layer (recomputed with `activation_checkpointing`)
    root    the gradients of embedding and head on their way to their ranks

Bytes; D width, I inner width, H and G of all query and of all key heads, V vocabulary, T padded tokens of a micro-batch.
"""

from common.config import Config
from common.model_shape import ModelShape

# float32 logits held at one time. A vocabulary of 151 936 then goes in chunks of 441 tokens.
LOGIT_BYTES = 256 * 2**20
# On a GPU: CUDA's context, the communicators' buffers, what the allocator cannot use. An assumption, not measured by us.
RESERVE_BYTES = 1_500_000_000
_FLOAT32 = 4
_WIDTH = {"bfloat16": 2, "float32": 4}
_CHUNK_COPIES = 5  # of a chunk's logits at the worst moment of its backward pass
_PREFETCHED = 2  # layers whose weights are gathered ahead or not yet freed while one computes


def device_parts(config: Config, shape: ModelShape, num_tokens: int) -> dict[str, int]:
    """Bytes by name on one rank's device at the peak of an update with micro-batches of `num_tokens` padded tokens."""
    training = config.training
    share = -(-shape.num_params // training.ranks) * _FLOAT32
    has_kept = training.importance_cap is not None and training.keep_round_weights and config.updates_per_round > 1
    kept = kept_bytes(config, shape, num_tokens)
    working = max(_head_bytes(config, shape, num_tokens), _layer_bytes(config, shape, num_tokens))
    root = _root_bytes(config, shape)
    is_kept_at_peak = kept + working > root
    return {
        "parameters": share,
        "gradients": share,
        "moments": 2 * share,
        "reference": share if training.kl is not None else 0,
        "kept_weights": share if has_kept else 0,
        "activations": kept if is_kept_at_peak else 0,
        "working": working if is_kept_at_peak else root,
    }


def kept_bytes(config: Config, shape: ModelShape, num_tokens: int) -> int:
    """Activations that a forward pass leaves for the backward pass."""
    width, hidden = _WIDTH[config.training.dtype], shape.hidden_size
    between = width * hidden  # the input of a layer
    a_layer = between if config.training.activation_checkpointing else layer_activations(shape, width)
    last = (_FLOAT32 + 2 * width) * hidden  # the last norm, and its output at the response tokens
    return num_tokens * (shape.num_layers * a_layer + last + 2 * width * shape.head_dim)


def layer_activations(shape: ModelShape, width: int) -> int:
    """Bytes a token that one layer keeps for its own backward pass, computing in `width` bytes an element."""
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    norms = 2 * shape.hidden_size * (_FLOAT32 + 2 * width)  # input in float32, normed, output
    head_norms = shape.has_qk_norm * (queries + keys) * (_FLOAT32 + width)
    attention = width * (2 * queries + 2 * keys) + _FLOAT32 * shape.num_heads  # queries, output, keys, values, normalisers
    mlp = 4 * width * shape.intermediate_size  # gate, its activation, up, product
    return norms + head_norms + attention + mlp


def _is_sharded(config: Config) -> bool:
    """As in `parallelize`: one rank in float32 is left whole, so nothing is gathered."""
    return config.training.ranks > 1 or config.training.dtype != "float32"


def _gathered(config: Config, num_params: int) -> int:
    return _is_sharded(config) * _WIDTH[config.training.dtype] * num_params


def _root_params(shape: ModelShape) -> int:
    """What no layer holds; it stays gathered from forward to backward."""
    return shape.num_params - shape.num_layers * shape.layer_params


def _head_bytes(config: Config, shape: ModelShape, num_tokens: int) -> int:
    """Of one chunk of logits, forward and backward."""
    width = _WIDTH[config.training.dtype]
    chunk = min(num_tokens, max(1, LOGIT_BYTES // (_FLOAT32 * shape.vocab_size))) * _FLOAT32 * shape.vocab_size
    own, table = _gathered(config, _root_params(shape)), width * shape.table_params
    # Each chunk's gradient of the head is added to the sum of those before it: for a moment there are three.
    return own + table + max(_CHUNK_COPIES * chunk, 2 * table) + _gathered(config, shape.layer_params)


def _layer_bytes(config: Config, shape: ModelShape, num_tokens: int) -> int:
    """Of one layer's backward pass."""
    width = _WIDTH[config.training.dtype]
    recomputed = layer_activations(shape, width) if config.training.activation_checkpointing else 0
    gradients = 2 * width * shape.intermediate_size  # of gate and up
    # Weights of this layer and of those ahead, their gradients, and the float32 copy on its way to the ranks.
    layer = _is_sharded(config) * ((2 + _PREFETCHED) * width + _FLOAT32) * shape.layer_params
    own = _gathered(config, _root_params(shape)) + _gathered(config, shape.table_params)
    return own + layer + num_tokens * (recomputed + gradients)


def _root_bytes(config: Config, shape: ModelShape) -> int:
    """Gradients of embedding and head, their float32 copy, and this rank's share of the sum."""
    root, width, ranks = _root_params(shape), _WIDTH[config.training.dtype], config.training.ranks
    own = _gathered(config, root) if ranks == 1 else 0  # a single rank does not free what it has gathered
    return own + _is_sharded(config) * ((width + _FLOAT32) * root + -(-_FLOAT32 * root // ranks))
