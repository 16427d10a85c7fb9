"""The two tables of vocabulary x width on a mesh: the same numbers as on one device, and never whole on any."""

import random
import re
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from common.batching import Row
from common.config import TrainingConfig
from common.grpo import LossRules
from common.model_shape import ModelShape
from rolloutpipe_jax import model as model_module
from rolloutpipe_jax.batch import Rung, to_batch
from rolloutpipe_jax.model import skeleton
from rolloutpipe_jax.optimizer import adamw
from rolloutpipe_jax.parallelize import compute_on, make_mesh
from rolloutpipe_jax.programs import Programs
from tests.jax_lab import NUM_DEVICES

LENGTH, TOKENS, WIDTH = 64, 20, 48  # of a row; of a chunk on each device; of the model
SHARED, UNEVEN = 264, 45  # sizes of a vocabulary: a multiple of the devices, and not


def programs_on(fsdp: int, tp: int, vocab_size: int, is_tied: bool) -> Programs:
    shape = ModelShape(
        family="Qwen3ForCausalLM",
        vocab_size=vocab_size,
        hidden_size=WIDTH,
        intermediate_size=80,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        is_tied=is_tied,
    )
    mesh = make_mesh(fsdp, tp)
    training = TrainingConfig()
    compute = compute_on(mesh, "xla", remat=True)
    return Programs(
        skeleton(shape), mesh, compute, LossRules(), optimizer=adamw(training), dtype="float32", max_norm=training.max_grad_norm
    )


def gradients_on(fsdp: int, tp: int, vocab_size: int, is_tied: bool) -> tuple[dict[str, np.ndarray], str]:
    """Of the same rows whatever the mesh, and the compiled program as text."""
    programs = programs_on(fsdp, tp, vocab_size, is_tied)
    draw = np.random.default_rng(0)
    params = {
        name: jax.device_put(draw.normal(size=leaf.shape).astype(np.float32) * 0.2, leaf.sharding)
        for name, leaf in programs.params().items()
    }
    dice = random.Random(0)
    rows = [[random_row(dice, vocab_size)] for _ in range(NUM_DEVICES)]
    rung = Rung(NUM_DEVICES // fsdp, LENGTH)
    batch, _ = to_batch(rung, [rows[place * rung.rows : (place + 1) * rung.rows] for place in range(fsdp)])
    compiled = programs.lower("accumulate", rung).compile()
    sums, _ = compiled(params, programs.zeros(), programs.put(batch), None, None, jnp.float32(0.9))
    return jax.device_get(sums), compiled.as_text()


def random_row(dice: random.Random, vocab_size: int) -> Row:
    prompt, response = dice.randint(2, 9), dice.randint(20, 50)
    ids = tuple(dice.randrange(vocab_size) for _ in range(prompt + response))
    return Row(
        prompt_ids=ids[:prompt],
        response_ids=ids[prompt:],
        sampler=tuple(-4 - 3 * dice.random() for _ in range(response)),
        advantage=dice.choice((-1.0, 1.0)),
        is_counted=True,
        has_spread=True,
    )


def largest(program: str, vocab_size: int, tp: int) -> int:
    """Numbers of the largest array with an axis of the whole vocabulary, or of what the `tp` axis leaves of it."""
    arrays = [list(map(int, dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)\]", program)]
    return max((prod(dims) for dims in arrays if {vocab_size, vocab_size // tp} & {*dims}), default=0)


@pytest.mark.parametrize(("fsdp", "tp", "vocab_size", "is_tied"), [(4, 2, SHARED, True), (8, 1, UNEVEN, False)], ids=str)
def test_gradients_are_those_of_one_device(fsdp, tp, vocab_size, is_tied, monkeypatch):
    monkeypatch.setattr(model_module, "LOGIT_BYTES", 4 * vocab_size * TOKENS)
    found, program = gradients_on(fsdp, tp, vocab_size, is_tied)
    expected, whole = gradients_on(1, 1, vocab_size, is_tied)
    for name, value in expected.items():
        assert np.linalg.norm(found[name] - value) <= 1e-5 * np.linalg.norm(value), name
    assert np.linalg.norm(expected["embed_tokens"]) > 0.1
    if vocab_size == SHARED:
        assert largest(program, vocab_size, tp) <= vocab_size * WIDTH / NUM_DEVICES
        assert largest(whole, vocab_size, tp) >= vocab_size * WIDTH, "or the line above would hold of anything"
