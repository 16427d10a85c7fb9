"""The reference losses: hand-computed values, and gradients against finite differences."""

import dataclasses
import math

import numpy as np
import pytest

from common.config import Config
from common.grpo import (
    STD_EPS,
    LossRules,
    ScoredSequence,
    group_advantages,
    has_spread,
    kl,
    loss_sum,
    reward_std,
    rewards_with_k1,
    truncated_weights,
)

LN2 = math.log(2)
KINDS = ("grpo", "dr_grpo", "dapo", "gspo", "cispo")


def sequence(logprobs, sampler, advantage=1.0, **more):
    arrays = {name: np.array(value, float) for name, value in more.items() if name in ("old", "ref")}
    return ScoredSequence(
        logprobs=np.array(logprobs, float), sampler=np.array(sampler, float), advantage=advantage, **(more | arrays)
    )


# Two sequences, probabilities as ratios to the sampler: A with ratios (1, 2) and advantage 1, B with ratio 0.5 and advantage -1.
A = sequence([-1.0, -1.0 + LN2], [-1.0, -1.0])
B = sequence([-2.0 - LN2], [-2.0], advantage=-1.0)


def test_spread_needs_more_than_the_tolerance():
    assert not has_spread([0.3] * 8)
    assert not has_spread([0.3, 0.3 + 1e-9, 0.3])
    assert has_spread([0.0] + [0.95] * 7)
    assert not has_spread([1.0, None])  # one scored member has nothing to be compared with
    assert not has_spread([])


def test_advantages_by_group_deviation():
    # mean 0.5, population deviation 0.5: +-0.5 / (0.5 + 1e-6)
    assert group_advantages([1.0, 0.0, 1.0, 0.0]) == pytest.approx((a := 0.5 / (0.5 + STD_EPS), -a, a, -a), rel=1e-12)


def test_advantages_without_deviation_and_by_batch_deviation():
    assert group_advantages([1.0, 0.0, 0.0, 0.0], std="none") == pytest.approx((0.75, -0.25, -0.25, -0.25))
    # Rewards 1 0 | 1 1: mean 0.75, deviation sqrt(3/16)
    assert reward_std([1.0, 0.0, 1.0, 1.0]) == pytest.approx(math.sqrt(3 / 16))
    expected = 0.5 / (0.25 + STD_EPS)
    assert group_advantages([1.0, 0.0], std="batch", batch_std=0.25) == pytest.approx((expected, -expected))
    with pytest.raises(ValueError, match="batch_std"):
        group_advantages([1.0, 0.0], std="batch")


def test_member_without_reward_is_out_of_the_baseline():
    # mean of 1 and 0 is 0.5, not 1/3
    assert group_advantages([1.0, None, 0.0], std="none") == (0.5, 0.0, -0.5)


def test_noise_gives_advantages_of_exactly_zero():
    assert group_advantages([0.3, 0.3 + 1e-9, 0.3]) == (0.0, 0.0, 0.0)


def test_all_members_of_an_uneven_group_keep_their_advantages():
    assert all(value != 0 for value in group_advantages([0.0] + [0.95] * 7))


@pytest.mark.parametrize(
    ("kind", "total", "denominator"),
    [
        # A: tokens -1 and -min(2, 1.2) = -1.2. B: ratio 0.5, advantage -1: -min(-0.5, -0.8) = 0.8.
        ("grpo", -2.2 / 2 + 0.8, 2),
        ("dr_grpo", -2.2 + 0.8, 20),
        ("dapo", -2.2 + 0.8, 3),
        # A: s = exp(ln2 / 2) = 1.414..., cut to 1.2: -1.2. B as above.
        ("gspo", -1.2 + 0.8, 2),
        # A: -1 * -1 - 1.2 * (-1 + ln2). B: weight 0.5 cut up to 0.8: +0.8 * (-2 - ln2).
        ("cispo", 1.0 - 1.2 * (-1 + LN2) + 0.8 * (-2 - LN2), 3),
    ],
)
def test_losses_by_hand(kind, total, denominator):
    result = loss_sum([A, B], LossRules(kind=kind, max_tokens=10))
    assert result.total == pytest.approx(total, rel=1e-12)
    assert result.denominator == denominator


def test_gradients_by_hand():
    # Inside the clip -ratio * advantage, outside 0; GRPO divides A's by its two tokens.
    result = loss_sum([A, B], LossRules(kind="grpo"))
    assert result.gradients[0] == pytest.approx([-0.5, 0.0])
    assert result.gradients[1] == pytest.approx([0.0])
    # CISPO: tokens beyond the clip still learn, with the clipped weight.
    assert loss_sum([A], LossRules(kind="cispo")).gradients[0] == pytest.approx([-1.0, -1.2])


def test_clip_higher_moves_the_upper_bound_only():
    rules = LossRules(kind="dapo", clip_low=0.2, clip_high=0.28)
    assert loss_sum([A], rules).total == pytest.approx(-1 - 1.28)
    assert loss_sum([B], rules).total == pytest.approx(0.8)


