"""A Ray cluster of several nodes on this machine, in a process of its own (`test_placing`): prints what it found as JSON.

The GPUs of its nodes are not there: Ray counts them, and nobody uses them.
"""

import asyncio
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path

import psutil

from rolloutpipe_torch.cluster import nodes_at, prepare_node, start_ray, stop_ray

prepare_node()

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from common.config import Config  # noqa: E402
from common.errors import ConfigError, TrainerDiedError  # noqa: E402
from common.ranks import Ranks  # noqa: E402
from rolloutpipe_torch import placing as placing_module  # noqa: E402
from rolloutpipe_torch.placing import Placing  # noqa: E402
from tests.listeners import listening  # noqa: E402

ROLL, TRAIN = {"labels": {"pool": "roll"}}, {"labels": {"pool": "train"}, "resource": "fast"}
ROLL_NODE = {"num_cpus": 2, "num_gpus": 8, "labels": {"pool": "roll"}}
TRAIN_NODE = {"num_cpus": 2, "num_gpus": 2, "labels": {"pool": "train"}, "resources": {"fast": 2}}
# Ray's own would notice the death of a node after 15 s.
HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}


class Tiny:
    def where(self):
        return ray.get_runtime_context().get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES", "")


def start(options):
    return ray.remote(Tiny).options(**options).remote()


def where(actors):
    """[(label of its node, number of GPUs that it sees)]"""
    names = {node["NodeID"]: node["Labels"].get("pool", "head") for node in ray.nodes()}
    found = ray.get([actor.where.remote() for actor in actors], timeout=60)
    return [(names[node], len(gpus.split(","))) for node, gpus in found]


def who_holds_what_is_asked_for(config):
    """Ray cannot place it, although no node is too small."""
    holder = start({"num_gpus": 1, "label_selector": TRAIN["labels"]})
    where([holder])
    placing_module._RESERVE_S = 1.0
    try:
        Placing(config)
    except ConfigError as error:
        return str(error)
    finally:
        placing_module._RESERVE_S = 20.0
        ray.kill(holder)


def listens():
    """Addresses on which a process of this scenario listens."""
    return sorted({address for _, address in listening(psutil.Process())})


def told(nodes):
    """What placing asks of nodes, in one order."""
    return sorted(([node[name] for name in ("NodeID", "Alive", "Labels", "Resources")] for node in nodes), key=str)


async def a_node_dies(cluster, node, config, placing, logs):
    """Ranks on `node`, which dies; another one comes while they start again."""
    ranks = Ranks("planted_room", config, logs, logs, num_processes=2, options=placing.rank_options)
    await ranks.join(60)
    found = {"met": await ranks.call("met"), "listens": listens()}
    watch, begin = asyncio.ensure_future(ranks.watch()), time.monotonic()
    cluster.remove_node(node, allow_graceful=False)
    try:
        await asyncio.wait_for(watch, 60)
    except TrainerDiedError as error:
        found |= {"died": str(error), "seen_s": time.monotonic() - begin}
    again = asyncio.ensure_future(ranks.restart())
    await asyncio.sleep(0.5)
    cluster.add_node(wait=False, **TRAIN_NODE)
    await again
    found |= {"who": await ranks.call("who"), "restarted_s": time.monotonic() - begin}
    ranks.close()
    return found


def main(logs):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": HEALTH})
    train = cluster.add_node(**TRAIN_NODE)
    cluster.add_node(**ROLL_NODE)
    config = Config(
        model={"path": "m"},
        rollout={"replicas": 4, "tensor_parallel": 2},
        training={"ranks": 2},
        cluster={"address": cluster.address, "rollout": ROLL, "trainer": TRAIN},
    )
    begin, found = time.monotonic(), {}
    start_ray(config.cluster)
    found["join_s"] = time.monotonic() - begin
    found["from_outside"] = told(nodes_at(config.cluster)) == told(ray.nodes())
    found["held"] = who_holds_what_is_asked_for(config)
    placing = Placing(config)
    found["on_gpu"] = placing.on_gpu("rollout"), placing.on_gpu("trainer")
    actors = [start(placing.engine_options(index)) for index in range(4)] + [
        start(placing.rank_options(index)) for index in (0, 1)
    ]
    found["places"] = where(actors)
    for actor in actors:
        ray.kill(actor)
    found["node"] = asyncio.run(a_node_dies(cluster, train, config, placing, logs))
    stop_ray()
    cluster.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    threading.Timer(200, lambda: os._exit(9)).start()
    try:
        main(Path(sys.argv[1]))
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(0)  # whatever of Ray is still there
