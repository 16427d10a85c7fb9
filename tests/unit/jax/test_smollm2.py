"""A real model, SmolLM2-135M-Instruct, against transformers.

`make smollm2` gets it and runs this; ROLLOUTPIPE_SMOLLM2 names its directory.
"""

import os
from pathlib import Path

import jax
import jax_lab  # noqa: F401  (CPU, before JAX is used)
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from common.spool import model_layout
from rolloutpipe_jax.attention import xla_attention
from rolloutpipe_jax.model import Compute, check_model, skeleton
from rolloutpipe_jax.parallelize import make_mesh
from rolloutpipe_jax.shape import read_shape
from rolloutpipe_jax.weights import load_params

PROMPTS = (
    "What is 12 + 30?",
    "The capital of France is Paris, and the capital of Italy is",
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
    "How many clips did Natalia sell altogether in April and May? Think step by step, then give the number alone.",
)
# Of logits up to 38. The float32 of transformers is itself up to 1.5e-4 from its float64 on these prompts, as this room's is.
LARGEST_GAP = 3e-4


@pytest.mark.slow
def test_logits_of_a_real_model_are_those_of_transformers():
    folder = os.environ.get("ROLLOUTPIPE_SMOLLM2")
    if folder is None:
        pytest.skip("set ROLLOUTPIPE_SMOLLM2 to the directory of SmolLM2-135M-Instruct in float32, or call make smollm2")
    model_dir = Path(folder)
    assert check_model(model_dir, model_layout(model_dir)) == 49_152
    bones = skeleton(read_shape(model_dir))
    params = load_params(model_dir, bones, make_mesh(1, 1))
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    reference = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    sequences = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    sequences.append(
        tokenizer.apply_chat_template([{"role": "user", "content": PROMPTS[0]}], add_generation_prompt=True)["input_ids"]
    )
    # All of them packed into one row.
    ids = np.concatenate(sequences).astype(np.int32)
    positions = np.concatenate([np.arange(len(each)) for each in sequences])
    segments = np.concatenate([np.full(len(each), number) for number, each in enumerate(sequences, start=1)])

    @jax.jit
    def logits(params, *row):
        policy = bones.build(params)
        return policy.logits(policy.hidden(*(array[None] for array in row), Compute(attend=xla_attention)))[0]

    found = np.asarray(logits(params, ids, positions, segments))
    gaps, chosen = [], []
    for number, sequence in enumerate(sequences, start=1):
        with torch.no_grad():
            expected = reference(torch.tensor([sequence])).logits[0].numpy()
        here = found[segments == number]
        assert np.array_equal(here.argmax(-1), expected.argmax(-1))
        gaps.append(np.abs(here - expected))
        chosen.append(np.abs(next_logprobs(here, sequence) - next_logprobs(expected, sequence)))
    gaps, chosen = np.concatenate(gaps), np.concatenate(chosen)
    print(f"{len(ids)} tokens: largest difference of a logit {gaps.max():.2e}, of 99.9 % {np.quantile(gaps, 0.999):.2e}")
    print(f"largest difference of the log-prob of a token of the text {chosen.max():.2e}")
    assert chosen.max() < 1e-4
    assert np.quantile(gaps, 0.999) < 1e-4
    assert gaps.max() < LARGEST_GAP


def next_logprobs(logits, sequence):
    """Of each token of the text but the first."""
    logits = logits.astype(np.float64)
    normaliser = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    return logits[np.arange(len(sequence) - 1), sequence[1:]] - normaliser[:-1]
