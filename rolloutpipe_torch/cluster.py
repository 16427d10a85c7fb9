"""The local Ray that actors run on."""

import logging
import os

import ray


def start_ray() -> None:
    """Start Ray on this machine, on the loopback address, without dashboard; does nothing where it runs already."""
    if not ray.is_initialized():
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, _node_ip_address="127.0.0.1")


def stop_ray() -> None:
    """End it; idempotent."""
    ray.shutdown()
