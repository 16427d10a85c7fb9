"""Ray's life in this process: started on this machine alone, bound to the loopback address, quiet."""

import logging
import os
from pathlib import Path

import ray

# Ray reads these when it starts; the caller's own values win.
_ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # actors without GPUs keep the caller's CUDA_VISIBLE_DEVICES
    "RAY_USAGE_STATS_ENABLED": "0",
}
_OBJECT_STORE_BYTES = 256 * 2**20  # weights go through the spool; only samples and results pass here


def start_ray(num_cpus: int | None = None) -> None:
    """Start a Ray of our own; where one runs in this process already, nothing. Ends with this process."""
    if ray.is_initialized():
        return
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _share_import_path()
    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=_OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
    )


def _share_import_path() -> None:
    # Workers inherit the environment, not this process's sys.path; needed where the project runs without being installed.
    root = str(Path(__file__).resolve().parents[1])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])


def stop_ray() -> None:
    """End all actors and Ray itself; idempotent."""
    ray.shutdown()
