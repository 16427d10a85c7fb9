"""The model against transformers, and against itself computed in other ways."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import jax_lab  # noqa: F401  (8 devices, before JAX is used)
import numpy as np
import pytest
from jax_models import ORIGINAL_CONTEXT, VOCABULARY, make_twin

from common.model_shape import BUILT_IN
from rolloutpipe_jax import model as model_module
from rolloutpipe_jax.attention import make_attention, xla_attention
from rolloutpipe_jax.model import Compute, skeleton
from rolloutpipe_jax.parallelize import compute_on, make_mesh
from rolloutpipe_jax.shape import named_shape
from tests.gradient_lab import distance

ROOT = Path(__file__).resolve().parents[3]
PLAIN = Compute(attend=xla_attention)
LENGTH = 160
ROWS = ((160,), (90,), (40, 70, 30))  # tokens of the sequences in each row: full, padded, packed


def packed_rows(rng):
    """(ids, positions, segments), each [3, 160], as ROWS says; padding is filled with tokens that must not matter."""
    ids = rng.integers(0, VOCABULARY, (len(ROWS), LENGTH)).astype(np.int32)
    positions, segments = np.zeros_like(ids), np.zeros_like(ids)
    for row, lengths in enumerate(ROWS):
        starts = np.cumsum([0, *lengths])
        for segment, (start, end) in enumerate(pairwise(starts), start=1):
            positions[row, start:end] = np.arange(end - start)
            segments[row, start:end] = segment
    return ids, positions, segments


def logits(skeleton, compute, params, ids, positions, segments):
    policy = skeleton.build(params)
    return policy.logits(policy.hidden(ids, positions, segments, compute))


def largest_gap(twin, compute=PLAIN):
    """Largest |logit here - logit of each sequence alone in transformers|, and the spread of the logits."""
    ids, positions, segments = packed_rows(np.random.default_rng(0))
    found = np.asarray(jax.jit(partial(logits, twin.skeleton, compute))(twin.params, ids, positions, segments))
    gaps, spread = [], []
    for row, lengths in enumerate(ROWS):
        for segment in range(1, len(lengths) + 1):
            places = segments[row] == segment
            expected = twin.expected_logits(ids[row, places])
            gaps.append(np.abs(found[row, places] - expected).max())
            spread.append(expected.std())
    return max(gaps), min(spread)


CASES = [
    *((family, tied) for family in ("qwen3", "qwen2", "llama") for tied in (True, False)),
    ("llama-scaled", False),
    ("llama-bias", True),
]


@pytest.mark.parametrize(("family", "tied"), CASES)
def test_logits_are_those_of_transformers_padded_and_packed(tmp_path, family, tied):
    gap, spread = largest_gap(make_twin(tmp_path, family, tied=tied))
    assert gap < 1e-5
    assert spread > 0.3  # of logits so alike that any model would pass


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("llama-scaled", {"rope_scaling": None}),
        ("llama", {"rms_norm_eps": 1e-4}),
    ],
)
def test_the_check_feels_each_setting(tmp_path, family, change):
    """Rows are long enough, and weights large enough, that a setting left out shows."""
    twin = make_twin(tmp_path, family, tied=True)
    assert LENGTH > 2 * ORIGINAL_CONTEXT
    other = skeleton(replace(named_shape(str(tmp_path)), **change))
    assert largest_gap(replace(twin, skeleton=other))[0] > 1e-4


def test_remat_changes_no_gradient_and_saves_memory(tmp_path):
    twin = make_twin(tmp_path, "qwen3", tied=True, num_hidden_layers=4)
    rows = [array[2:] for array in packed_rows(np.random.default_rng(1))]

    def loss(compute, params):
        return jax.nn.log_softmax(logits(twin.skeleton, compute, params, *rows))[..., 5].mean()

    programs = [
        jax.jit(jax.grad(partial(loss, compute_on(make_mesh(1, 1), "xla", remat=remat)))).lower(twin.params).compile()
        for remat in (False, True)
    ]
    kept, again = (program(twin.params) for program in programs)
    for name, gradient in kept.items():
        assert distance(again[name], gradient) < 3e-6, name  # fused otherwise, so rounded otherwise
    memory = [program.memory_analysis().temp_size_in_bytes for program in programs]
    assert memory[1] < 0.75 * memory[0]


# Chunked log-probs: a vocabulary of 1024 tokens over rows of 96 scored places, of which 5, 60 and 33 are real.

SCORED, HEAD, WIDTH = 96, 1024, 16
REAL = (5, 60, 33)


@pytest.fixture(scope="module")
def scoring(tmp_path_factory):
    """(skeleton, params, hidden, places, targets, mask)."""
    twin = make_twin(
        tmp_path_factory.mktemp("scoring"), "llama", tied=False, vocab_size=HEAD, hidden_size=WIDTH, num_hidden_layers=1
    )
    rng = np.random.default_rng(2)
    hidden = rng.normal(size=(len(REAL), LENGTH, WIDTH)).astype(np.float32)
    mask = np.arange(SCORED) < np.array(REAL)[:, None]
    places = np.where(mask, rng.integers(1, LENGTH, (len(REAL), SCORED)), 0).astype(np.int32)
    targets = rng.integers(0, HEAD, (len(REAL), SCORED)).astype(np.int32)
    return twin.skeleton, twin.params, hidden, places, targets, mask


def scores(scoring, compute=PLAIN):
    """Compiled: (params, hidden) -> ((weighted sum, (log-probs, entropies)), gradients of both)."""
    skeleton, params, hidden, places, targets, mask = scoring
    weights = np.random.default_rng(3).normal(size=mask.shape).astype(np.float32)

    def total(params, hidden):
        found = skeleton.build(params).score(hidden, places, targets, mask, jnp.float32(0.8), compute)
        return (found[0] * weights).sum(), found

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True)).lower(params, hidden).compile()


@pytest.fixture(scope="module")
def whole_scores(scoring):
    """In one chunk."""
    return scores(scoring)


def in_chunks_of(monkeypatch, tokens, rows=3):
    monkeypatch.setattr(model_module, "LOGIT_BYTES", 4 * HEAD * rows * tokens)


def test_log_probs_and_entropies_are_those_of_a_plain_softmax(scoring, whole_scores):
    _, params, hidden, places, targets, mask = scoring
    (_, (logprobs, entropies)), _ = whole_scores(params, hidden)
    picked = np.take_along_axis(hidden, places[..., None], axis=1).astype(np.float64)
    table = picked @ np.asarray(params["lm_head"], np.float64).T / 0.8
    table -= np.log(np.exp(table).sum(-1, keepdims=True))
    expected = np.where(mask, np.take_along_axis(table, targets[..., None], axis=-1)[..., 0], 0.0)
    assert np.asarray(logprobs) == pytest.approx(expected, abs=1e-5)
    assert np.asarray(entropies) == pytest.approx(np.where(mask, -(np.exp(table) * table).sum(-1), 0.0), abs=1e-5)
    assert expected.std() > 0.3


@pytest.mark.parametrize("tokens", [1, 7, 32])
def test_log_probs_in_chunks_are_the_same_and_so_are_gradients(scoring, whole_scores, monkeypatch, tokens):
    _, params, hidden, *_ = scoring
    (_, whole), whole_gradients = whole_scores(params, hidden)
    in_chunks_of(monkeypatch, tokens)
    (_, parts), gradients = scores(scoring)(params, hidden)
    for found, expected in zip(parts, whole, strict=True):
        assert np.asarray(found) == pytest.approx(np.asarray(expected), rel=1e-6, abs=1e-6)
    for found, expected in ((gradients[1], whole_gradients[1]), (gradients[0]["lm_head"], whole_gradients[0]["lm_head"])):
        assert distance(found, expected) < 1e-6


def test_a_chunk_that_no_row_needs_is_not_computed(scoring, monkeypatch):
    """Places outside the mask point at token 0; where they are computed, its NaN reaches the head's gradient."""
    skeleton, params, hidden, *rest = scoring
    poisoned = hidden[1:2].copy()
    poisoned[:, 0] = np.nan
    row = (skeleton, params, poisoned, *(array[1:2] for array in rest))  # of 60 scored places out of 96
    for tokens, is_finite in ((96, False), (10, True), (7, False)):  # 60 is no multiple of 7
        in_chunks_of(monkeypatch, tokens, rows=1)
        _, gradients = scores(row)(params, poisoned)
        assert np.isfinite(gradients[0]["lm_head"]).all() == is_finite


