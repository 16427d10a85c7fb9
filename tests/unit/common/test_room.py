"""What every trainer room asks of the machine."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from common.config import Config
from common.errors import ConfigError
from common.room import check_at_most, check_state_memory, num_params

NUM_PARAMS = 1_000_000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A million parameters: 4 MB for each copy of the state."""
    tensors = {"a": np.zeros((500, 1000), np.float32), "b": np.zeros((500_000,), np.float32)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": False}))
    return tmp_path


def config_of(ranks: int = 1, **training: object) -> Config:
    return Config.model_validate({"model": {"path": "m"}, "training": {"ranks": ranks, **training}})


def free_memory(monkeypatch: pytest.MonkeyPatch, megabytes: float) -> None:
    memory = type("Memory", (), {"available": int(megabytes * 1e6)})
    monkeypatch.setattr("common.room.psutil.virtual_memory", lambda: memory)


def test_a_value_above_the_limit_is_refused_with_the_limit() -> None:
    check_at_most("training.ranks", 2, 2, "devices")
    with pytest.raises(ConfigError, match=r"training\.ranks: must be at most the devices, got 3; use 2"):
        check_at_most("training.ranks", 3, 2, "devices")
    with pytest.raises(ConfigError, match="use a larger machine"):
        check_at_most("training.ranks", 1, 0, "devices")


def test_params_are_counted_from_the_files(model: Path) -> None:
    assert num_params(model) == NUM_PARAMS


@pytest.mark.parametrize(
    ("training", "num_readers", "megabytes"),
    [
        ({}, 1, 20),  # weights, gradients, two moments, and the model that is read
        ({"kl": {"coef": 0.1}}, 1, 24),
        ({"importance_cap": 2.0, "keep_round_weights": True}, 1, 24),
        ({"importance_cap": 2.0}, 1, 20),
        ({"ranks": 4}, 4, 32),  # each reads the whole model
        ({"ranks": 4}, 1, 20),  # one process drives them all
    ],
)
def test_the_state_in_host_memory(
    model: Path, monkeypatch: pytest.MonkeyPatch, training: dict[str, object], num_readers: int, megabytes: int
) -> None:
    free_memory(monkeypatch, megabytes)
    check_state_memory(config_of(**training), model, num_readers=num_readers)  # type: ignore[arg-type]
    free_memory(monkeypatch, megabytes - 0.1)
    with pytest.raises(ConfigError, match=r"training\.ranks: must fit in 0\.0 GB of free memory"):
        check_state_memory(config_of(**training), model, num_readers=num_readers)  # type: ignore[arg-type]


def test_the_state_on_devices_is_shared_by_the_ranks(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free_memory(monkeypatch, 4)  # only what is read
    check_state_memory(config_of(4), model, num_readers=1, device_bytes=4_000_000, device="TPU")
    with pytest.raises(ConfigError, match="of TPU memory a rank"):
        check_state_memory(config_of(4), model, num_readers=1, device_bytes=3_900_000, device="TPU")
