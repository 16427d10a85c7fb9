"""What is missing on a cluster, told before anything starts. The nodes are as `ray.nodes` tells them; Ray does not run."""

import pytest

from common.config import Config
from common.errors import ConfigError
from rolloutpipe_torch import placing

ROLL, TRAIN = {"labels": {"pool": "roll"}}, {"labels": {"pool": "train"}}
PAPER = {"rollout": {"replicas": 8}, "training": {"ranks": 2}}


def node(name, pool=None, **resources):
    labels = {"ray.io/node-id": name, **({"pool": pool} if pool else {})}
    return {"NodeID": name, "Alive": True, "Labels": labels, "Resources": {"memory": 1e9, f"node:{name}": 1.0, **resources}}


A100S, RTX4090S = node("a", "train", GPU=2.0, CPU=16.0), node("b", "roll", GPU=8.0, CPU=32.0)
BOTH = [A100S, RTX4090S]


def check(nodes, places=(ROLL, TRAIN), **settings):
    cluster = {"address": "h:6379", "rollout": places[0], "trainer": places[1]}
    config = Config(model={"path": "m"}, cluster=cluster, **settings)
    demands = {pool: placing.demand_of(config, pool, nodes) for pool in placing.POOLS}
    placing.check_demands(list(demands.values()), nodes)
    return demands["rollout"], demands["trainer"]


def test_the_pools_of_the_paper_fit():
    rollout, trainer = check(BOTH, **PAPER)
    assert (rollout.count, rollout.bundle) == (8, {"GPU": 1.0})
    assert (trainer.count, trainer.bundle) == (2, {"GPU": 1.0})
    rollout, trainer = check(BOTH, ({}, {}), **PAPER)  # ten GPUs, wherever they are
    assert (rollout.count, trainer.count) == (8, 2)


def test_a_replica_takes_its_gpus_in_one_bundle_and_the_jax_trainer_all_of_its_own():
    nodes = [A100S, node("b", "roll", GPU=8.0, slot=2.0)]
    rollout = {"replicas": 2, "tensor_parallel": 4}
    places = ({**ROLL, "resource": "slot"}, TRAIN)
    rollout, trainer = check(nodes, places, trainer="jax", rollout=rollout, training={"ranks": 2})
    assert (rollout.count, rollout.bundle) == (2, {"GPU": 4.0, "slot": 1.0})
    assert (trainer.count, trainer.bundle) == (1, {"GPU": 2.0})


def test_pools_without_gpus_are_counted_in_cores():
    nodes = [node("a", "train", CPU=2.0), node("b", "roll", CPU=4.0)]
    rollout, trainer = check(nodes, rollout={"replicas": 2, "threads": 2}, training={"ranks": 2, "threads": 1})
    assert (rollout.count, rollout.bundle) == (2, {"CPU": 2.0})
    assert (trainer.count, trainer.bundle) == (2, {"CPU": 1.0})


GPUS = {"rollout": {"replicas": 2}, "training": {"ranks": 2}}
SMALL = [A100S, node("b", "roll", GPU=2.0)]
SPLIT = [A100S, node("b", "roll", GPU=3.0), node("c", "roll", GPU=3.0)]


