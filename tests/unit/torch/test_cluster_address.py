"""An address at which no cluster of ours answers, told in one line. No cluster runs."""

import json
import socket
import sys

import pytest
import ray

from common.config_cluster import ClusterConfig
from common.errors import ConfigError
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
        refused(f"127.0.0.1:{server.getsockname()[1]}", r"\(what listens there does not answer as Ray within 3 s\)")
    assert capfd.readouterr() == ("", "")


def answering(monkeypatch, answer):
    """Something listens; `answer` is what the process prints that asks it."""
    monkeypatch.setattr(cluster, "_PROBE", f"print('asking', flush=True)\n{answer}")
    return socket.create_server(("127.0.0.1", 0))


@pytest.mark.parametrize("versions", [["1.0.0", None], [None, "3.8.1"]])
def test_versions_that_differ(monkeypatch, versions):
    python = ".".join(map(str, sys.version_info[:3]))
    theirs = [versions[0] or ray.__version__, versions[1] or python]
    with answering(monkeypatch, f"print('{json.dumps(theirs)}')") as server:
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
    with answering(monkeypatch, f"print('{json.dumps(mine)}')") as server:
        monkeypatch.setattr(ray, "init", fail)
        monkeypatch.setattr(ray, "shutdown", lambda: None)
        refused(f"127.0.0.1:{server.getsockname()[1]}", r"a cluster that this machine is a node of \(no node here\)")


def test_the_environment_counts_with_auto_alone(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    refused("auto", r"got '127\.0\.0\.1:1'")
    monkeypatch.setenv("RAY_ADDRESS", "ray://h:1")
    refused("auto", r"^RAY_ADDRESS: must be host:port, got 'ray://h:1'")
    started = []
    monkeypatch.setattr(ray, "init", lambda **options: started.append(options["address"]))
    cluster.start_ray(ClusterConfig())
    assert started == ["local"]
