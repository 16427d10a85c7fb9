"""Both trainers on the same groups from the same weights: gradients of every loss, then parameters after 10 steps of AdamW.

The loss reads nothing of the model but log-probs, so every loss runs on one model, and the others run one each. The bounds
are for float32 on the CPU, where two correct programs differ by rounding alone.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax_lab  # noqa: F401 (gives this process its virtual devices, before JAX is used)
import optax
import pytest

from common.commands.parity import LATER, LOSS_TOLERANCE
from common.config import Config
from common.parity import Comparison, Side, Update, both, compare, cut, difference, longest_sequence
from common.records import Group
from tests.random_models import random_model

UPDATES = 10
MAX_NORM = 0.5
GRADIENTS, PARAMS = 1e-5, 5e-5
KL: dict[str, Any] = {"kl": {"coef": 0.1, "kind": "k3"}}
CAP: dict[str, Any] = {"importance_cap": 1.5, "keep_round_weights": True}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"loss": "grpo"}),
    ("qwen3", {"loss": "dr_grpo"}),
    ("qwen3", {"loss": "dapo", "clip_high": 0.28}),
    ("qwen3", {"loss": "gspo"}),
    ("qwen3", {"loss": "cispo", "ranks": 2}),
    ("qwen3", {"loss": "grpo", **KL, **CAP}),
    ("qwen3", {"loss": "gspo", **CAP, "ranks": 4, "tensor_parallel": 2}),
    ("qwen2", {"loss": "dapo", **KL}),
    ("llama", {"loss": "grpo", **CAP}),
]


@pytest.fixture(scope="module")
def models(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {"qwen3": tiny_model, "qwen2": _save(root / "qwen2", "Qwen2"), "llama": _save(root / "llama", "Llama")}


def _save(directory: Path, family: str) -> Path:
    """Two layers, an untied head, and biases where the family has them; a bias of zero would hide where it goes."""
    import torch

    model = random_model(
        family,
        seed=1,
        vocab_size=45,
        hidden_size=32,
        intermediate_size=64,
        tie_word_embeddings=False,
        initializer_range=0.3,
        pad_token_id=7,  # the groups hold it, so it is trained as any other (rule 8)
    )
    with torch.no_grad():
        for name, param in model.named_parameters():
            if name.endswith(".bias"):
                param.normal_(0.0, 0.3)
    model.save_pretrained(directory)
    return directory


def config_of(model: Path, training: dict[str, Any]) -> Config:
    settings = {"lr": 2e-4, "weight_decay": 0.1, "max_grad_norm": MAX_NORM, "micro_batch_tokens": 32, **training}
    return Config(
        trainer="jax",
        model={"path": str(model)},
        training=settings,
        sampling={"max_tokens": 12, "temperature": 0.9},
        groups_per_round=4,
        groups_per_update=2,
        rounds=5,
    )


@pytest.fixture(scope="module")
def updates(make_group: Callable[..., Group]) -> tuple[Update, ...]:
    """5 rounds of 4 groups, 2 an update; log-probs are not the sampler's yet."""
    groups = [make_group(seed) for seed in range(2 * UPDATES)]
    return tuple(cut((groups[start : start + 4] for start in range(0, len(groups), 4)), 2))


async def _as_sampled(side: Side, updates: tuple[Update, ...]) -> list[Update]:
    """With log-probs near the model's own, so that ratios lie on both sides of the clip."""
    rng = random.Random(0)

    async def with_logprobs(group: Group) -> Group:
        samples = [(sample.request.prompt_ids, sample.response.token_ids) for sample in group.samples]
        found = await side.trainer.logprobs(samples, 0.9)
        return replace(
            group,
            samples=tuple(
                replace(sample, response=replace(sample.response, logprobs=tuple(value + rng.gauss(0, 0.2) for value in values)))
                for sample, values in zip(group.samples, found, strict=True)
            ),
        )

    return [replace(update, groups=tuple([await with_logprobs(group) for group in update.groups])) for update in updates]


def run(model: Path, training: dict[str, Any], updates: tuple[Update, ...]) -> tuple[list[Comparison], float]:
    """What was found, and how far training has moved the weights."""

    async def main() -> tuple[list[Comparison], float]:
        with both(config_of(model, training), model, longest_sequence(updates)) as (torch_side, jax_side):
            start = torch_side.rank.weights()
            rows = [row async for row in compare(torch_side, jax_side, await _as_sampled(torch_side, updates))]
            return rows, difference(start, torch_side.rank.weights()).rel_l2

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("family", "training"), VARIANTS, ids=[f"{name}-{'-'.join(map(str, s))}-{s['loss']}" for name, s in VARIANTS]
)
def test_trainers_stay_together_for_ten_updates(
    models: dict[str, Path], updates: tuple[Update, ...], family: str, training: dict[str, Any]
) -> None:
    rows, moved = run(models[family], training, updates)
    assert len(rows) == UPDATES and moved > 20 * PARAMS, "nothing was trained"
    assert all(row.grad_norms[0] > MAX_NORM for row in rows), "nothing was clipped"
    assert rows[0].gradients.rel_l2 <= GRADIENTS, rows[0].gradients
    for row in rows:
        assert row.gradients.rel_l2 <= LATER * GRADIENTS, row
        assert row.params.rel_l2 <= PARAMS, row
        assert row.loss_gap <= LOSS_TOLERANCE, row


def _without_bias_correction(training: Any) -> optax.GradientTransformation:
    def update(gradients: Any, moments: Any, params: Any) -> Any:
        found, moments = adam.update(gradients, moments, params)
        count, first, second = moments.count, *training.betas
        scale = (1 - first**count) / (1 - second**count) ** 0.5
        return {name: value * scale for name, value in found.items()}, moments

    adam = optax.scale_by_adam(*training.betas, eps=training.eps)
    return optax.GradientTransformation(adam.init, update)


def test_adam_without_bias_correction_is_found(
    models: dict[str, Path], updates: tuple[Update, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutpipe_jax.rank.adamw", _without_bias_correction)
    rows, _ = run(models["qwen3"], {"loss": "grpo", "weight_decay": 0.0}, updates[:1])
    assert rows[0].gradients.rel_l2 <= GRADIENTS and rows[0].params.rel_l2 > PARAMS


def test_a_temperature_that_is_ignored_is_found(
    models: dict[str, Path], updates: tuple[Update, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rolloutpipe_jax.programs import Programs

    accumulate = Programs.accumulate
    monkeypatch.setattr(Programs, "accumulate", lambda self, *args: accumulate(self, *args[:-1], 1.0))
    rows, _ = run(models["qwen3"], {"loss": "grpo"}, updates[:1])
    assert rows[0].gradients.rel_l2 > 100 * GRADIENTS
