"""Torch losses against `common.grpo`: value and autograd gradient, for every loss, penalty and weight."""

import numpy as np
import pytest
import torch

from common.batching import Row
from common.grpo import LossRules, truncated_weights
from common.grpo import loss_sum as reference_loss
from rolloutpipe_torch.batch import to_batch
from rolloutpipe_torch.loss import TokenLogprobs, add_sums, loss_sum
from tests.loss_cases import KINDS, LENGTHS, cases

CPU = torch.device("cpu")


def flat(sequences, name):
    return torch.tensor(np.concatenate([getattr(sequence, name) for sequence in sequences]), dtype=torch.float64)


def run(rows, sequences, rules):
    """(loss, flat gradient, sums) in float64, so that what is left is a difference of formulas, not of rounding."""
    batch = to_batch(rows, CPU)
    values = flat(sequences, "logprobs").requires_grad_()
    object.__setattr__(batch, "sampler", batch.padded(flat(sequences, "sampler")))
    object.__setattr__(batch, "advantages", batch.advantages.double())
    logprobs = TokenLogprobs(batch.padded(values), batch.padded(flat(sequences, "old")), batch.padded(flat(sequences, "ref")))
    total, sums = loss_sum(batch, logprobs, rules)
    total.backward()
    return total.item(), values.grad.numpy(), {name: value.item() for name, value in sums.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kl_kind", [None, "k2", "k3"])
@pytest.mark.parametrize("cap", [None, 1.1])
def test_value_and_gradient_match_the_reference(kind, kl_kind, cap):
    rules = LossRules(kind=kind, clip_high=0.28, max_tokens=20, kl_kind=kl_kind, kl_coef=0.2, importance_cap=cap)
    rows, sequences = cases("float32")
    total, gradient, _ = run(rows, sequences, rules)
    expected = reference_loss(sequences, rules)
    # The advantages pass through float32 at the trainer's edge: 6e-8 of relative error.
    assert total == pytest.approx(expected.total, rel=1e-6)
    assert gradient == pytest.approx(np.concatenate(expected.gradients), rel=1e-6, abs=1e-9)
    assert np.abs(gradient).max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_importance_weights_without_old_logprobs_use_the_current_ones_detached(kind):
    rules = LossRules(kind=kind, importance_cap=1.1)
    rows, sequences = cases("float32")
    batch = to_batch(rows, CPU)
    values = flat(sequences, "logprobs").requires_grad_()
    total, _ = loss_sum(batch, TokenLogprobs(batch.padded(values)), rules)
    total.backward()
    for sequence in sequences:
        object.__setattr__(sequence, "old", sequence.logprobs)
    expected = reference_loss(sequences, rules)
    assert values.grad.numpy() == pytest.approx(np.concatenate(expected.gradients), rel=1e-5, abs=1e-7)


def test_measurements():
    rules = LossRules(kind="dapo", importance_cap=1.1)
    rows, sequences = cases("float32")
    _, _, sums = run(rows, sequences, rules)
    gap = np.abs(np.concatenate([sequence.logprobs - sequence.sampler for sequence in sequences]))
    trained = [sequence for sequence in sequences if sequence.is_counted and sequence.has_spread]
    weights = np.concatenate([truncated_weights(sequence.old, sequence.sampler, 1.1) for sequence in trained])
    ratios = np.exp(np.concatenate([sequence.logprobs - sequence.old for sequence in trained]))
    assert sums["tokens"] == sum(LENGTHS) and sums["trained_tokens"] == 1 + 7 + 12
    assert sums["gap_sum"] == pytest.approx(gap.sum()) and sums["gap_max"] == pytest.approx(gap.max())
    assert sums["weight_sum"] == pytest.approx(weights.sum()) and sums["weight_capped_sum"] == (weights >= 1.1).sum()
    assert sums["clipped_sum"] == ((ratios < 0.8) | (ratios > 1.2)).sum()


def test_a_shifted_sampler_shows_as_gap_and_ratio():
    # A response of 100 tokens whose sampler is off by 0.02 a token: exp(2) = 7.39 for the sequence, exp(0.02) a token.
    row = Row((1,), (5,) * 100, (-1.02,) * 100, 1.0, True, True)
    batch = to_batch([row], CPU)
    _, sums = loss_sum(batch, TokenLogprobs(torch.full((1, 100), -1.0)), LossRules(kind="grpo"))
    assert sums["gap_sum"].item() == pytest.approx(2.0, rel=1e-5)
    assert np.exp(sums["gap_sum"].item()) == pytest.approx(7.39, abs=0.01)
    assert sums["ratio_sum"].item() / 100 == pytest.approx(np.exp(0.02), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_without_any_weight_gives_zero_not_nan(kind):
    rules = LossRules(kind=kind, kl_kind="k3", kl_coef=1.0, importance_cap=2.0)
    for rows in ([], [Row((1,), (5, 6), (-1.0, -2.0), 0.0, False, False)]):
        batch = to_batch(rows, CPU)
        current = batch.padded(torch.full((len(batch.targets),), -1.5)).requires_grad_()
        total, sums = loss_sum(batch, TokenLogprobs(current, None, torch.zeros_like(current)), rules)
        total.backward()
        assert total.item() == 0.0 and not current.grad.any()
        assert all(torch.isfinite(value) for value in sums.values())


def test_sums_add_and_maxima_stay_maxima():
    sums = {}
    for loss, gap in ((1.0, 3.0), (2.0, 1.0)):
        add_sums(sums, {"loss": torch.tensor(loss), "gap_max": torch.tensor(gap)})
    assert {name: value.item() for name, value in sums.items()} == {"loss": 3.0, "gap_max": 3.0}
