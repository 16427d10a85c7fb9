"""Micro-batches from plan to arrays: whatever the lengths, they fit, nothing is split, lost or doubled, padding has no weight."""

from itertools import pairwise

import jax_lab  # noqa: F401  (CPU, before JAX is used)
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.batching import Row, plan_micro_batches
from common.errors import UsageError
from rolloutpipe_jax.batch import Batch, Rung, cut, ladder, pick, planned_length, to_batch
from rolloutpipe_jax.trainer import planner

MULTIPLES = (32, 128)


def make_row(number, prompt, response):
    """Tokens, log-probs and advantage tell which row they are of; token 0, which also pads, is among them."""
    tokens = [(7 * number + place) % 50 for place in range(prompt + response)]
    sampler = tuple(-1.0 - number - place / 1024 for place in range(response))
    return Row(tuple(tokens[:prompt]), tuple(tokens[prompt:]), sampler, number - 3.5, number % 3 != 0, number % 5 != 0)


@st.composite
def problems(draw):
    """(rows, sizes, ranks): sequences of up to `longest` tokens for a ladder of any budget that a run accepts."""
    longest = draw(st.integers(2, 700))
    multiple = draw(st.sampled_from(MULTIPLES))
    budget = draw(st.integers(longest, 6 * longest))
    sizes = ladder(longest, budget, multiple, draw(st.integers(1, 12)))
    # Many of one length, just above half or a third of a row, fill rows least well.
    usual = min(longest, sizes[-1].length // draw(st.integers(1, 4)) + 1)
    lengths = [usual] * draw(st.integers(0, 12)) + draw(st.lists(st.integers(2, longest), max_size=12))
    cuts = [draw(st.integers(1, length - 1)) for length in lengths]
    rows = [make_row(number, cut, length - cut) for number, (length, cut) in enumerate(zip(lengths, cuts, strict=True))]
    return rows, sizes, draw(st.integers(1, 4))


@given(st.integers(2, 5000), st.integers(1, 8), st.integers(0, 4999), st.sampled_from(MULTIPLES), st.integers(1, 20))
def test_a_ladder_is_short_ascends_and_ends_with_the_budget_or_the_sequences(longest, times, more, multiple, num_sequences):
    budget = longest * times + more
    sizes = ladder(longest, budget, multiple, num_sequences)
    top = sizes[-1]
    assert top.length == -(-longest // multiple) * multiple  # the longest sequence fits
    assert top.num_tokens <= max(budget, top.length)  # one row is always allowed, rounded up as it is
    assert top.rows <= num_sequences
    assert top.num_tokens + top.length > budget or top.rows == num_sequences  # and no row more would fit, or be of use
    tokens = [rung.num_tokens for rung in sizes]
    assert tokens == sorted(set(tokens))
    assert all(rung.length % multiple == 0 for rung in sizes)
    assert all(b <= 2 * a + 2 * multiple for a, b in pairwise(tokens))  # at most about half is padding
    assert len(sizes) <= 4 + 2 * top.rows.bit_length()


def by_step(plan, rows):
    """The runs of all ranks, step by step."""
    return [[[rows[index] for index in run] for run in runs] for runs in zip(*plan, strict=True)]


@given(problems())
def test_every_planned_micro_batch_fits_and_every_sequence_is_in_one(problem):
    rows, sizes, ranks = problem
    plan = planner(sizes[-1], ranks)([row.num_tokens for row in rows])
    assert len(plan) == ranks
    assert sorted(index for steps in plan for run in steps for index in run) == list(range(len(rows)))
    for runs in by_step(plan, rows):
        rung, packed = pick(sizes, runs)
        for run, device in zip(runs, packed, strict=True):
            assert len(device) <= rung.rows
            assert all(0 < sum(row.num_tokens for row in each) <= rung.length for each in device)
            assert sorted(map(id, (row for each in device for row in each))) == sorted(map(id, run))


@given(problems())
def test_runs_cut_into_batches_of_one_size_keep_every_sequence_once(problem):
    rows, sizes, ranks = problem
    one_row = Rung(1, sizes[-1].length)
    for runs in by_step(planner(sizes[-1], ranks)([row.num_tokens for row in rows]), rows):
        batches = cut(one_row, runs)
        assert all(len(packed) == ranks and all(len(device) <= 1 for device in packed) for packed in batches)
        for device, run in enumerate(runs):
            inside = [row for packed in batches for each in packed[device] for row in each]
            assert sorted(map(id, inside)) == sorted(map(id, run))
            for packed in batches:
                to_batch(one_row, packed)  # no row is too long for the arrays


def read_back(batch, spots, rows):
    """Rows as the arrays tell them, found by their spots only."""
    found = []
    for row in rows:
        spot = spots[id(row)]
        there = (spot.row, slice(spot.start, spot.start + spot.num_tokens))
        owner = set(batch.owners[there].tolist())
        assert len(owner) == 1
        here = batch.segments[spot.row] == owner.pop() + 1
        ids = batch.input_ids[spot.row, here].tolist()
        assert batch.positions[spot.row, here].tolist() == list(range(len(ids)))
        assert np.flatnonzero(here).tolist() == list(range(here.argmax(), here.argmax() + len(ids)))  # not split
        assert batch.targets[there].tolist() == ids[-spot.num_tokens :]
        # Each response token is scored at the place of the token before it.
        assert batch.places[there].tolist() == (np.flatnonzero(here)[-spot.num_tokens :] - 1).tolist()
        assert batch.mask[there].all()
        assert batch.shares[there] == pytest.approx(1 / spot.num_tokens)
        (advantage,), (is_trained,) = set(batch.advantages[there].tolist()), set(batch.trained[there].tolist())
        prompt = tuple(ids[: -spot.num_tokens])
        found.append((prompt, tuple(batch.targets[there].tolist()), tuple(batch.sampler[there].tolist()), advantage, is_trained))
    return found


@given(problems())
def test_arrays_read_back_to_the_rows_and_hold_nothing_else(problem):
    rows, sizes, ranks = problem
    for runs in by_step(planner(sizes[-1], ranks)([row.num_tokens for row in rows]), rows):
        rung, packed = pick(sizes, runs)
        batch, spots = to_batch(rung, packed)
        assert all(array.shape == (ranks * rung.rows, rung.length) for array in batch)
        inside = [row for run in runs for row in run]
        assert read_back(batch, spots, inside) == [
            (
                row.prompt_ids,
                row.response_ids,
                tuple(map(float, np.float32(row.sampler))),
                row.advantage,
                row.is_counted and row.has_spread,
            )
            for row in inside
        ]
        for device, run in enumerate(runs):
            assert {spots[id(row)].row // rung.rows for row in run} <= {device}
        check_padding(batch, inside)


def check_padding(batch, inside):
    """As many tokens as the rows have, and zeros elsewhere."""
    assert (batch.segments > 0).sum() == sum(row.num_tokens for row in inside)
    assert batch.mask.sum() == sum(len(row.response_ids) for row in inside)
    for name in ("input_ids", "positions"):
        assert not getattr(batch, name)[batch.segments == 0].any(), name
    for name in ("places", "targets", "owners", "trained", "sampler", "advantages", "shares"):
        assert not getattr(batch, name)[~batch.mask].any(), name
    # The scored places of a row stand at its front: that is why chunks behind them can be skipped.
    assert (batch.mask == (np.arange(batch.mask.shape[1]) < batch.mask.sum(1, keepdims=True))).all()


def test_without_shares_of_packed_rows_a_plan_does_not_fit():
    """What `planned_length` is for: 3 sequences of 40 tokens are 120 padded tokens, but rows of 64 hold one of them each."""
    rows = [make_row(number, 20, 20) for number in range(3)]
    sizes = (Rung(1, 64), Rung(2, 64))
    (plain,) = plan_micro_batches([40] * 3, 128, 1)
    with pytest.raises(AssertionError, match="fits no rung"):
        pick(sizes, [[rows[index] for index in run] for run in plain])
    assert planned_length(40, 64) == 64
    (planned,) = planner(sizes[-1], 1)([40] * 3)
    assert [len(run) for run in planned] == [2, 1]


def test_a_sequence_longer_than_the_trainer_was_compiled_for_is_refused():
    with pytest.raises(UsageError, match=r"at most the 64 tokens that the trainer was compiled for, got 65; raise "):
        planner(Rung(2, 64), 2)([3, 65])


def test_the_smallest_rung_that_holds_all_devices_is_taken():
    sizes = (Rung(1, 32), Rung(1, 64), Rung(2, 64))
    short, long = make_row(1, 10, 6), make_row(2, 20, 30)
    assert pick(sizes, [[short, short], []])[0] == Rung(1, 32)
    assert pick(sizes, [[short], [long]])[0] == Rung(1, 64)
    assert pick(sizes, [[], []]) == (Rung(1, 32), [[], []])
    assert pick(sizes, [[long, long], [short]])[0] == Rung(2, 64)


def test_no_sequences_give_rows_of_weight_zero():
    batch, spots = to_batch(Rung(1, 32), [[], []])
    assert not spots and isinstance(batch, Batch)
    assert not any(array.any() for array in batch) and batch.mask.shape == (2, 32)
