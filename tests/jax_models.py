"""Tiny Hugging Face models of every family that the JAX room builds, and their twins here. Import `jax_lab` first."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jax import Array
from numpy.typing import NDArray

from rolloutpipe_jax.model import Skeleton, skeleton
from rolloutpipe_jax.parallelize import make_mesh
from rolloutpipe_jax.shape import read_shape
from rolloutpipe_jax.weights import load_params
from tests.random_models import random_model

# The models are too small for two threads to help, and on a busy machine they wait for each other a hundred times as long.
torch.set_num_threads(1)

VOCABULARY = 97
ORIGINAL_CONTEXT = 64  # tokens, of the scaled rotary positions: longer rows feel the scaling
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL_CONTEXT,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen2": ("Qwen2", {}),
    "llama": ("Llama", {}),
    "llama-scaled": ("Llama", {"rope_parameters": SCALED, "max_position_embeddings": 512}),
    "llama-bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
}


def make_model(family: str, *, tied: bool, dtype: str = "float32", **sizes: Any) -> Any:
    """A random model: 2 layers of width 64, 4 heads over 2. Biases and norms are random too, so that none can be left out."""
    kind, extra = FAMILIES[family]
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 160,
        "initializer_range": 0.1,
    }
    model = random_model(kind, **settings | extra | sizes, tie_word_embeddings=tied).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.5)
            elif "norm" in name:
                parameter.normal_(1, 0.2)
    return model.to(getattr(torch, dtype))


@dataclass(frozen=True, slots=True)
class Twin:
    """The same model on both sides."""

    hf: Any
    skeleton: Skeleton
    params: dict[str, Array]

    def expected_logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """[L, V] of one sequence alone, from transformers."""
        with torch.no_grad():
            found: NDArray[np.float32] = self.hf(torch.tensor([list(ids)])).logits[0].numpy()
        return found


def make_twin(directory: Path, family: str, *, tied: bool, **sizes: Any) -> Twin:
    """Save a random model in `directory` and load it onto one device."""
    model = make_model(family, tied=tied, **sizes)
    model.save_pretrained(directory)
    bones = skeleton(read_shape(directory))
    return Twin(model, bones, load_params(directory, bones, make_mesh(1, 1)))
