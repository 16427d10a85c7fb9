"""Where engines and trainer ranks of a run live: on this machine, or on the nodes of a Ray cluster.

On a cluster each pool is a Ray placement group. A bundle is what one process takes and lies within one node: an engine's
`tensor_parallel` GPUs, a torch rank's one, all of the JAX trainer; CPU cores (`threads`) where no node of the pool has a GPU.
Ray reserves the bundles before anything starts, and moves those of a node that dies to another one when there is room.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from common.config import Config
from common.config_cluster import PlaceConfig, is_rays_own
from common.errors import ConfigError, explain
from common.ranks import local_options
from rolloutpipe_torch.room import has_gpus

PoolName = Literal["rollout", "trainer"]
POOLS: tuple[PoolName, ...] = ("rollout", "trainer")
_RESERVE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a pool asks for: `count` processes, each with `bundle` on one node that is in `place`."""

    pool: PoolName
    place: PlaceConfig
    count: int
    bundle: dict[str, float]  # Ray resource -> amount
    counts: str  # the settings that the number of processes comes from
    size: str  # and the one that a bundle's size comes from

    @property
    def unit(self) -> str:
        """The resource that is counted."""
        return "GPU" if "GPU" in self.bundle else "CPU"

    @property
    def needed(self) -> float:
        """Of the unit, by all processes."""
        return self.count * self.bundle[self.unit]

    @property
    def lower(self) -> str:
        """The setting that makes it less; "" where there is none."""
        if self.count > 1:
            return self.counts
        return self.size if self.bundle[self.unit] > 1 else ""

    def fits(self, resources: dict[str, float]) -> int:
        """Processes that a node of so much has room for."""
        return int(min(resources.get(name, 0.0) // amount for name, amount in self.bundle.items()))


class Placing:
    """Places the processes of `pools`; Ray must run. On a cluster, raises ConfigError that names what is missing."""

    def __init__(self, config: Config, pools: Sequence[PoolName] = POOLS) -> None:
        self._config = config
        self._groups: dict[PoolName, PlacementGroup] = {}
        self._demands: dict[PoolName, Demand] = {}
        if config.cluster.is_local:
            return
        nodes = [node for node in ray.nodes() if node["Alive"]]
        self._demands = demands_of(config, pools, nodes)
        try:
            # The pool that fewer nodes will do for chooses first.
            for demand in sorted(self._demands.values(), key=lambda each: len(nodes_of(each.place, nodes))):
                self._groups[demand.pool] = _reserve(demand)
        except BaseException:
            self.close()
            raise

    def on_gpu(self, pool: PoolName) -> bool:
        """Whether the pool's processes get GPUs."""
        return self._demands[pool].unit == "GPU" if pool in self._demands else has_gpus()

    def engine_options(self, index: int) -> dict[str, Any]:
        """Ray's options of engine `index`; one beyond `rollout.replicas` takes what is free on the pool's nodes."""
        return self._options("rollout", index, self._config.rollout.tensor_parallel)

    def rank_options(self, process: int) -> dict[str, Any]:
        """Ray's options of the trainer's process."""
        return self._options("trainer", process, self._config.training.ranks if self._config.trainer == "jax" else 1)

    def close(self) -> None:
        """Give the places back; idempotent."""
        if ray.is_initialized():
            for group in self._groups.values():
                remove_placement_group(group)
        self._groups = {}

    def _options(self, pool: PoolName, index: int, num_gpus: int) -> dict[str, Any]:
        options = local_options(num_gpus if self.on_gpu(pool) else 0)
        if pool not in self._demands:
            return options
        demand = self._demands[pool]
        if demand.place.resource is not None:
            options["resources"] = {demand.place.resource: 1}
        if index < demand.count:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._groups[pool], index)
        elif demand.place.labels:
            options["label_selector"] = demand.place.labels
        return options


def demands_of(config: Config, pools: Sequence[PoolName], nodes: Sequence[dict[str, Any]]) -> dict[PoolName, Demand]:
    """What the pools ask for of these nodes, the living ones of a cluster. Raises ConfigError where they lack something of it."""
    demands = {pool: demand_of(config, pool, nodes) for pool in pools}
    check_demands(list(demands.values()), nodes)
    return demands


def demand_of(config: Config, pool: PoolName, nodes: Sequence[dict[str, Any]]) -> Demand:
    """What `pool` asks for of these nodes (as `ray.nodes` tells them)."""
    place: PlaceConfig = getattr(config.cluster, pool)
    on_gpu = any(node["Resources"].get("GPU") for node in nodes_of(place, nodes))
    training, rollout = config.training, config.rollout
    if pool == "rollout":
        count, gpus, threads = rollout.replicas, rollout.tensor_parallel, rollout.threads
        counts, size = "rollout.replicas", "rollout.tensor_parallel" if on_gpu else "rollout.threads"
    elif config.trainer == "jax":  # one process drives all devices
        count, gpus, threads = 1, training.ranks, training.threads
        counts, size = "training.ranks", "training.ranks" if on_gpu else "training.threads"
    else:
        count, gpus, threads = training.ranks, 1, training.threads
        counts, size = "training.ranks", "training.ranks" if on_gpu else "training.threads"
    bundle = {"GPU": float(gpus)} if on_gpu else {"CPU": float(threads)}
    if place.resource is not None:
        bundle[place.resource] = 1.0
    return Demand(pool=pool, place=place, count=count, bundle=bundle, counts=counts, size=size)


def nodes_of(place: PlaceConfig, nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that have its labels and its resource."""
    return [
        node
        for node in nodes
        if place.labels.items() <= node["Labels"].items() and (place.resource is None or node["Resources"].get(place.resource))
    ]


def check_demands(demands: Sequence[Demand], nodes: Sequence[dict[str, Any]]) -> None:
    """Raises ConfigError for the first thing that these nodes lack, whatever else runs on them."""
    for demand in demands:
        candidates = nodes_of(demand.place, nodes)
        if not candidates:
            raise _no_node(demand, nodes)
        _check_room(demand, [node["Resources"] for node in candidates])
    for unit in ("GPU", "CPU"):
        mine = [demand for demand in demands if demand.unit == unit]
        together = {node["NodeID"]: node["Resources"].get(unit, 0) for demand in mine for node in nodes_of(demand.place, nodes)}
        needed, there = sum(demand.needed for demand in mine), sum(together.values())
        if needed > there:
            parts = " and ".join(f"{demand.needed:g} for {demand.pool}" for demand in mine)
            rule = f"must have the {_amount(needed, unit)} that the pools ask for together ({parts})"
            raise ConfigError(explain("cluster", rule, f"{there:g}", _more_or_less(mine)))


def _check_room(demand: Demand, resources: Sequence[dict[str, float]]) -> None:
    """Raises ConfigError where nodes of these resources are too small or too few, also with nothing else on them."""
    unit, each = demand.unit, demand.bundle[demand.unit]
    where = f"cluster.{demand.pool}"
    largest, there = max(node.get(unit, 0) for node in resources), sum(node.get(unit, 0) for node in resources)
    if there < demand.needed:
        rule = f"asks for {_amount(demand.needed, unit)} on nodes{_described(demand.place)}, the cluster must have them"
        raise ConfigError(explain(where, rule, f"{there:g}", _more_or_less([demand])))
    if largest < each:
        rule = f"must be at most the {_amount(largest, unit)} of one node{_described(demand.place)}"
        raise ConfigError(explain(demand.size, rule, int(each), f"use {int(largest)}"))
    fits = sum(map(demand.fits, resources))
    if fits < demand.count:
        what = ", ".join(_amount(amount, name) for name, amount in demand.bundle.items())
        rule = f"must be at most the {fits} that nodes{_described(demand.place)} have room for, at {what} each within one node"
        raise ConfigError(explain(demand.counts, rule, demand.count, f"use {fits}, or add nodes"))


def _more_or_less(demands: Sequence[Demand]) -> str:
    """The remedy of a shortfall."""
    lower = " or ".join(demand.lower for demand in demands if demand.lower)
    return f"add nodes, or lower {lower}" if lower else "add nodes"


def _no_node(demand: Demand, nodes: Sequence[dict[str, Any]]) -> ConfigError:
    labels = {f"{name}={value}" for node in nodes for name, value in node["Labels"].items() if not name.startswith("ray.io/")}
    resources = {name for node in nodes for name in node["Resources"] if ":" not in name and not is_rays_own(name)}
    has = ", ".join(sorted(labels | resources)) or "neither labels nor resources of yours"
    asked = demand.place.model_dump(exclude_defaults=True, include={"labels", "resource"})
    rule = f"must name labels or a resource of a node of the cluster (it has {has})"
    remedy = "start a node with them: ray start --labels or --resources"
    return ConfigError(explain(f"cluster.{demand.pool}", rule, asked, remedy))


def _reserve(demand: Demand) -> PlacementGroup:
    """The placement group, when Ray has found room for all of it. Raises ConfigError where others hold it."""
    selectors = [demand.place.labels] * demand.count if demand.place.labels else None
    group = placement_group([demand.bundle] * demand.count, strategy="PACK", bundle_label_selector=selectors)
    if group.wait(_RESERVE_S):
        return group
    remove_placement_group(group)
    unit = demand.unit
    free = ray.available_resources().get(unit, 0)
    what = f"{_amount(demand.needed, unit)} on nodes{_described(demand.place)}"
    rule = f"asks for {what}, which must become free within {_RESERVE_S:g} s"
    raise ConfigError(explain(f"cluster.{demand.pool}", rule, f"{free:g} free in all", "end what else runs, or add nodes"))


def _described(place: PlaceConfig) -> str:
    parts = [f"label {name}={value}" for name, value in place.labels.items()]
    parts += [f"resource {place.resource}"] if place.resource is not None else []
    return f" with {' and '.join(parts)}" if parts else ""


def _amount(amount: float, unit: str) -> str:
    """In words: 1 GPU, 2 CPU cores, 1 slot."""
    word = {"GPU": "GPU", "CPU": "CPU core"}.get(unit)
    return f"{amount:g} {unit if word is None else word if amount == 1 else f'{word}s'}"
