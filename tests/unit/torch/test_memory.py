"""The memory model against tensors: a small model trains here, and what it holds is counted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from live_tensors import LiveTensors

from common.batching import Row
from common.config import Config
from common.model_shape import ModelShape, shape_of
from rolloutpipe_torch import memory
from rolloutpipe_torch.memory import device_parts, kept_bytes, layer_activations
from rolloutpipe_torch.rank import TrainerRank
from tests.random_models import random_model

PROMPT, RESPONSE = 64, 192
TOKENS = PROMPT + RESPONSE
SIZES = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "tie_word_embeddings": True,
}
TOLERANCE = 0.12  # of the peak


def save(directory: Path, kind: str = "Qwen3", **changes: Any) -> ModelShape:
    """A random model; its shape."""
    random_model(kind, **SIZES | changes).save_pretrained(directory)
    return shape_of(f"{kind}ForCausalLM", SIZES | changes)


def config_of(model: Path, **training: Any) -> Config:
    training = {"micro_batch_tokens": TOKENS, "lr": 1e-3, **training}
    return Config(model={"path": str(model)}, training=training, sampling={"max_tokens": RESPONSE})


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Makes a model and one rank of it."""
    ranks: list[TrainerRank] = []

    def make(kind: str = "Qwen3", sizes: dict[str, Any] | None = None, **training: Any) -> tuple[TrainerRank, Config, ModelShape]:
        shape = save(tmp_path, kind, **(sizes or {}))
        config = config_of(tmp_path, **training)
        rank = TrainerRank(config, tmp_path, 0, 1)
        rank.join(rank.listen())
        ranks.append(rank)
        return rank, config, shape

    yield make
    for rank in ranks:
        rank.close()


def row(num_rows: int = 1) -> list[list[list[Row]]]:
    one = Row((1,) * PROMPT, (2,) * RESPONSE, (-3.0,) * RESPONSE, 1.0, True, True)
    return [[[one] * num_rows]]


def forward(rank: TrainerRank) -> torch.Tensor:
    ids = torch.zeros(1, TOKENS, dtype=torch.long)
    logprobs, _ = rank._policy(ids, torch.arange(PROMPT - 1, TOKENS - 1), torch.zeros(RESPONSE, dtype=torch.long), 1.0)
    return logprobs.sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("sizes", [{}, {"tie_word_embeddings": False}, {"num_hidden_layers": 2, "vocab_size": 101}])
def test_parameters_gradients_and_moments_are_counted_to_the_byte(start, sizes) -> None:
    rank, config, shape = start(sizes=sizes)
    parts = device_parts(config, shape, TOKENS)
    rank.accumulate(row())
    weights = list(rank._optimizer.params.values())
    moments = [rank._optimizer.moment(name, kind) for name in rank._optimizer.shards for kind in ("exp_avg", "exp_avg_sq")]
    assert parts["parameters"] == sum(param.nbytes for param in weights)
    assert parts["gradients"] == sum(param.grad.nbytes for param in weights)
    assert parts["moments"] == sum(moment.nbytes for moment in moments)


@pytest.mark.parametrize("kind", ["Qwen3", "Llama"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kept_activations_are_those_that_autograd_saves(start, monkeypatch, dtype, kind) -> None:
    """Within 3 %: what is small (positions, masks of a norm's length) is not modelled."""
    monkeypatch.setattr("rolloutpipe_torch.model.LOGIT_BYTES", 4 * 4096 * 16)  # so that the head's chunks keep nothing
    rank, config, shape = start(kind, dtype=dtype)
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if TOKENS in tensor.shape or RESPONSE in tensor.shape:  # all else is a weight
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = forward(rank)
    assert sum(saved.values()) == pytest.approx(kept_bytes(config, shape, TOKENS), rel=0.03)
    loss.backward()


CASES = [
    ("float32", False, {}),
    ("float32", True, {}),
    ("bfloat16", False, {}),
    ("bfloat16", True, {}),
    ("bfloat16", True, {"tie_word_embeddings": False}),
    ("float32", False, {"vocab_size": 64}),
    ("bfloat16", True, {"vocab_size": 64}),
]


@pytest.mark.parametrize(("dtype", "remat", "sizes"), CASES)
def test_the_peak_of_an_update_is_the_models(start, monkeypatch, dtype, remat, sizes) -> None:
    """Of the second micro-batch, when gradient sums are there. The model may be above what a CPU holds, as it counts what a GPU
    gathers ahead; not below by more than a few percent.
    """
    for module in ("model", "memory"):
        monkeypatch.setattr(f"rolloutpipe_torch.{module}.LOGIT_BYTES", 4 * 4096 * 32)
    monkeypatch.setattr(memory, "_PREFETCHED", 0)
    rank, config, shape = start(sizes=sizes, dtype=dtype, activation_checkpointing=remat)
    parts = device_parts(config, shape, TOKENS)
    with LiveTensors() as live:
        for shard in rank._optimizer.shards.values():
            live.add(shard.data)
        rank.accumulate(row())
        before = live.now
        live.peak = before
        rank.accumulate(row())
        assert before == pytest.approx(parts["parameters"] + parts["gradients"], rel=0.05)
    expected = parts["parameters"] + parts["gradients"] + parts["activations"] + parts["working"]
    assert -0.04 <= expected / live.peak - 1 <= TOLERANCE, f"{live.peak:,} live, {expected:,} planned"


def test_a_layer_keeps_as_much_as_its_tensors_by_hand() -> None:
    """Llama has no norms of heads; 4 bytes: two norms of (input, normed, output), q, out, k, v, normalisers, four of the MLP."""
    shape = shape_of("LlamaForCausalLM", SIZES)
    assert layer_activations(shape, 4) == 4 * (2 * 3 * 128 + 2 * 128 + 2 * 64 + 8 + 4 * 384)
