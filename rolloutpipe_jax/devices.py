"""The devices of this process, and how often it compiled for them."""

import os
from collections.abc import Callable
from typing import Any

import jax

from common.config import TrainingConfig
from common.errors import ConfigError, explain
from rolloutpipe_jax.attention import Kind
from rolloutpipe_jax.room import has_tpus, num_gpus

_COMPILED = "/jax/core/compile/backend_compile_duration"


def set_up_devices(training: TrainingConfig) -> None:
    """Before JAX is first used. Without an accelerator the CPU plays `training.ranks` devices.

    Raises ConfigError where there are fewer devices than `training.ranks`.
    """
    if not has_tpus() and not num_gpus():
        jax.config.update("jax_platforms", "cpu")  # else an installed libtpu is tried first, at length
        jax.config.update("jax_num_cpu_devices", training.ranks)
        os.environ["NPROC"] = str(training.ranks * training.threads)  # XLA's name for the size of its thread pool
    if num_gpus():
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()
    if training.dtype == "float32":
        jax.config.update("jax_default_matmul_precision", "highest")  # accelerators would take bfloat16 products
    found = len(jax.devices())
    if found < training.ranks:
        rule = f"must be at most the {found} {jax.default_backend()} devices that JAX finds"
        raise ConfigError(explain("training.ranks", rule, training.ranks, f"use {found}"))


def attention_of(training: TrainingConfig) -> Kind:
    """The attention asked for, or the one that suits the devices."""
    return training.attention or ("splash" if jax.default_backend() == "tpu" else "xla")


def count_compilations() -> Callable[[], int]:
    """From now on; the answer is asked for by calling what is returned."""
    count = 0

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        nonlocal count
        count += event == _COMPILED

    jax.monitoring.register_event_duration_secs_listener(listen)
    return lambda: count