@pytest.mark.parametrize(
    ("nodes", "places", "settings", "told"),
    [
        (
            SMALL,
            (ROLL, TRAIN),
            {"rollout": {"replicas": 2, "tensor_parallel": 2}, "training": {"ranks": 2}},
            r"^cluster\.rollout: asks for 4 GPUs on nodes with label pool=roll, the cluster must have them, got '2'; "
            r"add nodes, or lower rollout\.replicas$",
        ),
        (
            BOTH,
            (ROLL, TRAIN),
            {**GPUS, "training": {"ranks": 3}},
            r"^cluster\.trainer: asks for 3 GPUs .*got '2'.*training\.ranks$",
        ),
        (
            BOTH,
            ({"labels": {"pool": "rolls"}}, TRAIN),
            GPUS,
            r"^cluster\.rollout: must name labels or a resource of a node of the cluster \(it has pool=roll, pool=train\), "
            r"got \{'labels': \{'pool': 'rolls'\}\}; start a node",
        ),
        (
            [A100S, node("b", GPU=8.0, fast=1.0, Slot=1.0, bundle_group_0_aa=1.0)],
            ({"resource": "slow"}, TRAIN),
            GPUS,
            r"^cluster\.rollout: .*\(it has Slot, fast, pool=train\).*'slow'",
        ),
        (
            SMALL,
            (ROLL, TRAIN),
            {**GPUS, "rollout": {"replicas": 1, "tensor_parallel": 4}},
            r"^cluster\.rollout: asks for 4 GPUs .*got '2'; add nodes, or lower rollout\.tensor_parallel$",
        ),
        (
            [node("a", GPU=2.0)],
            ({}, {}),
            {"rollout": {"replicas": 1}, "training": {"ranks": 2}},
            r"^cluster: must have the 3 GPUs .*got '2'; add nodes, or lower training\.ranks$",
        ),
        (
            [node("a", GPU=1.0)],
            ({}, {}),
            {"rollout": {"replicas": 1}, "training": {"ranks": 1}},
            r"^cluster: must have the 2 GPUs .*got '1'; add nodes$",
        ),
        (
            [node("a", GPU=1.0)],
            ({}, {}),
            {"rollout": {"replicas": 1}, "training": {"ranks": 1}, "trainer": "jax"},
            r"^cluster: must have the 2 GPUs .*got '1'; add nodes$",
        ),
        (
            [node("a", "roll", GPU=1.0), node("b", "roll", GPU=1.0), A100S],
            (ROLL, TRAIN),
            {**GPUS, "rollout": {"replicas": 1, "tensor_parallel": 2}},
            r"^rollout\.tensor_parallel: must be at most the 1 GPU of one node with label pool=roll, got 2; use 1$",
        ),
        (
            SPLIT,
            (ROLL, TRAIN),
            {**GPUS, "rollout": {"replicas": 1, "tensor_parallel": 4}},
            r"^rollout\.tensor_parallel: must be at most the 3 GPUs of one node with label pool=roll, got 4; use 3$",
        ),
        (
            SPLIT,
            (ROLL, TRAIN),
            {**GPUS, "rollout": {"replicas": 3, "tensor_parallel": 2}},
            r"^rollout\.replicas: must be at most the 2 that nodes with label pool=roll have room for, at 2 GPUs each",
        ),
        (
            [A100S, node("b", "roll", GPU=8.0, slot=1.0)],
            ({"resource": "slot"}, TRAIN),
            GPUS,
            r"^rollout\.replicas: must be at most the 1 that nodes with resource slot have room for, "
            r"at 1 GPU, 1 slot each within one node",
        ),
        (
            SPLIT,
            (ROLL, TRAIN),
            {**GPUS, "trainer": "jax", "training": {"ranks": 3}},
            r"^cluster\.trainer: asks for 3 GPUs",
        ),
        (
            [node("a", GPU=2.0), node("b", GPU=2.0)],
            ({}, {}),
            {"trainer": "jax", "rollout": {"replicas": 1}, "training": {"ranks": 3}},
            r"^training\.ranks: must be at most the 2 GPUs of one node, got 3; use 2$",
        ),
        (
            [RTX4090S],
            ({}, {}),
            PAPER,
            r"^cluster: must have the 10 GPUs that the pools ask for together \(8 for rollout and 2 for trainer\), got '8'",
        ),
        (
            [node("a", CPU=2.0)],
            ({}, {}),
            {"rollout": {"replicas": 1, "threads": 1}, "training": {"ranks": 2, "threads": 1}},
            r"^cluster: must have the 3 CPU cores that the pools ask for together",
        ),
    ],
)
def test_what_is_missing_is_named(nodes, places, settings, told):
    with pytest.raises(ConfigError, match=told):
        check(nodes, places, **settings)


def test_an_engine_beyond_the_replicas_stays_on_the_nodes_of_its_pool(monkeypatch):
    """It has no bundle of the placement group, which only reserves for `rollout.replicas`; labels and resource still hold."""
    monkeypatch.setattr(placing.ray, "nodes", lambda: [A100S, node("b", "roll", GPU=8.0, slot=8.0)])
    monkeypatch.setattr(placing, "_reserve", lambda demand: demand.pool)
    cluster = {"address": "h:6379", "rollout": {**ROLL, "resource": "slot"}, "trainer": TRAIN}
    placed = placing.Placing(Config(model={"path": "m"}, cluster=cluster, **GPUS))
    inside, beyond = placed.engine_options(1), placed.engine_options(2)
    assert inside["scheduling_strategy"].placement_group_bundle_index == 1 and "label_selector" not in inside
    assert beyond["label_selector"] == {"pool": "roll"} and "scheduling_strategy" not in beyond
    assert inside["resources"] == beyond["resources"] == {"slot": 1} and beyond["num_gpus"] == 1
