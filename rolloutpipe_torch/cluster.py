"""Ray's life in this process: a node of our own on this machine, quiet, listening on the loopback address alone.

Where `RAY_ADDRESS` names a running cluster, that one is joined instead; its nodes must see the run directory.
"""

import logging
import os
from pathlib import Path

import ray
from ray._private import ray_constants, worker

# The caller's own values win.
_ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # actors without GPUs keep the caller's CUDA_VISIBLE_DEVICES
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # the actors are the run itself: at Ray's 15 any other program would starve them
    # Without this, Ray turns the loopback address into an outside one and its servers listen on all interfaces.
    # Whatever its name says, it works on Linux too; read when `ray` is imported, so it is set here for the children only.
    ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0",
}
_OBJECT_STORE_BYTES = 256 * 2**20  # weights go through the spool; only samples and results pass here


def start_ray(num_cpus: int | None = None) -> None:
    """Start or join Ray; where it runs in this process already, nothing. A node of our own ends with this process."""
    if ray.is_initialized():
        return
    _share_import_path()
    worker.print_to_stdstream = _say_nothing
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        return
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    ray_constants.ENABLE_RAY_CLUSTER = False  # the same in this process, where `ray` is imported already
    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=_OBJECT_STORE_BYTES,
    )


def _say_nothing(*_: object, **__: object) -> None:
    """Ray's page-long reports of a dead actor: the trainer and the pool tell its name and log in one line."""


def _share_import_path() -> None:
    # Workers inherit the environment, not this process's sys.path; needed where the project runs without being installed.
    root = str(Path(__file__).resolve().parents[1])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])


def stop_ray() -> None:
    """End all actors and a node of our own; idempotent."""
    ray.shutdown()
