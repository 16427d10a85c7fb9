"""Gradients of a trainer rank, of either room, and how far two of them are apart."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.batching import Row


def flat(tensors: Mapping[str, Any]) -> NDArray[np.float64]:
    """All of them as one vector."""
    return np.concatenate([values.ravel().astype(np.float64) for values in tensors.values()])


def gradient(rank: Any, micro_batches: Sequence[Any]) -> NDArray[np.float64]:
    """The gradient sum of all parameters as one vector; the update is forgotten."""
    rank.accumulate([micro_batches])
    vector = flat(rank.gradients())
    rank.abort_update()
    return vector


def distance(found: ArrayLike, expected: NDArray[np.float64]) -> float:
    """Length of the difference, as a share of the length of `expected`."""
    return float(np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected))


def chunks(rows: Sequence[Row], number: int, seed: int | None = None) -> list[list[Row]]:
    """`rows` in runs of `len(rows) // number`, the last may be shorter; with a `seed` they are shuffled first."""
    rows = list(rows)
    if seed is not None:
        random.Random(seed).shuffle(rows)
    size = len(rows) // number
    return [rows[start : start + size] for start in range(0, len(rows), size)]
