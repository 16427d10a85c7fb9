"""Two trainers side by side: the same groups from the same weights, update by update, compared tensor by tensor.

    both(config, model_dir, longest) -> (torch side, JAX side)
    compare(torch side, JAX side, updates) -> one `Comparison` an update

Each side is the shipped driver (`common.trainer.GroupTrainer`) over one `TrainerRank` in this process, so that plans,
denominators and learning rates are those of a run. Gradients are compared before each step, parameters after it. Neither side
ever sees the other's values: what differs after the first step has grown from what differed before it.

Rooms are imported where they are used: `common` needs no framework to be imported.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from common.batching import Plan, plan_micro_batches
from common.config import Config
from common.config_errors import validate
from common.errors import TrainerError
from common.records import Group
from common.trainer import GroupTrainer, check_advantages

Tensors = Mapping[str, NDArray[Any]]


class Rank(Protocol):
    """What a comparison asks of a `TrainerRank`, beside what the driver does. Arrays by Hugging Face name, in that layout."""

    def gradients(self) -> Tensors:
        """The gradient sums of the open update; a tensor without gradient may be missing."""
        ...

    def weights(self) -> Tensors:
        """The master weights."""
        ...


class LocalRanks:
    """A `common.trainer.RankSet` of one rank in this process."""

    def __init__(self, rank: Any) -> None:
        self._rank = rank
        self._is_closed = False

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Its answer."""
        return [getattr(self._rank, method)(*args)]

    async def scatter(self, method: str, shares: Sequence[Any], *args: Any) -> list[Any]:
        """All shares go to the one rank."""
        return getattr(self._rank, method)(list(shares), *args) or []

    async def call_in_background(self, method: str, *args: Any) -> list[Any]:
        """There is no background here."""
        return await self.call(method, *args)

    async def watch(self) -> None:
        """It lives as long as this process."""
        await asyncio.get_running_loop().create_future()

    async def restart(self) -> None:
        """There is no process to start."""
        raise TrainerError("a rank in this process cannot be restarted")

    def close(self) -> None:
        """Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._rank.close()


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two trainers."""

    trainer: GroupTrainer
    rank: Rank


@dataclass(frozen=True, slots=True)
class Update:
    """Groups of one optimizer step."""

    groups: tuple[Group, ...]
    starts_round: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest relative L2 difference of two sides' tensors, |a - b| / |a|, and which tensor has it."""

    rel_l2: float = 0.0
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One update on both sides."""

    update: int  # from 1
    losses: tuple[float, float]  # torch, JAX
    grad_norms: tuple[float, float]  # before clipping
    gradients: Difference  # of the sums, before the step
    params: Difference  # after the step
    mean_advantage: float  # mean |advantage| of the update's samples, the unit in which losses are compared
    sampler_gap: float  # largest difference of torch's log-probs, before the step, from those that the groups came with

    @property
    def loss_gap(self) -> float:
        """Of the losses, in mean absolute advantages."""
        return abs(self.losses[0] - self.losses[1]) / self.mean_advantage if self.mean_advantage else 0.0


def cut(rounds: Iterable[Sequence[Group]], groups_per_update: int) -> Iterator[Update]:
    """The updates of these rounds, in order; the last of a round may be short (rule 5)."""
    for groups in rounds:
        for start in range(0, len(groups), groups_per_update):
            yield Update(tuple(groups[start : start + groups_per_update]), starts_round=start == 0)


def longest_sequence(updates: Iterable[Update]) -> int:
    """Tokens of the longest prompt and response."""
    samples = [sample for update in updates for group in update.groups for sample in group.samples]
    return max(len(sample.request.prompt_ids) + sample.num_tokens for sample in samples)


def torch_config(config: Config) -> Config:
    """For a single rank of the torch trainer, whatever the mesh."""
    return _with(config, trainer="torch", training={"ranks": 1, "tensor_parallel": 1, "attention": None})


def jax_config(config: Config) -> Config:
    """For the JAX trainer, on the mesh of `config`."""
    return _with(config, trainer="jax", training={})


def _with(config: Config, *, training: dict[str, Any], **settings: Any) -> Config:
    data = config.model_dump(mode="json")
    return validate(Config, {**data, **settings, "training": {**data["training"], **training}})


def set_up_jax(config: Config) -> None:
    """The devices of this process, once, before JAX is used. Raises ConfigError where there are too few."""
    importlib.import_module("rolloutpipe_jax.devices").set_up_devices(jax_config(config).training)


@contextmanager
def both(config: Config, model_dir: Path, longest: int) -> Iterator[tuple[Side, Side]]:
    """Both trainers, torch first, from `model_dir`, for sequences of up to `longest` tokens; JAX's devices are set up."""
    check_advantages(config)
    with _torch_side(torch_config(config), model_dir) as one, _jax_side(jax_config(config), model_dir, longest) as other:
        yield one, other


