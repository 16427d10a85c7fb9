"""The rank as a plain object: gradients whatever the chunks, old policies, precision, what steps and what does not."""

from dataclasses import replace
from itertools import chain

import jax
import jax_lab
import numpy as np
import pytest
import torch
from jax_lab import jax_config
from transformers import AutoModelForCausalLM

from common.batching import rows_of
from common.spool import write_safetensors
from rolloutpipe_jax.batch import Rung
from rolloutpipe_jax.rank import TrainerRank
from tests.gradient_lab import chunks, distance, flat, gradient

SIZES = (Rung(1, 128), Rung(1, 256))  # all rows of a test fit into the first
LR = 1e-2
# With all copies of weights that there can be: the round's for old log-probs, and the reference.
CAREFUL = {"importance_cap": 2.0, "keep_round_weights": True, "kl": {"coef": 0.5}}


def make_rank(model, programs=None, **training):
    """A rank at its start; it compiles what it is asked for when it is asked, or takes over the `programs` of another."""
    rank = TrainerRank(jax_config(model, **CAREFUL | training), model, 0, 1)
    rank.join()
    assert rank.fit(SIZES[-1].length) == SIZES[-1]
    rank._programs = programs or rank._programs
    return rank


@pytest.fixture(scope="module")
def rows(make_group):
    return [row for seed in (0, 1) for row in rows_of(make_group(seed))]


@pytest.fixture(scope="module")
def warm(tiny_model):
    """A rank that has compiled all it needs, with its planner."""
    lab = jax_lab.LocalRank(jax_config(tiny_model, **CAREFUL), tiny_model, longest=SIZES[-1].length)
    assert lab.rank._sizes == SIZES
    return lab


@pytest.fixture
def rank(tiny_model, warm):
    """A rank at its start."""
    return make_rank(tiny_model, warm.rank._programs)


def state(rank):
    """All that a step changes, as host arrays."""
    return [np.asarray(leaf).copy() for leaf in jax.tree.leaves((rank._params, rank._moments))]


