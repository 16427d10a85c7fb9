"""What tests of the JAX room share. Importing it gives this process 8 virtual CPU devices, so import it before JAX is used."""

from pathlib import Path
from typing import Any

import jax

from common.batching import Row, rows_of
from common.config import Config
from common.records import Group

NUM_DEVICES = 8
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", NUM_DEVICES)


def jax_config(model: Path, fsdp: int = 1, tp: int = 1, **training: Any) -> Config:
    """For a trainer on an (fsdp, tp) mesh."""
    settings = {"ranks": fsdp * tp, "tensor_parallel": tp, "lr": 1e-3, "micro_batch_tokens": 256, **training}
    return Config(
        trainer="jax",
        model={"path": str(model)},
        training=settings,
        sampling={"max_tokens": 16, "temperature": 0.9},
        groups_per_round=4,
        groups_per_update=2,
        rounds=4,
    )


class LocalRank:
    """A `TrainerRank` in this process with its planner: takes groups as they are."""

    def __init__(self, config: Config, model: Path, longest: int = 64) -> None:
        from rolloutpipe_jax.rank import TrainerRank
        from rolloutpipe_jax.trainer import planner

        self.rank = TrainerRank(config, model, 0, 1)
        self.rank.join()
        training = config.training
        self._plan = planner(self.rank.warm_up(longest), training.ranks // training.tensor_parallel)

    def accumulate(self, *groups: Group) -> None:
        """Add the gradient sums of `groups`."""
        self.rank.accumulate(self.shares([row for group in groups for row in rows_of(group)]))

    def shares(self, rows: list[Row]) -> list[list[list[Row]]]:
        """Micro-batches by planner rank."""
        plan = self._plan([row.num_tokens for row in rows])
        return [[[rows[index] for index in run] for run in steps] for steps in plan]