def test_logits_of_all_tokens_never_exist_where_log_probs_are_chunked(scoring, whole_scores, monkeypatch):
    all_logits = 4 * HEAD * SCORED * len(REAL)
    assert whole_scores.memory_analysis().temp_size_in_bytes > all_logits
    in_chunks_of(monkeypatch, 8)
    # Backward holds a few chunks' arrays (logits, their gradient, the softmax) and the head's gradient.
    chunk = 4 * HEAD * 8 * len(REAL)
    assert scores(scoring).memory_analysis().temp_size_in_bytes < 4 * chunk + 3 * 4 * HEAD * WIDTH < all_logits


# Attention

HEADS, KV_HEADS, HEAD_DIM, ROW = 4, 2, 32, 256


@pytest.fixture(scope="module")
def attention_inputs():
    rng = np.random.default_rng(4)
    query, out = (rng.normal(size=(2, ROW, HEADS, HEAD_DIM)).astype(np.float32) for _ in range(2))
    key, value = (rng.normal(size=(2, ROW, KV_HEADS, HEAD_DIM)).astype(np.float32) for _ in range(2))
    segments = np.zeros((2, ROW), np.int32)
    segments[0, :100], segments[0, 100:130], segments[0, 130:250] = 1, 2, 3
    segments[1, :200] = 1
    return (query, key, value), segments, out * (segments > 0)[..., None, None]


