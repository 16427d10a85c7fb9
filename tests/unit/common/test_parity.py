"""What a comparison of two trainers rests on: cutting into updates, differences of tensors, and the verdict."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.commands.parity import LATER, LOSS_TOLERANCE, Tolerances, check_model, short_name, variants
from common.config import Config
from common.errors import DataError
from common.parity import Comparison, Difference, Update, cut, difference
from common.parity_input import ParityInput
from common.records import Group

FINE = Comparison(
    update=2,
    losses=(1.0, 1.0),
    grad_norms=(1.0, 1.0),
    gradients=Difference(1e-6, "a"),
    params=Difference(1e-6, "a"),
    mean_advantage=0.5,
    sampler_gap=1e-5,
)


def test_updates_are_cut_within_rounds_and_the_last_may_be_short(make_group: Callable[..., Group]) -> None:
    groups = [make_group(seed) for seed in range(5)]
    updates = list(cut([groups[:3], groups[3:]], 2))
    assert [(len(update.groups), update.starts_round) for update in updates] == [(2, True), (1, False), (2, True)]
    assert [group for update in updates for group in update.groups] == groups


def test_the_difference_is_that_of_the_worst_tensor() -> None:
    """|(3, 4) - (3, 4.5)| / |(3, 4)| = 0.5 / 5; the larger absolute difference of `b` is smaller in proportion."""
    ones = {"a": np.array([3.0, 4.0]), "b": np.full((2, 2), 100.0)}
    others = {"a": np.array([3.0, 4.5]), "b": np.full((2, 2), 101.0)}
    assert difference(ones, others) == Difference(pytest.approx(0.1), "a")


def test_a_tensor_that_one_side_lacks_counts_as_zeros() -> None:
    assert difference({"a": np.ones(3), "b": np.zeros(2)}, {"a": np.ones(3)}) == Difference(0.0, "a")
    assert difference({"a": np.ones(3)}, {}) == Difference(1.0, "a")
    assert difference({}, {"a": np.ones(3)}) == Difference(math.inf, "a")


def test_what_is_not_a_number_is_infinitely_far() -> None:
    assert difference({"a": np.array([1.0, np.nan])}, {"a": np.ones(2)}).rel_l2 == math.inf


def test_the_first_update_has_the_tight_bound_on_gradients() -> None:
    tolerances = Tolerances()
    drifted = replace(FINE, gradients=Difference(0.9 * LATER * tolerances.gradients, "a"))
    assert tolerances.faults(FINE) == tolerances.faults(drifted) == []
    assert len(tolerances.faults(replace(drifted, update=1))) == 1
    assert len(tolerances.faults(replace(drifted, gradients=Difference(1.1 * LATER * tolerances.gradients, "a")))) == 1


def test_parameters_and_losses_have_their_own_bounds() -> None:
    tolerances = Tolerances()
    assert "parameters" in tolerances.faults(replace(FINE, params=Difference(6e-5, "a")))[0]
    assert tolerances.faults(replace(FINE, losses=(1.0, 1.0 + 0.4 * LOSS_TOLERANCE))) == []  # of 0.5 mean advantages
    assert "losses" in tolerances.faults(replace(FINE, losses=(1.0, 1.0 + 0.6 * LOSS_TOLERANCE)))[0]
    assert tolerances.faults(replace(FINE, losses=(1.0, math.nan)))


def test_a_configuration_with_extras_is_compared_without_and_with_them() -> None:
    training = {"kl": {"coef": 0.1}, "importance_cap": 2.0}
    config = Config(model={"path": "m"}, training=training)
    found = dict(variants(config, ["grpo", "gspo"]))
    assert list(found) == ["grpo", "grpo + kl k3 + cap 2", "gspo", "gspo + kl k3 + cap 2"]
    assert found["gspo"].training.kl is None and found["gspo"].training.importance_cap is None
    assert found["gspo + kl k3 + cap 2"].training == config.training.model_copy(update={"loss": "gspo"})


def test_short_names_still_tell_tensors_apart() -> None:
    names = [
        "model.layers.3.self_attn.q_proj.weight",
        "model.layers.3.self_attn.q_proj.bias",
        "model.norm.weight",
        "lm_head.weight",
    ]
    assert [short_name(name) for name in names] == ["3.q_proj", "3.q_proj.bias", "norm", "lm_head"]


def test_groups_of_another_model_are_refused(make_group: Callable[..., Group], tmp_path: Path) -> None:
    """A model of the same vocabulary gives log-probs to the tokens that are nats away from those recorded."""

    def given(version: int) -> ParityInput:
        group = replace(make_group(0), weight_version=version)
        return ParityInput(config=Config(model={"path": "m"}), model_dir=tmp_path, updates=(Update((group,)),))

    check_model(given(0), 0.01)
    check_model(given(3), 2.0)  # of weights that are not at hand
    for gap in (2.0, math.nan):
        with pytest.raises(DataError, match="must be the model that the groups were sampled from"):
            check_model(given(0), gap)
