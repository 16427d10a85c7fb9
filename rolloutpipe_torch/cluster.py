"""Ray's life in this process: a node of our own on this machine, quiet, listening on the loopback address alone; or a cluster.

A cluster is joined where the configuration says so (`cluster.address`). Its nodes run this version of Ray and Python, and must
see the run directory and the model. `RAY_ADDRESS` counts with `auto` alone.
"""

import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services, worker

from common.config_cluster import ClusterConfig
from common.errors import ConfigError, explain

# The caller's own values win.
_ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # actors without GPUs keep the caller's CUDA_VISIBLE_DEVICES
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_task_events_report_interval_ms": "0",  # else the cluster's store keeps a record of every call, and grows with the rounds
    "RAY_worker_niceness": "0",  # the actors are the run itself: at Ray's 15 any other program would starve them
    # Without this, Ray turns the loopback address into an outside one and its servers listen on all interfaces.
    # Whatever its name says, it works on Linux too; read when `ray` is imported, so it is set here for the children only.
    ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0",
}
_OBJECT_STORE_BYTES = 256 * 2**20  # weights go through the spool; only samples and results pass here
_CONNECT_S, _ANSWER_S = 2.0, 6.0
# In a process of its own: Ray's client waits for 80 s for what is no Ray, writes of it, and cannot be told otherwise.
_PROBE = """
import json, sys
from ray._common.usage.usage_lib import get_cluster_metadata
from ray._raylet import GcsClient
print("asking", flush=True)
client = GcsClient(address=sys.argv[1])
found = get_cluster_metadata(client)
print(json.dumps(found and [found["ray_version"], found["python_version"]]))
"""
# As `ray.nodes`, without joining.
_NODES_PROBE = """
import json, sys
from ray._private.state import GlobalState
from ray._raylet import GcsClientOptions
print("asking", flush=True)
state = GlobalState()
options = GcsClientOptions.create(sys.argv[1], None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
state._initialize_global_state(options)
print(json.dumps([{name: node[name] for name in ("NodeID", "Alive", "Labels", "Resources")} for node in state.node_table()]))
"""


def start_ray(cluster: ClusterConfig | None = None) -> None:
    """Start or join Ray; where it runs in this process already, nothing. A node of our own ends with this process.

    Raises ConfigError within seconds where no cluster answers at `cluster.address`, or one of other versions.
    """
    if ray.is_initialized():
        return
    cluster = cluster or ClusterConfig()
    _share_import_path()
    worker.print_to_stdstream = _say_nothing
    if cluster.is_local:
        _start_node()
    else:
        _join(check_answers(cluster))


def _start_node() -> None:
    prepare_node()
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=_OBJECT_STORE_BYTES,
    )


def prepare_node() -> None:
    """Settings of a Ray node that this process starts, for it and its children: loopback only, quiet."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    ray_constants.ENABLE_RAY_CLUSTER = False  # the same in this process, where `ray` is imported already


def _join(found: str) -> None:
    if _is_loopback(found):  # else Ray would look for it on an outside address of this machine
        prepare_node()
    try:
        ray.init(address=found, log_to_driver=False, logging_level=logging.CRITICAL)
    except (RuntimeError, ConnectionError, ValueError, OSError) as error:
        ray.shutdown()
        cause = " ".join(str(error).split())[:300]
        rule = f"must be a cluster that this machine is a node of ({cause})"
        raise ConfigError(explain("cluster.address", rule, found, f"run `ray start --address={found}` here")) from error


def _is_loopback(address: str) -> bool:
    """Whether host:port is one that no other machine reaches."""
    return address.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]")


def _find() -> str:
    """host:port that `auto` means."""
    given = os.environ.get("RAY_ADDRESS", "")
    if given not in ("", "auto"):
        host, _, port = given.rpartition(":")
        if "/" in given or not (host and port.isdigit()):
            raise ConfigError(explain("RAY_ADDRESS", "must be host:port", given, "for example 10.0.0.5:6379"))
        return given
    try:
        return str(services.canonicalize_bootstrap_address_or_die("auto"))
    except (ConnectionError, ValueError) as error:
        raise _no_answer("auto", "there is none on this machine, and RAY_ADDRESS is not set") from error


def check_answers(cluster: ClusterConfig) -> str:
    """host:port of the cluster. Raises ConfigError within 10 s where no Ray answers there, or one that does not fit this one."""
    found = _find() if cluster.address == "auto" else cluster.address
    _check_versions(found)
    return found


def _check_versions(found: str) -> None:
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, UnicodeError) as error:  # of a host name that cannot be one
        raise _no_answer(found, getattr(error, "strerror", None) or str(error) or type(error).__name__) from error
    versions: list[str] | None = _ask(found, _PROBE)  # None where it does not say
    mine = [ray.__version__, ".".join(map(str, sys.version_info[:3]))]
    if versions is not None and versions != mine:
        rule = f"must be a cluster of Ray {mine[0]} and Python {mine[1]}, as here"
        theirs = f"Ray {versions[0]} and Python {versions[1]} at {found}"
        raise ConfigError(explain("cluster.address", rule, theirs, "install the same versions on all nodes"))


def nodes_at(found: str) -> list[dict[str, Any]]:
    """The nodes of the cluster at host:port, as `ray.nodes` tells them to who has joined. Raises ConfigError."""
    nodes: list[dict[str, Any]] = _ask(found, _NODES_PROBE)
    return nodes


def _ask(found: str, probe_code: str) -> Any:
    """What this probe says of the cluster there. Raises ConfigError."""
    pipe = subprocess.PIPE
    # Unbuffered, so that the line read first takes nothing from what `communicate` reads.
    with subprocess.Popen([sys.executable, "-c", probe_code, found], stdout=pipe, stderr=pipe, bufsize=0) as probe:
        assert probe.stdout is not None
        probe.stdout.readline()  # the time that a busy machine takes to start it does not count
        try:
            printed, errors = probe.communicate(timeout=_ANSWER_S)
        except subprocess.TimeoutExpired as error:
            raise _no_answer(found, f"what listens there does not answer as Ray within {_ANSWER_S:g} s") from error
        finally:
            probe.kill()
    if probe.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or [f"exit status {probe.returncode}"]
        raise _no_answer(found, f"asking it failed with {lines[-1]}")
    return json.loads(printed.splitlines()[-1])


def _no_answer(address: str, why: str) -> ConfigError:
    remedy = "start one with `ray start --head --port=6379` and further nodes with `ray start --address=HOST:6379`"
    return ConfigError(explain("cluster.address", f"must be that of a Ray cluster that runs ({why})", address, remedy))


def _say_nothing(*_: object, **__: object) -> None:
    """Ray's page-long reports of a dead actor: the trainer and the pool tell its name and log in one line."""


def _share_import_path() -> None:
    # Workers inherit the environment, not this process's sys.path; needed where the project runs without being installed.
    root = str(Path(__file__).resolve().parents[1])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])


def stop_ray() -> None:
    """End all actors and a node of our own; idempotent."""
    ray.shutdown()
