"""Whether a trainer fits this machine: what every trainer room asks, answered before anything starts."""

from math import prod
from pathlib import Path

import psutil

from common.config import Config
from common.errors import ConfigError, explain
from common.spool import model_layout

_GB = 1e9
_FLOAT32_BYTES = 4


def check_at_most(field: str, value: int, limit: int, what: str) -> None:
    """Raises ConfigError where `value` of the setting `field` is above `limit`, which is the number of `what`."""
    if value > limit:
        remedy = f"use {limit}" if limit > 0 else "use a larger machine, or fewer devices or threads for the rest"
        raise ConfigError(explain(field, f"must be at most the {what}", value, remedy))


def check_state_memory(
    config: Config, model_dir: Path, *, num_readers: int, device_bytes: int | None = None, device: str = "GPU"
) -> None:
    """Raises ConfigError where the trainer's state does not fit into memory.

    Counts what is certain (weights, gradients, moments, copies), not activations. `num_readers` processes hold the whole
    model in host memory while they load it. `device_bytes` is the memory of the smallest `device` where each rank has one
    for its share of the state; None where the state lies in host memory too.
    """
    ranks, params = config.training.ranks, num_params(model_dir)
    state = params * _FLOAT32_BYTES * _num_copies(config)
    if device_bytes is not None:
        _check_bytes(ranks, state // ranks, device_bytes, f"of {device} memory a rank")
        state = 0
    loading = params * _FLOAT32_BYTES * num_readers
    _check_bytes(ranks, state + loading, psutil.virtual_memory().available, "of free memory")


def num_params(model_dir: Path) -> int:
    """Weights in the model's files; a tied head counts once. Raises DataError."""
    return sum(prod(layout.shape) for layout in model_layout(model_dir).values())


def _num_copies(config: Config) -> int:
    """Weights, gradients, two moments; the round's copy; the frozen reference."""
    training = config.training
    return 4 + (training.importance_cap is not None and training.keep_round_weights) + (training.kl is not None)


def _check_bytes(ranks: int, needed: int, available: int, what: str) -> None:
    if needed > available:
        rule = f"must fit in {available / _GB:.1f} GB {what} (this model needs {needed / _GB:.1f} GB)"
        raise ConfigError(explain("training.ranks", rule, ranks, "use another number of ranks, or a smaller model"))
