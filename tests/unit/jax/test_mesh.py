"""Meshes of 8 virtual devices against one device, and what does not divide."""

import jax
import numpy as np
import pytest

from common.config import Config
from common.config_errors import validate
from common.errors import ConfigError
from rolloutpipe_jax.room import check_heads, check_room
from tests.jax_lab import jax_config
from tests.mesh_lab import MESHES, on_mesh

NUM_UPDATES = 5


@pytest.fixture(scope="module")
def updates(wide_model, make_group):
    """The groups of each update."""
    lab = on_mesh(wide_model, 1, 1)
    groups = [lab.near(make_group(seed), seed) for seed in range(2 * NUM_UPDATES)]
    return list(zip(groups[::2], groups[1::2], strict=True))


def trained(model, fsdp, tp, updates):
    """(losses, weights by name) of all updates."""
    lab = on_mesh(model, fsdp, tp)
    losses = [lab.update(*groups) for groups in updates]
    return losses, lab.rank.weights()


@pytest.fixture(scope="module")
def on_one_device(wide_model, updates):
    return trained(wide_model, 1, 1, updates)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_mesh_trains_as_one_device(wide_model, updates, on_one_device, mesh):
    losses, weights = trained(wide_model, *mesh, updates)
    expected_losses, expected = on_one_device
    # Relative to a token's loss, which is about 1: over all tokens terms of both signs cancel out.
    assert losses == pytest.approx(expected_losses, rel=0, abs=1e-6)
    assert min(map(abs, losses)) > 0.05
    for name, value in expected.items():
        assert np.abs(weights[name] - value).max() <= 1e-5, name


def test_the_updates_move_the_weights_by_more_than_the_bound(wide_model, on_one_device):
    _, weights = on_one_device
    start = on_mesh(wide_model, 1, 1).rank.weights()
    assert min(np.abs(weights[name] - value).max() for name, value in start.items()) > 1e-4


def test_the_meshes_share_the_weights_out(wide_model):
    """Otherwise everything above would hold of eight devices that each do all the work."""
    for fsdp, tp in MESHES:
        for name, value in on_mesh(wide_model, fsdp, tp).rank._params.items():
            if "norm" not in name:
                assert value.addressable_shards[0].data.size * 8 == value.size, (name, fsdp, tp)


def test_moments_lie_as_their_weights(wide_model):
    rank = on_mesh(wide_model, 4, 2).rank
    for moments in (rank._moments[0].mu, rank._moments[0].nu):
        assert all(moments[name].sharding == value.sharding for name, value in rank._params.items())


@pytest.mark.parametrize(("tensor_parallel", "what"), [(3, "4 heads"), (4, "2 key and value heads")])
def test_heads_that_do_not_divide_are_refused(tiny_model, tensor_parallel, what):
    with pytest.raises(ConfigError) as error:
        check_heads(tiny_model, tensor_parallel)
    rule = f"training.tensor_parallel: must divide the model's {what}, got {tensor_parallel}"
    assert str(error.value).startswith(rule)


def test_the_room_asks_for_heads_before_anything_starts(tiny_model):
    with pytest.raises(ConfigError, match=r"training\.tensor_parallel: must divide the model's 2 key and value heads, got 4"):
        check_room(jax_config(tiny_model, 2, 4), tiny_model)


def test_devices_that_the_mesh_does_not_divide_are_refused(tiny_model):
    settings = {"trainer": "jax", "model": {"path": str(tiny_model)}, "training": {"ranks": 6, "tensor_parallel": 4}}
    with pytest.raises(ConfigError, match=r"training\.tensor_parallel: must divide training\.ranks \(6\).* got 4; use a divisor"):
        validate(Config, settings)


def test_there_are_eight_devices():
    assert len(jax.devices()) == 8
