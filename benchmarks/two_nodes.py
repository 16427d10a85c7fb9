"""Two real Ray nodes on this machine run the quickstart with pools apart; one dies mid-round, and another one comes.

    head (nothing runs there) + node "rollout" (the engine) + node "trainer" (two FSDP2 ranks), found by label

The driver is a command of its own that joins the cluster by its address. Exits 1 where the run does not finish, a group is
lost or trained twice, a process runs on the wrong node, a fault is not told, or one listens on more than the loopback address.

    python benchmarks/two_nodes.py [--rounds 4] [--kill rollout] [trainer=jax ...]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from shared import ROOT, Marks, where

from common.report.groups import read_groups
from common.timeline import Event, read_timeline
from rolloutpipe_torch.cluster import prepare_node

prepare_node()

from ray.cluster_utils import Cluster  # noqa: E402

NODES = {name: {"num_cpus": 2, "labels": {"pool": name}} for name in ("trainer", "rollout")}
ACTORS = {"trainer": {"RankProcess"}, "rollout": {"VllmEngine"}}  # that must be on the node, and on no other one
# The head notices a dead node within seconds; Ray's own values take 15 (docs/cluster.md).
HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
_LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
_LIMIT_S, _AWAY_S = 900, 3.0


def main(rounds: int, kill: str, overrides: list[str]) -> None:
    """Run, kill, add, check."""
    print(where())
    marks = Marks()
    with tempfile.TemporaryDirectory(prefix="two-nodes-") as folder:
        run_dir = Path(folder) / "run"
        head = {"num_cpus": 1, "include_dashboard": False, "_system_config": HEALTH}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            nodes = {name: cluster.add_node(**settings) for name, settings in NODES.items()}
            driver = start_driver(cluster.address, run_dir, rounds, overrides)
            listens: set[str] = set()
            wait_for_responses(driver, run_dir / "timeline.jsonl", at_round=1, listens=listens)
            check_nodes(marks, nodes)
            killed_s = time.monotonic()
            cluster.remove_node(nodes[kill], allow_graceful=False)
            print(f"killed the {kill} node in round 1; another one comes {_AWAY_S:g} s later", flush=True)
            time.sleep(_AWAY_S)
            nodes[kill] = cluster.add_node(wait=False, **NODES[kill])
            wait_for_responses(driver, run_dir / "timeline.jsonl", at_round=2, listens=listens)
            check_nodes(marks, nodes)
            status = driver.wait(timeout=_LIMIT_S)
            print(f"the run ended with {status}, {time.monotonic() - killed_s:.1f} s after the kill")
            check(marks, run_dir, rounds, status, kill)
            marks.check("addresses listened on", " ".join(sorted(listens)), "loopback alone", listens <= _LOOPBACK)
        finally:
            cluster.shutdown()
    marks.end()


def check_nodes(marks: Marks, nodes: dict[str, Any]) -> None:
    """That each pool's processes are children of its own node, and of no other one."""
    for name, node in nodes.items():
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        titles = {child.cmdline()[0].partition("::")[2].partition(".")[0] for child in raylet.children() if child.cmdline()}
        found = titles & set().union(*ACTORS.values())
        marks.check(f"on node {name}", " ".join(sorted(found)), " ".join(ACTORS[name]), found == ACTORS[name])


def start_driver(address: str, run_dir: Path, rounds: int, overrides: list[str]) -> "subprocess.Popen[bytes]":
    """`rolloutpipe train` of the quickstart on that cluster."""
    settings = [
        f"cluster.address={address}",
        "cluster.rollout.labels={pool: rollout}",
        "cluster.trainer.labels={pool: trainer}",
        f"rounds={rounds}",
        f"run_dir={run_dir}",
        "checkpoint.every=1",
    ]
    command = [sys.executable, "-m", "common.cli", "train", "configs/quickstart.yaml", *settings, *overrides]
    return subprocess.Popen(command, cwd=ROOT)