def test_kl_estimates_by_hand():
    d = np.array([LN2])
    assert kl(d, np.zeros(1), "k1")[0] == pytest.approx([LN2])
    assert kl(d, np.zeros(1), "k2")[0] == pytest.approx([LN2**2 / 2])
    assert kl(d, np.zeros(1), "k3")[0] == pytest.approx([0.5 + LN2 - 1])  # exp(-ln2) + ln2 - 1


def test_kl_follows_the_loss_in_how_tokens_are_averaged():
    even = sequence([-1.0, -1.0], [-1.0, -1.0], ref=[-1.0 - LN2, -1.0])
    # k2 of the first token ln2^2 / 2, of the second 0; policy part: -1 a token
    assert loss_sum([even], LossRules(kind="grpo", kl_kind="k2", kl_coef=0.1)).total == pytest.approx(-1 + 0.1 * LN2**2 / 4)
    assert loss_sum([even], LossRules(kind="dapo", kl_kind="k2", kl_coef=0.1)).total == pytest.approx(-2 + 0.1 * LN2**2 / 2)


def test_k1_takes_the_penalty_from_the_reward():
    # sum(sampler - ref) = 0.5 + 0.25
    assert rewards_with_k1([1.0, None], [[-1.0, -1.0], [-1.0]], [[-1.5, -1.25], [-9.0]], 0.1) == [pytest.approx(1 - 0.075), None]


def test_truncated_weights_are_cut_above_only():
    assert truncated_weights(np.array([LN2, 0.0, -LN2]), np.zeros(3), 1.5) == pytest.approx([1.5, 1.0, 0.5])


def test_importance_replaces_the_old_policy_and_weighs_the_loss():
    row = sequence([-1.0, -1.0], [-1.0 - LN2, -1.0 + LN2], old=[-1.0, -1.0])
    # ratios to the trainer's own are 1; weights min(2, 1.5) and 0.5
    assert loss_sum([row], LossRules(kind="dapo", importance_cap=1.5)).total == pytest.approx(-2.0)
    # GSPO: mean log-ratio of old and sampler is 0, so the weight is 1
    assert loss_sum([row], LossRules(kind="gspo", importance_cap=1.5)).total == pytest.approx(-1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_members_without_reward_or_tokens_leave_sum_and_denominator_alone(kind):
    rules = LossRules(kind=kind, max_tokens=10)
    alone = loss_sum([A], rules)
    unscored, empty = dataclasses.replace(B, is_counted=False), sequence([], [])
    together = loss_sum([A, unscored, empty], rules)
    assert (together.total, together.denominator) == (alone.total, alone.denominator)
    assert not together.gradients[1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_kept_group_without_spread_counts_but_has_no_kl_gradient(kind):
    rules = LossRules(kind=kind, max_tokens=10, kl_kind="k3", kl_coef=1.0)
    flat = sequence([-1.0], [-1.0], advantage=0.0, ref=[-3.0], has_spread=False)
    result = loss_sum([flat], rules)
    assert result.total == 0.0 and not result.gradients[0].any()
    assert result.denominator == rules.denominator(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kl_kind", [None, "k2", "k3"])
@pytest.mark.parametrize("cap", [None, 1.1])
def test_gradients_match_finite_differences(kind, kl_kind, cap):
    rules = LossRules(kind=kind, max_tokens=10, kl_kind=kl_kind, kl_coef=0.3, importance_cap=cap)
    rng = np.random.default_rng(7)
    rows = [
        sequence(*rng.normal(-1, 0.4, (2, length)), advantage, old=rng.normal(-1, 0.4, length), ref=rng.normal(-1, 0.4, length))
        for length, advantage in ((1, 0.7), (5, -1.1), (9, 0.4))
    ]
    if kind == "cispo":  # its weight is detached: far outside the clip it is a constant for the difference too
        rows = [dataclasses.replace(row, sampler=row.sampler + 4, old=row.old + 4) for row in rows]
    gradients, step = loss_sum(rows, rules).gradients, 1e-6
    for row, gradient in zip(rows, gradients, strict=True):
        for token in range(len(row.logprobs)):
            values = []
            for sign in (1, -1):
                moved = row.logprobs.copy()
                moved[token] += sign * step
                values.append(loss_sum([dataclasses.replace(row, logprobs=moved)], rules).total)
            assert (values[0] - values[1]) / (2 * step) == pytest.approx(gradient[token], rel=1e-5, abs=1e-8)


def test_rules_come_from_the_configuration():
    training = {"loss": "dapo", "clip_high": 0.28, "kl": {"coef": 0.1}, "importance_cap": 2.0}
    config = Config(model={"path": "m"}, training=training, sampling={"max_tokens": 9})
    expected = LossRules(kind="dapo", clip_high=0.28, max_tokens=9, kl_kind="k3", kl_coef=0.1, importance_cap=2.0)
    assert LossRules.from_config(config) == expected
    in_reward = Config(model={"path": "m"}, training={"kl": {"coef": 0.1, "kind": "k1"}}, filter="keep")
    assert LossRules.from_config(in_reward).kl_kind is None
