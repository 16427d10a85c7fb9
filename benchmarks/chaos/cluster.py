"""A Ray cluster of three nodes in a process of its own: the driver's, one for rollout, one for the trainer.

    python -m chaos.cluster OUTPUT        reads lines: kill rollout, kill trainer; ends with its input

Writes `{"address": ...}` to OUTPUT when it is up. A node is killed with kill -9 of its raylet and of all that it has started;
another one like it is added right away.
"""

import json
import logging
import sys
from pathlib import Path

import psutil

from rolloutpipe_torch.cluster import prepare_node

_STORE_BYTES = 100 * 2**20
# Ray's own would notice the death of a node after 15 s.
_HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}


def main() -> None:
    """Until stdin is closed."""
    prepare_node()
    from ray.cluster_utils import Cluster

    logging.getLogger().setLevel(logging.ERROR)
    output = Path(sys.argv[1])
    head = {"num_cpus": 2, "object_store_memory": _STORE_BYTES, "include_dashboard": False, "_system_config": _HEALTH}
    cluster = Cluster(initialize_head=True, head_node_args=head)

    def add(kind: str) -> object:
        return cluster.add_node(num_cpus=2, resources={kind: 8}, object_store_memory=_STORE_BYTES)

    nodes = {kind: add(kind) for kind in ("rollout", "trainer")}
    _tell(output, {"address": cluster.address})
    for line in sys.stdin:
        command, kind = line.split()
        assert command == "kill"
        kill(nodes[kind])
        cluster.remove_node(nodes[kind], allow_graceful=False)
        nodes[kind] = add(kind)
        _tell(output, {"address": cluster.address, "added": kind})
    cluster.shutdown()


def kill(node: object) -> None:
    """Its raylet and everything below it."""
    for info in [info for infos in node.all_processes.values() for info in infos]:  # type: ignore[attr-defined]
        try:
            process = psutil.Process(info.process.pid)
            victims = [process, *process.children(recursive=True)]
        except psutil.Error:
            continue
        for victim in victims:
            try:
                victim.kill()
            except psutil.Error:
                continue


def _tell(output: Path, value: dict[str, str]) -> None:
    partial = output.with_suffix(".partial")
    partial.write_text(json.dumps(value))
    partial.replace(output)


if __name__ == "__main__":
    main()