def attended(attend, inputs):
    """Values on real tokens, and gradients of query, key and value."""
    (query, key, value), segments, out = inputs

    def total(query, key, value):
        found = attend(query, key, value, segments)
        return (found * out).sum(), found

    (_, found), gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))(query, key, value)
    return [np.asarray(found) * (segments > 0)[..., None, None], *map(np.asarray, gradients)]


@pytest.fixture(scope="module")
def plain_attention(attention_inputs):
    return attended(xla_attention, attention_inputs)


def test_plain_attention_is_that_of_each_segment_alone(attention_inputs, plain_attention):
    (query, key, value), segments, _ = attention_inputs
    for row in range(2):
        for segment in range(1, segments[row].max() + 1):
            places = segments[row] == segment
            for head in range(HEADS):
                group = head // (HEADS // KV_HEADS)
                table = query[row, places, head].astype(np.float64) @ key[row, places, group].T / np.sqrt(HEAD_DIM)
                weights = np.exp(np.where(np.tril(np.ones_like(table)), table, -np.inf))
                expected = weights / weights.sum(-1, keepdims=True) @ value[row, places, group]
                assert plain_attention[0][row, places, head] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("mesh", [(1, 1), (2, 2)])
def test_splash_attention_gives_the_same_values_and_gradients(attention_inputs, plain_attention, mesh):
    splash = make_attention("splash", make_mesh(*mesh), interpret=True)
    for found, expected in zip(attended(splash, attention_inputs), plain_attention, strict=True):
        assert distance(found, expected) < 1e-5


def test_a_model_with_splash_attention_has_the_logits_of_transformers(tmp_path):
    twin = make_twin(tmp_path, "qwen3", tied=True)
    ids, positions, segments = (np.pad(array, ((0, 0), (0, 96))) for array in packed_rows(np.random.default_rng(0)))
    compute = compute_on(make_mesh(1, 1), "splash", remat=True, interpret=True)
    found = jax.jit(partial(logits, twin.skeleton, compute))(twin.params, ids, positions, segments)
    assert np.abs(found[0, :160] - twin.expected_logits(ids[0, :160])).max() < 1e-5


# What the driver asks of a model

CHECK = """
import sys
from pathlib import Path
from common.spool import model_layout
from jax._src import xla_bridge
from rolloutpipe_jax.model import check_model
directory = Path(sys.argv[1])
print(check_model(directory, model_layout(directory)), xla_bridge.backends_are_initialized())
"""


def test_checking_a_model_leaves_the_devices_alone(tiny_model):
    """On a TPU host the driver must not take the chips from the trainer's process."""
    done = subprocess.run([sys.executable, "-c", CHECK, str(tiny_model)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["45", "False"]


def test_built_in_shapes_have_the_sizes_that_their_names_say():
    """Parameters as the models' own cards count them, within 2 %."""
    billions = {
        "qwen3-0.6b": 0.6,
        "qwen3-1.7b": 1.72,
        "qwen3-4b": 4.02,
        "qwen3-8b": 8.19,
        "qwen3-14b": 14.77,
        "qwen3-32b": 32.76,
        "llama3-8b": 8.03,
    }
    for name, shape in BUILT_IN.items():
        assert shape.num_params / 1e9 == pytest.approx(billions[name], rel=0.02), name
        count = sum(np.prod(size) for size in model_module.skeleton(shape).shapes.values())
        assert count == shape.num_params
