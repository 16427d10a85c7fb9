"""An address at which no cluster of ours answers, told in one line. No cluster runs."""

import importlib
import json
import socket
import sys
import threading
import time

import pytest
import ray
from rich.console import Console

from common.config import Config
from common.config_cluster import ClusterConfig
from common.errors import ConfigError
from common.launch import check_cluster
from common.rundir import plan_run_dir
from rolloutpipe_torch import cluster


def refused(address, told):
    with pytest.raises(ConfigError, match=told) as caught:
        cluster.start_ray(ClusterConfig(address=address))
    assert "\n" not in str(caught.value)
    assert not ray.is_initialized()


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    """As in a process in which no other test has started Ray; and none that runs elsewhere on this machine is found."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail(f"Ray was started with {options}"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_port_that_nobody_listens_on():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    rule = rf"^cluster\.address: must be that of a Ray cluster that runs \(Connection refused\), got '127\.0\.0\.1:{port}'; "
    refused(f"127.0.0.1:{port}", rule + "start one with `ray start --head")


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_host_that_can_be_none(host):
    refused(f"{host}:6379", rf"^cluster\.address: must be that of a Ray cluster that runs \(.*\), got '{host}:6379'; start one")


def test_one_that_listens_and_says_nothing(monkeypatch, capfd):
    monkeypatch.setattr(cluster, "_ANSWER_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        refused(
            f"127.0.0.1:{server.getsockname()[1]}",
            r"\(what listens there does not answer as Ray within 3 s, or this machine is too busy to ask\)",
        )
    assert capfd.readouterr() == ("", "")


def test_a_name_that_no_server_tells_of(monkeypatch):
    """The look-up has no deadline of its own."""
    monkeypatch.setattr(cluster, "_ANSWER_S", 0.2)
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait(60) and [])
    try:
        refused("head.example.org:6379", r"\(it could not be reached within 0\.2 s\), got 'head\.example\.org:6379'")
    finally:
        answered.set()


def test_one_deadline_holds_for_all_parts(monkeypatch):
    """Each gets what those before have left, the start of the process that asks included."""
    clock, given = [100.0], []

    def reach(*_):
        clock[0] += 3.0
        return socket.socket()

    def look_up():
        clock[0] += 4.0
        return "127.0.0.1:1"

    def wait(probe, timeout):
        given.append(timeout)
        raise cluster.subprocess.TimeoutExpired("", timeout)

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(cluster, "_find", look_up)
    monkeypatch.setattr(socket, "create_connection", reach)
    monkeypatch.setattr(cluster.subprocess.Popen, "communicate", wait)
    refused("auto", r"does not answer as Ray within 8 s")
    assert given == [1.0] and cluster._ANSWER_S < 10


def answering(monkeypatch, answer):
    """Something listens; `answer` is what the process does that asks it."""
    monkeypatch.setattr(cluster, "_PROBE", answer)
    return socket.create_server(("127.0.0.1", 0))


def told(versions, nodes=()):
    """The process that asks has found these."""
    return f"print({json.dumps(versions)!r})\nprint({json.dumps(list(nodes))!r})"


@pytest.mark.parametrize("versions", [["1.0.0", None], [None, "3.8.1"]])
def test_versions_that_differ(monkeypatch, versions):
    python = ".".join(map(str, sys.version_info[:3]))
    theirs = [versions[0] or ray.__version__, versions[1] or python]
    with answering(monkeypatch, f"print('{json.dumps(theirs)}')\nimport nowhere") as server:  # whose nodes it cannot read
        refused(
            f"127.0.0.1:{server.getsockname()[1]}",
            rf"^cluster\.address: must be a cluster of Ray {ray.__version__} and Python {python}, as here, "
            rf"got 'Ray {theirs[0]} and Python {theirs[1]} at .*; install the same versions",
        )


def test_a_question_that_could_not_be_asked_says_why(monkeypatch):
    with answering(monkeypatch, "import nowhere") as server:
        refused(
            f"127.0.0.1:{server.getsockname()[1]}",
            r"\(asking it failed with ModuleNotFoundError: No module named 'nowhere'\)",
        )


def test_a_cluster_that_this_machine_is_no_node_of(monkeypatch):
    def fail(**_):
        raise RuntimeError("no node\nhere")

    mine = [ray.__version__, ".".join(map(str, sys.version_info[:3]))]
    with answering(monkeypatch, told(mine)) as server:
        monkeypatch.setattr(ray, "init", fail)
        monkeypatch.setattr(ray, "shutdown", lambda: None)
        refused(f"127.0.0.1:{server.getsockname()[1]}", r"a cluster that this machine is a node of \(no node here\)")


def test_the_environment_counts_with_auto_alone(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    refused("auto", r"got '127\.0\.0\.1:1'")
    for other in ("ray://h:1", "h:\uff11"):
        monkeypatch.setenv("RAY_ADDRESS", other)
        refused("auto", rf"^RAY_ADDRESS: must be host:port, got '{other}'")
    started = []
    monkeypatch.setattr(ray, "init", lambda **options: started.append(options["address"]))
    cluster.start_ray(ClusterConfig())
    assert started == ["local"]


NODES = [
    {"NodeID": "a", "Alive": True, "Labels": {"pool": "roll"}, "Resources": {"GPU": 2.0, "CPU": 8.0}},
    {"NodeID": "b", "Alive": False, "Labels": {"pool": "train"}, "Resources": {"GPU": 8.0, "CPU": 8.0}},
]
ROLL, DEAD = {"labels": {"pool": "roll"}}, {"labels": {"pool": "train"}}


@pytest.mark.parametrize(
    ("places", "pools", "expected"),
    [
        ((ROLL, DEAD), ("rollout", "trainer"), r"^cluster\.trainer: must name labels .* of a node .*\(it has pool=roll\)"),
        (({"resource": "slot"}, ROLL), ("rollout", "trainer"), r"^cluster\.rollout: must name labels or a resource of a node"),
        ((ROLL, ROLL), ("rollout", "trainer"), r"^cluster: must have the 4 GPUs .*, got '2'"),
        ((ROLL, DEAD), ("rollout",), None),  # of an evaluation
    ],
)
def test_nodes_that_are_not_there_are_missed_before_anything_is_joined_or_made(monkeypatch, places, pools, expected):
    mine = [ray.__version__, ".".join(map(str, sys.version_info[:3]))]
    with answering(monkeypatch, told(mine, NODES)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        where = {"address": address, "rollout": places[0], "trainer": places[1]}
        config = Config(model={"path": "m"}, cluster=where, rollout={"replicas": 2}, training={"ranks": 2})
        if expected is None:
            check_cluster(config, pools)
            return
        with pytest.raises(ConfigError, match=expected):
            check_cluster(config, pools)


@pytest.mark.parametrize("command", ["train", "eval"])
def test_the_commands_ask_first(monkeypatch, tmp_path, command):
    """Before a model is looked for, a row of data is read, or a directory is made."""

    def missing(config, pools=("rollout", "trainer")):
        raise ConfigError(f"no node for {' and '.join(pools)}")

    config = Config(model={"path": "m"}, run_dir=str(tmp_path / "run"))
    module = importlib.import_module(f"common.commands.{command}")
    monkeypatch.setattr(module, "check_cluster", missing)
    with pytest.raises(ConfigError, match=r"rollout and trainer$" if command == "train" else r"no node for rollout$"):
        if command == "train":
            module.train(config, plan_run_dir(config), Console(quiet=True))
        else:
            module.evaluate(config, None, tmp_path / "run", Console(quiet=True))
    assert list(tmp_path.iterdir()) == []
