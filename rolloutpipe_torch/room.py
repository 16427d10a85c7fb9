"""Whether the torch trainer fits this machine, answered before anything starts."""

import os
from pathlib import Path

from common.config import Config
from common.room import check_at_most, check_state_memory

# What a driver of GPUs makes: NVIDIA's own, under Windows' Linux, AMD's.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def check_room(config: Config, model_dir: Path | None = None) -> None:
    """Raises ConfigError where this machine's cores, GPUs or memory do not allow `training.ranks`; memory needs `model_dir`.

    Nothing is asked for a run on a cluster: its nodes tell `placing` when it is joined.
    """
    if not config.cluster.is_local:
        return
    ranks = config.training.ranks
    gpu_memory = _gpu_memory()
    if gpu_memory:
        engines = config.rollout.replicas * config.rollout.tensor_parallel
        free = len(gpu_memory) - engines
        check_at_most("training.ranks", ranks, free, f"GPUs that {engines} for rollout leave of {len(gpu_memory)}")
    else:
        cores, threads = len(os.sched_getaffinity(0)), config.training.threads
        check_at_most("training.ranks", ranks, cores // threads, f"cores divided by training.threads ({cores} cores)")
    if model_dir is not None:
        # Each rank reads the whole model before it is cut.
        check_state_memory(config, model_dir, num_readers=ranks, device_bytes=min(gpu_memory, default=None))


def _gpu_memory() -> list[int]:
    """Bytes of each visible GPU; none without CUDA."""
    if not any(Path(device).exists() for device in _GPU_DEVICES):
        return []
    from torch import cuda  # a second to import, so only where there may be a GPU

    return [cuda.get_device_properties(index).total_memory for index in range(cuda.device_count())] if cuda.is_available() else []


def has_gpus() -> bool:
    """Whether ranks run on GPUs."""
    return bool(_gpu_memory())