@contextmanager
def _torch_side(config: Config, model_dir: Path) -> Iterator[Side]:
    rank = importlib.import_module("rolloutpipe_torch.rank").TrainerRank(config, model_dir, 0, 1)
    rank.join(rank.listen())

    def plan(lengths: Sequence[int]) -> Plan:
        return plan_micro_batches(lengths, config.training.micro_batch_tokens, 1)

    yield from _side(config, rank, plan)


@contextmanager
def _jax_side(config: Config, model_dir: Path, longest: int) -> Iterator[Side]:
    rank = importlib.import_module("rolloutpipe_jax.rank").TrainerRank(config, model_dir, 0, 1)
    rank.join()
    planner = importlib.import_module("rolloutpipe_jax.trainer").planner
    training = config.training
    yield from _side(config, rank, planner(rank.fit(longest), training.ranks // training.tensor_parallel))


def _side(config: Config, rank: Any, plan: Any) -> Iterator[Side]:
    ranks = LocalRanks(rank)
    try:
        yield Side(GroupTrainer(config, ranks, plan), rank)
    finally:
        ranks.close()


async def compare(one: Side, other: Side, updates: Iterable[Update]) -> AsyncIterator[Comparison]:
    """Train both on `updates`, one at a time; differences are relative to `one`. Raises TrainerError for a broken gradient."""
    for number, update in enumerate(updates, start=1):
        for side in (one, other):
            await _accumulate(side, update)
        gradients = difference(one.rank.gradients(), other.rank.gradients())
        results = [await side.trainer.finish_update() for side in (one, other)]
        advantages = [abs(sample.advantage) for group in update.groups for sample in group.samples]
        yield Comparison(
            update=number,
            losses=(results[0].loss, results[1].loss),
            grad_norms=(results[0].grad_norm, results[1].grad_norm),
            gradients=gradients,
            params=difference(one.rank.weights(), other.rank.weights()),
            mean_advantage=sum(advantages) / len(advantages),
            sampler_gap=results[0].metrics["logprob_gap_max"],
        )


async def _accumulate(side: Side, update: Update) -> None:
    """Group by group, as in a run."""
    if update.starts_round:
        await side.trainer.begin_round()
    await side.trainer.begin_update()
    for group in update.groups:
        await side.trainer.accumulate([group])


def difference(ones: Tensors, others: Tensors) -> Difference:
    """The largest over all tensors; one that a side lacks counts as zeros there, and what is not finite as infinitely far."""
    found = [Difference(_rel_l2(ones.get(name), others.get(name)), name) for name in sorted(ones.keys() | others.keys())]
    return max(found, key=lambda each: each.rel_l2, default=Difference())


def _rel_l2(one: NDArray[Any] | None, other: NDArray[Any] | None) -> float:
    one, other = (np.zeros(()) if array is None else np.asarray(array, np.float64) for array in (one, other))
    distance, size = float(np.linalg.norm(one - other)), float(np.linalg.norm(one))
    if distance == 0.0:
        return 0.0
    return distance / size if np.isfinite(distance) and size > 0.0 else float("inf")