def same(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


# Gradients


@pytest.mark.parametrize("kind", ["grpo", "gspo"])
def test_gradients_do_not_depend_on_chunks_or_order(tiny_model, warm, rows, kind):
    rank = make_rank(tiny_model, warm.rank._programs if kind == "grpo" else None, loss=kind)
    whole = gradient(rank, chunks(rows, 1))
    for number in (1, 2, 8):
        # 1e-6: float32 sums in another order, a few units in the last place
        assert distance(gradient(rank, chunks(rows, number, seed=number)), whole) < 1e-6
    assert distance(gradient(rank, [[], *chunks(rows, 2), []]), whole) < 1e-6  # empty passes weigh nothing
    assert distance(gradient(rank, chunks(rows, 8)[:-1]), whole) > 1e-3  # a chunk that is dropped is seen


def test_shares_of_several_ranks_add_to_those_of_one(tiny_model, rank, rows):
    whole = gradient(rank, [rows])
    two = make_rank(tiny_model, fsdp=2)
    two.accumulate([[rows[:3], rows[3:4]], [rows[4:], []]])
    assert distance(flat(two.gradients()), whole) < 1e-6


def test_bfloat16_is_near_and_keeps_float32_weights(tiny_model, rank, rows):
    whole = gradient(rank, [rows])
    half = make_rank(tiny_model, dtype="bfloat16", activation_checkpointing=True)
    near = gradient(half, chunks(rows, 2))
    assert 1e-6 < distance(near, whole) < 0.1
    half.accumulate([[rows]])
    assert {leaf.dtype.name for leaf in jax.tree.leaves((half._params, half._gradient_sums))} == {"float32"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(half._moments)} == {"float32", "int32"}  # steps are counted
    start = half.weights()
    half.finish_update(8, 1e-5)
    # Steps far below bfloat16's resolution are not lost.
    moved = [np.abs(after - start[name]).max() for name, after in half.weights().items()]
    assert all(0 < each < 3e-5 for each in moved)


# Log-probs


def expected_logprobs(model_dir, row, temperature):
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
    with torch.no_grad():
        scores = (model(ids).logits[0, len(row.prompt_ids) - 1 : -1] / temperature).log_softmax(-1)
    return scores.gather(-1, torch.tensor(row.response_ids)[:, None])[:, 0].tolist()


def test_logprobs_are_those_of_transformers_at_the_temperature(tiny_model, rank, rows):
    rank.accumulate([[rows]])
    rank.finish_update(8, LR)  # the reference stays where it was
    reference = rank.logprobs([[rows[:3], rows[3:]]], 0.8, "reference")[0]
    policy = rank.logprobs([[rows[:3], rows[3:]]], 0.8)[0]
    assert [len(run) for run in reference] == [3, 5]
    for row, values, moved in zip(rows, chain(*reference), chain(*policy), strict=True):
        assert values == pytest.approx(expected_logprobs(tiny_model, row, 0.8), abs=1e-5)
        assert moved != pytest.approx(values, abs=1e-3)


def test_logprobs_of_the_policy_are_those_of_the_weights_it_exports(tiny_model, rank, rows, tmp_path):
    rank.accumulate([[rows]])
    rank.finish_update(8, LR)
    rank.export_weights(tmp_path / "spool", 1)
    (tmp_path / "config.json").write_text((tiny_model / "config.json").read_text())
    write_safetensors(tmp_path / "spool", tmp_path)
    for row, values in zip(rows, rank.logprobs([[rows]], 0.8)[0][0], strict=True):
        assert values == pytest.approx(expected_logprobs(tmp_path, row, 0.8), abs=1e-5)


def test_old_logprobs_are_those_of_the_kept_weights_after_a_step(rank, rows, monkeypatch):
    olds = []
    accumulate = rank._programs.accumulate

    def watched(params, sums, batch, old, ref, temperature):
        olds.append(None if old is None else np.asarray(old)[np.asarray(batch.mask)])
        return accumulate(params, sums, batch, old, ref, temperature)

    monkeypatch.setattr(rank._programs, "accumulate", watched)

    def score():
        batch = next(rank._batches([[rows]]))
        return np.asarray(rank._programs.score(rank._params, batch, 0.9))[np.asarray(batch.mask)]

    start = score()
    rank.keep_round_weights()
    rank.accumulate([[rows]])
    rank.finish_update(8, LR)
    rank.accumulate([[rows]])
    rank.finish_update(8, LR)
    rank.keep_round_weights()
    rank.accumulate([[rows]])
    assert olds[0] is None and olds[2] is None  # the round's weights are the current ones
    assert np.array_equal(olds[1], start)
    assert np.abs(score() - start).max() > 1e-2


# Steps


def test_adamw_is_that_of_torch(tiny_model, rows):
    """Given the same gradients, with clipping that acts and weight decay, as many steps as bias correction is felt."""
    training = {"weight_decay": 0.1, "max_grad_norm": 0.5, "betas": (0.9, 0.95), "eps": 1e-8}
    rank = make_rank(tiny_model, **training)
    parameters = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in rank.weights().items()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    rng = np.random.default_rng(0)
    start = rank.weights()
    for _ in range(6):
        sums = {name: rng.normal(size=value.shape).astype(np.float32) for name, value in rank._params.items()}
        rank._gradient_sums = jax.device_put(sums, rank._programs.shardings)
        for name, value in rank.gradients().items():
            parameters[name].grad = torch.tensor(value) / 8
        expected_norm = torch.nn.utils.clip_grad_norm_(parameters.values(), 0.5).item()
        optimizer.step()
        norm, _ = rank.finish_update(8, LR)
        assert norm == pytest.approx(expected_norm, rel=1e-6) and norm > 1
        assert not flat(rank.gradients()).any()
    for name, value in rank.weights().items():
        assert distance(value - start[name], parameters[name].detach().numpy() - start[name]) < 1e-5, name


def test_an_update_without_denominator_steps_nothing(rank, rows):
    before = state(rank)
    rank.accumulate([[rows]])
    norm, sums = rank.finish_update(0, LR)
    assert norm == 0.0 and sums["tokens"] == sum(len(row.response_ids) for row in rows)
    assert same(state(rank), before)
    assert not flat(rank.gradients()).any()


def test_an_aborted_update_leaves_nothing_behind(tiny_model, warm, rank, rows):
    other = make_rank(tiny_model, warm.rank._programs)
    other.accumulate([[rows[:5]]])
    other.abort_update()
    for each in (rank, other):
        each.accumulate([[rows]])
    (norm, sums), (other_norm, other_sums) = (each.finish_update(8, LR) for each in (rank, other))
    timed = {"cpu_s": 0, "compilations": 0}
    assert norm == other_norm and {**sums, **timed} == {**other_sums, **timed}
    assert same(state(rank), state(other))


def test_a_gradient_that_is_not_finite_steps_nothing(rank, rows):
    rank.accumulate([[rows]])
    rank.finish_update(8, LR)  # so that the moments are not zero
    before = state(rank)
    bad = [replace(row, advantage=float("inf")) for row in rows[1:]]
    rank.accumulate([[[*rows[:1], *bad]]])
    norm, _ = rank.finish_update(8, LR)
    assert not np.isfinite(norm)
    assert same(state(rank), before)
    assert not flat(rank.gradients()).any()
    rank.accumulate([[rows]])
    assert np.isfinite(rank.finish_update(8, LR)[0])
    assert not same(state(rank), before)


def test_the_same_groups_from_the_same_start_give_the_same_bits(tiny_model, warm, rows):
    states = []
    for _ in range(2):
        rank = make_rank(tiny_model, warm.rank._programs)
        for half in chunks(rows, 2, seed=5):
            rank.accumulate([chunks(half, 2)])
            rank.finish_update(4, LR)
        states.append(state(rank))
    assert same(*states)


# Compilations


def test_after_the_first_update_nothing_is_compiled_for_any_rung(warm, make_group):
    rank, groups = warm.rank, [make_group(seed) for seed in range(8)]
    rank.keep_round_weights()
    warm.accumulate(*groups[:2])
    assert rank.finish_update(8, LR)[1]["compilations"] > 0
    used, pack = set(), rank._batches

    def watched(shares):
        for batch in pack(shares):
            used.add(rank._programs._rung(batch))
            yield batch

    rank._batches = watched
    warm.accumulate(*groups[2:4])
    warm.accumulate(*groups[4:])
    assert rank.finish_update(24, LR)[1]["compilations"] == 0
    assert used == set(SIZES)
    rank.logprobs(warm.shares(rows_of(groups[0])), 0.9)
    rank.logprobs(warm.shares(rows_of(groups[0])), 0.9, "reference")
    rank.finish_update(0, LR)  # without trainable tokens
    rank.abort_update()
    rank.keep_round_weights()
    warm.accumulate(*groups[:2])
    assert rank.finish_update(8, LR)[1]["compilations"] == 0


def test_a_compilation_is_counted(rank):
    rank.finish_update(0, LR)
    assert rank.finish_update(0, LR)[1]["compilations"] == 0
    jax.jit(lambda x: x + 1)(1.0)
    assert rank.finish_update(0, LR)[1]["compilations"] == 1
