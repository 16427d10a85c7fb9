"""One small trainer rank for each mesh of 8 virtual devices, compiled once for all tests that go back to its start."""

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from common.batching import rows_of
from common.records import Group
from rolloutpipe_jax.rank import TrainerRank
from rolloutpipe_jax.trainer import planner
from tests.jax_lab import LocalRank, jax_config

MESHES = ((8, 1), (4, 2), (2, 4), (1, 8))
LEARNING_RATE = 1e-4


class MeshRank(LocalRank):
    """A rank with clipping and weight decay that can go back to where it started."""

    def __init__(self, model: Path, fsdp: int, tp: int) -> None:
        # 32 tokens are one row: so there is one size of a micro-batch, and two programs to compile.
        settings = {"micro_batch_tokens": 32, "weight_decay": 0.1, "max_grad_norm": 0.5, "loss": "dapo"}
        self.rank = TrainerRank(jax_config(model, fsdp, tp, **settings), model, 0, 1)
        self.rank.join()
        self._plan = planner(self.rank.fit(32), fsdp)  # in place of `warm_up`, which would compile more than is used here
        self._start = jax.device_get((self.rank._params, self.rank._moments))
        self._places = jax.tree.map(lambda value: value.sharding, (self.rank._params, self.rank._moments))

    def reset(self) -> "MeshRank":
        """Back to the weights and moments of the start."""
        self.rank.saved()
        copies = jax.tree.map(np.copy, self._start)  # JAX may take the memory of what it is given as its own
        self.rank._params, self.rank._moments = jax.device_put(copies, self._places)
        self.rank.abort_update()
        return self

    def update(self, *groups: Group) -> float:
        """Take one step; the loss before it."""
        self.accumulate(*groups)
        denominator = sum(group.num_tokens for group in groups)
        _, sums = self.rank.finish_update(denominator, LEARNING_RATE)
        return sums["loss"] / denominator

    def near(self, group: Group, seed: int) -> Group:
        """The group as if the sampler's log-probs had been near to this trainer's: some ratios are clipped, not all."""
        noise = random.Random(seed)
        shares = self.shares(rows_of(group))
        answers = self.rank.logprobs(shares, 0.9)
        found = {
            row.response_ids: tuple(value + noise.uniform(-0.3, 0.3) for value in values)
            for runs, answer in zip(shares, answers, strict=True)
            for run, scored in zip(runs, answer, strict=True)
            for row, values in zip(run, scored, strict=True)
        }
        samples = [
            replace(sample, response=replace(sample.response, logprobs=found[sample.response.token_ids]))
            for sample in group.samples
        ]
        return replace(group, samples=tuple(samples))

    def state(self) -> list[np.ndarray[Any, Any]]:
        """Copies of weights and moments, whole."""
        return [np.array(value) for value in jax.tree.leaves((self.rank._params, self.rank._moments))]


@cache
def _made(model: Path, fsdp: int, tp: int) -> MeshRank:
    return MeshRank(model, fsdp, tp)


def on_mesh(model: Path, fsdp: int, tp: int) -> MeshRank:
    """The rank of this mesh at its start; the same object for the same mesh."""
    return _made(model, fsdp, tp).reset()


def same_bits(found: list[np.ndarray[Any, Any]], expected: list[np.ndarray[Any, Any]]) -> bool:
    """Every element equal, so that a NaN would differ."""
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
