"""What the JAX trainer refuses before anything starts: devices that are not there."""

import pytest

import rolloutpipe_jax.room as room
from common.config import Config
from common.errors import ConfigError


def config_of(ranks, **rollout):
    return Config(trainer="jax", model={"path": "m"}, training={"ranks": ranks}, rollout=rollout)


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """A machine with four GPUs."""
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia2", "nvidia3"):
        (tmp_path / name).touch()
    monkeypatch.setattr(room, "_DEVICES", tmp_path)


def test_without_accelerators_the_cpu_plays_a_mesh_of_any_sensible_size():
    room.check_room(config_of(room.MAX_PLAYED))
    with pytest.raises(ConfigError, match=r"training\.ranks: must be at most the 64 devices that the CPU plays, got 65"):
        room.check_room(config_of(room.MAX_PLAYED + 1))


def test_engines_come_before_ranks_on_gpus(gpus):
    assert room.num_gpus() == 4
    room.check_room(config_of(2, replicas=1, tensor_parallel=2))
    with pytest.raises(
        ConfigError, match=r"training\.ranks: must be at most the GPUs that 2 for rollout leave of 4, got 3; use 2"
    ):
        room.check_room(config_of(3, replicas=2))


def test_splash_needs_a_tpu(monkeypatch, tmp_path):
    config = Config(trainer="jax", model={"path": "m"}, training={"attention": "splash"})
    with pytest.raises(ConfigError, match=r"training\.attention: must be xla where there is no TPU, got 'splash'; say xla"):
        room.check_room(config)
    (tmp_path / "accel0").touch()
    monkeypatch.setattr(room, "_TPU_DEVICES", (str(tmp_path / "accel0"),))
    room.check_room(config)


def test_host_memory_counts_where_the_cpu_plays_the_devices_alone(tiny_model, gpus, monkeypatch, tmp_path):
    monkeypatch.setattr("common.room.psutil.virtual_memory", lambda: type("Memory", (), {"available": 10_000}))
    room.check_room(config_of(2), tiny_model)
    monkeypatch.setattr(room, "_DEVICES", tmp_path / "none")
    with pytest.raises(ConfigError, match=r"training\.ranks: must fit in 0\.0 GB of free memory"):
        room.check_room(config_of(2), tiny_model)
