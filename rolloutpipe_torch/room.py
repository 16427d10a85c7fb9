"""Whether the trainer fits this machine, answered before anything starts."""

import os
from pathlib import Path

import psutil

from common.config import Config
from common.errors import ConfigError, explain
from common.spool import model_layout

_GB = 1e9
_FLOAT32_BYTES = 4
# What a driver of GPUs makes: NVIDIA's own, under Windows' Linux, AMD's.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def check_room(config: Config, model_dir: Path | None = None) -> None:
    """Raises ConfigError where cores, GPUs or memory do not allow `training.ranks`; memory needs `model_dir`.

    Counts what is certain (weights, gradients, moments, copies), not activations.
    """
    ranks = config.training.ranks
    gpu_memory = _gpu_memory()
    if gpu_memory:
        engines = config.rollout.replicas * config.rollout.tensor_parallel
        free = len(gpu_memory) - engines
        _check_at_most(ranks, free, f"GPUs that {engines} for rollout leave of {len(gpu_memory)}")
    else:
        cores = len(os.sched_getaffinity(0))
        _check_at_most(ranks, cores // config.training.threads, f"cores divided by training.threads ({cores} cores)")
    if model_dir is not None:
        _check_memory(config, model_dir, gpu_memory)


def _check_at_most(ranks: int, limit: int, what: str) -> None:
    if ranks > limit:
        remedy = f"use {limit}" if limit > 0 else "use a larger machine, or fewer devices or threads for the rest"
        raise ConfigError(explain("training.ranks", f"must be at most the {what}", ranks, remedy))


def _check_memory(config: Config, model_dir: Path, gpu_memory: list[int]) -> None:
    training = config.training
    params = sum(_size(layout.shape) for layout in model_layout(model_dir).values())
    # Weights, gradients, two moments; the round's copy; the frozen reference.
    copies = 4 + (training.importance_cap is not None and training.keep_round_weights) + (training.kl is not None)
    state = params * _FLOAT32_BYTES * copies
    loading = params * _FLOAT32_BYTES * training.ranks  # each rank reads the whole model before it is cut
    if gpu_memory:
        _check_bytes(training.ranks, state // training.ranks, min(gpu_memory), "of GPU memory a rank")
        state = 0
    _check_bytes(training.ranks, state + loading, psutil.virtual_memory().available, "of free memory")


def _check_bytes(ranks: int, needed: int, available: int, what: str) -> None:
    if needed > available:
        rule = f"must fit in {available / _GB:.1f} GB {what} (this model needs {needed / _GB:.1f} GB)"
        raise ConfigError(explain("training.ranks", rule, ranks, "use another number of ranks, or a smaller model"))


def _gpu_memory() -> list[int]:
    """Bytes of each visible GPU; none without CUDA."""
    if not any(Path(device).exists() for device in _GPU_DEVICES):
        return []
    from torch import cuda  # a second to import, so only where there may be a GPU

    return [cuda.get_device_properties(index).total_memory for index in range(cuda.device_count())] if cuda.is_available() else []


def has_gpus() -> bool:
    """Whether ranks run on GPUs."""
    return bool(_gpu_memory())


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
