"""What is decided before an engine starts: room, stop tokens, and how a failed start reads."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from common.config import Config
from common.errors import ConfigError, EngineError
from rolloutpipe_torch.rollout import pool
from rolloutpipe_torch.rollout.engine import VllmEngine, eos_token_ids
from tests.vllm_lab import engine_settings


def config(model_dir: Path, **rollout: Any) -> Config:
    return Config.model_validate({"model": {"path": str(model_dir)}, "rollout": rollout})


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A model directory of 1 MiB of float32 weights."""
    (tmp_path / "config.json").write_text("{}")
    save_file({"weight": np.zeros((512, 512), np.float32)}, tmp_path / "model.safetensors")
    return tmp_path


def test_replicas_that_do_not_fit_are_refused_at_once(model_dir: Path) -> None:
    start = time.monotonic()
    with pytest.raises(
        ConfigError, match=r"^rollout.replicas: must fit into the .* GiB of memory available, at .* got 1000; use at most"
    ):
        pool.check_room(config(model_dir, replicas=1000), model_dir)
    assert time.monotonic() - start < 5


def test_cache_that_never_fits_names_its_setting(model_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"got 1; lower rollout.kv_cache_gb"):
        pool.check_room(config(model_dir, kv_cache_gb=100_000), model_dir)


def test_room_counts_process_cache_and_weights(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 0

    monkeypatch.setattr(pool.psutil, "virtual_memory", Memory)
    monkeypatch.setattr(pool, "has_gpus", lambda: False)
    # Two replicas, each 1.5 GiB of process, 2 GiB of cache and 1 MiB of float32 weights.
    Memory.available = 2 * int((1.5 + 2) * 2**30 + 2**20)
    pool.check_room(config(model_dir, replicas=2, kv_cache_gb=2), model_dir)
    Memory.available -= 1
    with pytest.raises(ConfigError, match="use at most 1"):
        pool.check_room(config(model_dir, replicas=2, kv_cache_gb=2), model_dir)
    pool.check_room(config(model_dir, replicas=2, kv_cache_gb=2, dtype="bfloat16"), model_dir)  # half the weights


@pytest.mark.parametrize(
    ("generation", "model", "expected"),
    [
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 7}, [5, 6]),
        ({}, {"eos_token_id": 7}, [7]),
        (None, {"eos_token_id": 0}, [0]),
        (None, {}, []),
    ],
)
def test_stop_tokens_come_from_the_generation_config_first(
    tmp_path: Path, generation: dict[str, Any] | None, model: dict[str, Any], expected: list[int]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(model))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert eos_token_ids(tmp_path) == expected


def test_reason_of_a_failed_start_is_the_first_error_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "engine-0.log"
    assert pool._first_error(log) == ""
    log.write_text(
        "INFO starting\n(EngineCore) ERROR core.py ValueError: No common block size for 16\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert pool._first_error(log) == "engine-0: ValueError: No common block size for 16"


def test_engine_that_was_not_started_refuses_everything(tmp_path: Path) -> None:
    engine = VllmEngine(engine_settings(tmp_path))
    with pytest.raises(EngineError, match="engine-0 is dead: it has not been started"):
        asyncio.run(engine.publish(0, str(tmp_path)))
    assert asyncio.run(engine.health()) == (False, -1, 0, "it has not been started")