def wait_for_responses(driver: "subprocess.Popen[bytes]", timeline: Path, *, at_round: int, listens: set[str]) -> None:
    """Until some responses of this round are in; what the processes listen on goes to `listens`."""
    end_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < end_s and driver.poll() is None:
        listens |= listening()
        events = list(read_timeline(timeline)) if timeline.exists() else []
        if sum(event["kind"] == "response" and event.get("round") == at_round for event in events) >= 20:
            return
        time.sleep(0.2)
    raise SystemExit(f"round {at_round} was not reached (exit status {driver.poll()})")


def listening() -> set[str]:
    """Addresses on which this process, the cluster's, the driver and all that they started listen."""
    me, found = psutil.Process(), set()
    for process in [me, *me.children(recursive=True)]:
        try:
            found |= {each.laddr.ip for each in process.net_connections() if each.status == psutil.CONN_LISTEN}
        except psutil.Error:  # it has just ended
            continue
    return found


def check(marks: Marks, run_dir: Path, rounds: int, status: int, kill: str) -> None:
    """Print each figure beside its mark."""
    marks.check("exit status", str(status), "0", status == 0)
    events = list(read_timeline(run_dir / "timeline.jsonl"))
    ended = [event for event in events if event["kind"] == "round_end"]
    marks.check("rounds finished", str(len(ended)), str(rounds), len(ended) == rounds)
    _check_groups(marks, run_dir, events)
    faults, recovered = of(events, "fault"), of(events, "recovered")
    for event in [*faults, *recovered]:
        print("       ", json.dumps(event)[:400])
    part = {"rollout": "engine-", "trainer": "trainer"}[kill]
    named = bool(faults) and all(event["part"].startswith(part) for event in faults)
    marks.check("faults told", str(len(faults)), f"at least 1, all of {part}", named)
    slowest = max((event["t"] - event["start"] for event in recovered), default=float("nan"))
    marks.check("recovered after", f"{slowest:.1f} s", "it did", bool(recovered))


def _check_groups(marks: Marks, run_dir: Path, events: list[Event]) -> None:
    stored = [each.group for path in sorted((run_dir / "groups").glob("round-*.jsonl")) for each in read_groups(path)]
    twice = [name for name, count in Counter(group.group_id for group in stored).items() if count > 1]
    marks.check("groups stored", str(len(stored)), "each once", bool(stored) and not twice)
    trained = Counter(event["group"] for event in lasting(events))
    again = [name for name, count in trained.items() if count > 1]
    expected = {group.group_id for group in stored if group.filtered is None}
    marks.check(
        "groups trained", str(len(trained)), f"the {len(expected)} trainable, once", not again and set(trained) == expected
    )
    mixed = [group.group_id for group in stored for sample in group.samples if _versions(sample) != {group.weight_version}]
    marks.check("groups of mixed versions", str(len(mixed)), "0", not mixed)


def lasting(events: list[Event]) -> list[Event]:
    """Accumulated groups whose effect was not undone by the trainer's going back to a checkpoint."""
    found: list[Event] = []
    ended: set[int] = set()
    for event in events:
        if event["kind"] == "compute" and event.get("phase") == "accumulate":
            found.append(event)
        elif event["kind"] == "round_end":
            ended.add(event["round"])
        elif event["kind"] == "recovered" and event["part"] == "trainer":  # with checkpoint.every=1: to the last round's end
            found = [each for each in found if each["round"] in ended]
    return found


def _versions(sample: Any) -> set[int]:
    return {sample.response.version_start, sample.response.version_end}


def of(events: list[Event], kind: str) -> list[Event]:
    """Those of one kind."""
    return [event for event in events if event["kind"] == kind]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="pools on two Ray nodes of this machine, of which one dies")
    parser.add_argument("--rounds", type=int, default=4, help="at least 3")
    parser.add_argument("--kill", choices=sorted(NODES), default="rollout")
    parser.add_argument("overrides", nargs="*", help="key=value of the configuration")
    arguments = parser.parse_args()
    main(arguments.rounds, arguments.kill, arguments.overrides)
