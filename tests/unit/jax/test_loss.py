"""JAX losses against `common.grpo`: value and gradient, for every loss, penalty and weight, of sequences packed into rows."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import jax_lab  # noqa: F401  (CPU, before JAX is used)
import numpy as np
import pytest

from common.batching import Row
from common.grpo import LossRules, kl, truncated_weights
from common.grpo import loss_sum as reference_loss
from rolloutpipe_jax.batch import Rung, to_batch
from rolloutpipe_jax.loss import TokenLogprobs, loss_sum
from rolloutpipe_jax.programs import add_sums
from tests.loss_cases import KINDS, LENGTHS, cases

# Which sequences lie in which row of which of two devices.
PACKED = (((1, 0, 2), (3,)), ((4,),))


@pytest.fixture(autouse=True)
def float64():
    """So that what is left is a difference of formulas, not of rounding."""
    with jax.enable_x64(True):
        yield


class Packed:
    """A batch in float64, and the way of per-sequence values into its layout and back."""

    def __init__(self, rows):
        packed = [[[rows[index] for index in row] for row in device] for device in PACKED]
        batch, spots = to_batch(Rung(2, 32), packed)
        self.spots = [spots[id(row)] for row in rows]
        self.shape = batch.mask.shape
        self.batch = batch._replace(
            sampler=self.place([np.array(row.sampler) for row in rows]),
            advantages=self.place([np.full(len(row.sampler), row.advantage) for row in rows]),
            shares=self.place([np.full(len(row.sampler), 1 / len(row.sampler)) for row in rows]),
        )

    def place(self, values):
        placed = np.zeros(self.shape)
        for spot, value in zip(self.spots, values, strict=True):
            placed[spot.row, spot.start : spot.start + spot.num_tokens] = value
        return placed

    def pick(self, placed):
        placed = np.asarray(placed)
        return np.concatenate([placed[spot.row, spot.start : spot.start + spot.num_tokens] for spot in self.spots])


def run(rows, sequences, rules, *, has_old=True):
    """(loss, flat gradient, sums); outside the mask the current log-probs are a constant 0, as the model gives them."""
    packed = Packed(rows)
    current, old, ref = (packed.place([getattr(each, name) for each in sequences]) for name in ("logprobs", "old", "ref"))

    def total(current):
        current = jnp.where(packed.batch.mask, current, 0.0)
        return loss_sum(packed.batch, TokenLogprobs(current, old if has_old else None, ref), rules)

    (value, sums), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(current)
    return float(value), packed.pick(gradient), {name: float(each) for name, each in sums.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kl_kind", [None, "k2", "k3"])
@pytest.mark.parametrize("cap", [None, 1.1])
def test_value_and_gradient_match_the_reference(kind, kl_kind, cap):
    rules = LossRules(kind=kind, clip_high=0.28, max_tokens=20, kl_kind=kl_kind, kl_coef=0.2, importance_cap=cap)
    rows, sequences = cases()
    total, gradient, sums = run(rows, sequences, rules)
    expected = reference_loss(sequences, rules)
    assert total == sums["loss"] == pytest.approx(expected.total, rel=1e-6)
    assert gradient == pytest.approx(np.concatenate(expected.gradients), rel=1e-6, abs=1e-12)
    assert np.abs(gradient).max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_importance_weights_without_old_logprobs_use_the_current_ones_detached(kind):
    rules = LossRules(kind=kind, importance_cap=1.1)
    rows, sequences = cases()
    total, gradient, _ = run(rows, sequences, rules, has_old=False)
    expected = reference_loss([replace(each, old=each.logprobs) for each in sequences], rules)
    assert total == pytest.approx(expected.total, rel=1e-6)
    assert gradient == pytest.approx(np.concatenate(expected.gradients), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_ratio_on_the_edge_of_the_clip_keeps_the_free_slope(kind):
    """At ratio 1 exactly, as in every first step, and with nothing to clip to."""
    rules = LossRules(kind=kind, clip_low=0.0, clip_high=0.0)
    rows, sequences = cases()
    rows = [replace(row, sampler=tuple(each.logprobs)) for row, each in zip(rows, sequences, strict=True)]
    sequences = [replace(each, sampler=each.logprobs) for each in sequences]
    _, gradient, _ = run(rows, sequences, rules)
    assert gradient == pytest.approx(np.concatenate(reference_loss(sequences, rules).gradients), rel=1e-6, abs=1e-12)
    assert np.abs(gradient).max() > 0.01


@pytest.mark.parametrize("kind", ["dapo", "gspo"])
def test_measurements(kind):
    rules = LossRules(kind=kind, importance_cap=1.1, kl_kind="k3", kl_coef=0.1)
    rows, sequences = cases()
    _, _, sums = run(rows, sequences, rules)
    gap = np.concatenate([sequence.logprobs - sequence.sampler for sequence in sequences])
    trained = [sequence for sequence in sequences if sequence.is_counted and sequence.has_spread]

    def mean(values):  # GSPO's ratio and weight are of the sequence
        return np.full(len(values), np.mean(values)) if kind == "gspo" else values

    weights = np.concatenate([truncated_weights(mean(each.old - each.sampler), 0.0, 1.1) for each in trained])
    ratios = np.exp(np.concatenate([mean(each.logprobs - each.old) for each in trained]))
    assert sums["tokens"] == sum(LENGTHS) and sums["trained_tokens"] == 1 + 7 + 12
    assert sums["gap_sum"] == pytest.approx(np.abs(gap).sum()) and sums["gap_max"] == pytest.approx(np.abs(gap).max())
    assert sums["kl_sampler_sum"] == pytest.approx((np.exp(gap) - gap - 1).sum())
    assert sums["weight_sum"] == pytest.approx(weights.sum()) and sums["weight_capped_sum"] == (weights >= 1.1).sum()
    assert sums["ratio_sum"] == pytest.approx(ratios.sum())
    assert sums["clipped_sum"] == ((ratios < 0.8) | (ratios > 1.2)).sum()
    assert sums["kl_ref_sum"] == pytest.approx(sum(kl(each.logprobs, each.ref, "k3")[0].sum() for each in trained))
    assert (sums["clipped_sum"] > 0 or kind == "gspo") and 0 < sums["weight_capped_sum"] < 20


def test_a_shifted_sampler_shows_as_gap_and_ratio():
    # A response of 100 tokens whose sampler is off by 0.02 a token: exp(2) = 7.39 for the sequence, exp(0.02) a token.
    row = Row((1,), (5,) * 100, (-1.02,) * 100, 1.0, True, True)
    batch, _ = to_batch(Rung(1, 128), [[[row]]])
    current = np.where(batch.mask, -1.0, 0.0)
    _, sums = jax.jit(lambda current: loss_sum(batch, TokenLogprobs(current), LossRules(kind="grpo")))(current)
    assert float(sums["gap_sum"]) == pytest.approx(2.0, rel=1e-5)
    assert np.exp(float(sums["gap_sum"])) == pytest.approx(7.39, abs=0.01)
    assert float(sums["ratio_sum"]) / 100 == pytest.approx(np.exp(0.02), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_without_any_weight_gives_zero_not_nan(kind):
    rules = LossRules(kind=kind, kl_kind="k3", kl_coef=1.0, importance_cap=2.0)
    for packed in ([[]], [[[Row((1,), (5, 6), (-1.0, -2.0), 0.0, False, False)]]]):
        batch, _ = to_batch(Rung(1, 32), packed)

        def total(current, batch=batch):
            return loss_sum(batch, TokenLogprobs(current, None, jnp.zeros_like(current)), rules)

        (value, sums), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(np.where(batch.mask, -1.5, 0.0))
        assert float(value) == 0.0 and not np.asarray(gradient).any()
        assert all(np.isfinite(each) for each in sums.values())


def test_float32_is_as_near_as_its_rounding():
    """What the trainer computes in; 1e-5 of values that are differences of log-probs around 1.5."""
    rules = LossRules(kind="grpo", kl_kind="k3", kl_coef=0.2)
    rows, sequences = cases()
    packed = Packed(rows)
    with jax.enable_x64(False):
        batch = packed.batch._replace(
            **{name: np.float32(getattr(packed.batch, name)) for name in ("sampler", "advantages", "shares")}
        )
        current, ref = (np.float32(packed.place([getattr(each, name) for each in sequences])) for name in ("logprobs", "ref"))
        value, gradient = jax.jit(jax.value_and_grad(lambda x: loss_sum(batch, TokenLogprobs(x, None, ref), rules)[0]))(current)
        assert gradient.dtype == jnp.float32
    expected = reference_loss(sequences, rules)
    assert float(value) == pytest.approx(expected.total, rel=1e-5)
    assert packed.pick(gradient) == pytest.approx(np.concatenate(expected.gradients), rel=1e-5, abs=1e-6)


def test_sums_add_and_maxima_stay_maxima():
    sums = {}
    for loss, gap in ((1.0, 3.0), (2.0, 1.0)):
        add_sums(sums, {"loss": jnp.float32(loss), "gap_max": jnp.float32(gap)})
    assert sums == {"loss": 3.0, "gap_max": 3.0}
