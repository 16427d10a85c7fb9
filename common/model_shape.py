"""Sizes of the decoders that are known here: built in by name, or as a Hugging Face config.json has them.

Three families differ in two places only, biases and the norm of queries and keys; all else is sizes.
"""

from dataclasses import dataclass
from typing import Any

from common.errors import DataError, explain

FAMILIES = ("Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM")
_COPY = "copy the model's config.json again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Rope:
    """Frequencies stretched for long contexts (Llama 3.1, Hugging Face `rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder."""

    family: str  # one of FAMILIES
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    is_tied: bool  # the head is the embedding
    rope_theta: float = 10_000.0
    rope_scaling: Llama3Rope | None = None
    rms_norm_eps: float = 1e-6
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_mlp_bias: bool = False

    @property
    def has_qk_norm(self) -> bool:
        """Queries and keys are normed before they are turned (Qwen3)."""
        return self.family == "Qwen3ForCausalLM"

    @property
    def layer_params(self) -> int:
        """Of one layer."""
        heads, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (2 * heads + 2 * kv)
        attention += self.has_qkv_bias * (heads + 2 * kv) + self.has_o_bias * self.hidden_size
        attention += self.has_qk_norm * 2 * self.head_dim
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += self.has_mlp_bias * (2 * self.intermediate_size + self.hidden_size)
        return attention + mlp + 2 * self.hidden_size

    @property
    def table_params(self) -> int:
        """Of a table of vocabulary x width: the embedding, and the head where it is not tied."""
        return self.vocab_size * self.hidden_size

    @property
    def num_params(self) -> int:
        """Of the whole model; a tied head counts once."""
        return self.num_layers * self.layer_params + self.hidden_size + (2 - self.is_tied) * self.table_params


def shape_of(family: str, data: dict[str, Any], theta: float = 10_000.0, scaling: Llama3Rope | None = None) -> ModelShape:
    """The shape of a model of `family` from what its config.json holds. Raises DataError for sizes that cannot be, and
    KeyError, TypeError and ValueError for those that are missing or no numbers.
    """
    heads = int(data["num_attention_heads"])
    bias = bool(data.get("attention_bias", False))
    shape = ModelShape(
        family=family,
        vocab_size=int(data["vocab_size"]),
        hidden_size=int(data["hidden_size"]),
        intermediate_size=int(data["intermediate_size"]),
        num_layers=int(data["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(data.get("num_key_value_heads") or heads),
        head_dim=int(data.get("head_dim") or int(data["hidden_size"]) // heads),
        is_tied=bool(data.get("tie_word_embeddings", False)),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_norm_eps=float(data.get("rms_norm_eps", 1e-6)),
        has_qkv_bias=family == "Qwen2ForCausalLM" or bias,
        has_o_bias=family != "Qwen2ForCausalLM" and bias,
        has_mlp_bias=family == "LlamaForCausalLM" and bool(data.get("mlp_bias", False)),
    )
    _check_sizes(shape)
    return shape


def _check_sizes(shape: ModelShape) -> None:
    """What no kernel's shape shows: that heads can be shared and halved."""
    sizes = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
    }
    for key, value in sizes.items():
        if value < 1:
            raise DataError(explain("model.path", f"{key} of config.json must be 1 or more", value, _COPY))
    if shape.num_heads < 1 or shape.num_heads % shape.num_kv_heads:
        rule = f"num_attention_heads of config.json must be a multiple of its {shape.num_kv_heads} key and value heads"
        raise DataError(explain("model.path", rule, shape.num_heads, _COPY))
    if shape.head_dim < 2 or shape.head_dim % 2:
        raise DataError(explain("model.path", "head_dim of config.json must be even", shape.head_dim, _COPY))


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int, *, is_tied: bool) -> ModelShape:
    return ModelShape(
        family="Qwen3ForCausalLM",
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        is_tied=is_tied,
        rope_theta=1e6,
    )


# Sizes as the models' own config.json have them.
BUILT_IN: dict[str, ModelShape] = {
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, is_tied=True),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, is_tied=True),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, is_tied=True),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32, is_tied=False),
    "qwen3-14b": _qwen3(5120, 17408, 40, 40, is_tied=False),
    "qwen3-32b": _qwen3(5120, 25600, 64, 64, is_tied=False),
    "llama3-8b": ModelShape(
        family="LlamaForCausalLM",
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        is_tied=False,
        rope_theta=500_000.0,
        rms_norm_eps=1e-5,
    ),
}
