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
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services, worker

from common.config_cluster import ClusterConfig, is_host_and_port
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
_ANSWER_S = 8.0  # for all that is asked of a cluster before it is joined: look-up, connection, start of the process that asks
_CONNECT_S = 2.0  # of these for one of the addresses that a name may have
# In a process of its own: Ray's client waits for 80 s for what is no Ray, writes of it, and cannot be told otherwise.
# Versions, null where the cluster does not say; then the nodes as `ray.nodes`, without joining.
_PROBE = """
import json, sys
from ray._common.usage.usage_lib import get_cluster_metadata
from ray._private.state import GlobalState
from ray._raylet import GcsClient, GcsClientOptions
client = GcsClient(address=sys.argv[1])
found = get_cluster_metadata(client)
print(json.dumps(found and [found["ray_version"], found["python_version"]]), flush=True)
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
        if not is_host_and_port(given):
            raise ConfigError(explain("RAY_ADDRESS", "must be host:port", given, "for example 10.0.0.5:6379"))
        return given
    try:
        return str(services.canonicalize_bootstrap_address_or_die("auto"))
    except (ConnectionError, ValueError) as error:
        raise _no_answer("auto", "there is none on this machine, and RAY_ADDRESS is not set") from error


def check_answers(cluster: ClusterConfig) -> str:
    """host:port of the cluster. Raises ConfigError within 10 s where no Ray answers there, or one that does not fit this one."""
    return _ask(cluster)[0]


def nodes_at(cluster: ClusterConfig) -> list[dict[str, Any]]:
    """The nodes of the cluster, as `ray.nodes` tells them to who has joined. Raises ConfigError as `check_answers`."""
    return _ask(cluster)[1]


def _ask(cluster: ClusterConfig) -> tuple[str, list[dict[str, Any]]]:
    """host:port and nodes of the cluster. One deadline holds for all parts together."""
    end_s = time.monotonic() + _ANSWER_S
    found = _find() if cluster.address == "auto" else cluster.address
    _reach(found, end_s)
    returncode, lines, errors = _probe(found, end_s)
    versions: list[str] | None = json.loads(lines[0]) if lines else None
    mine = [ray.__version__, ".".join(map(str, sys.version_info[:3]))]
    if versions is not None and versions != mine:
        rule = f"must be a cluster of Ray {mine[0]} and Python {mine[1]}, as here"
        theirs = f"Ray {versions[0]} and Python {versions[1]} at {found}"
        raise ConfigError(explain("cluster.address", rule, theirs, "install the same versions on all nodes"))
    if returncode:
        last = (errors.strip().splitlines() or [f"exit status {returncode}"])[-1]
        raise _no_answer(found, f"asking it failed with {last}")
    nodes: list[dict[str, Any]] = json.loads(lines[1])
    return found, nodes


def _reach(found: str, end_s: float) -> None:
    """Raises ConfigError where nothing listens there."""
    host, _, port = found.rpartition(":")
    errors: list[Exception] = []

    def connect() -> None:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        except (OSError, UnicodeError) as error:  # of a host name that cannot be one
            errors.append(error)

    thread = threading.Thread(target=connect, daemon=True)  # a name server that is silent has no deadline that could be set
    thread.start()
    thread.join(_left_s(end_s))
    if thread.is_alive():
        raise _no_answer(found, f"it could not be reached within {_ANSWER_S:g} s")
    for error in errors:
        raise _no_answer(found, getattr(error, "strerror", None) or str(error) or type(error).__name__) from error


def _probe(found: str, end_s: float) -> tuple[int, list[str], str]:
    """Exit status, lines and errors of the process that asks. Raises ConfigError."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _PROBE, found], stdout=pipe, stderr=pipe) as probe:
        try:
            printed, errors = probe.communicate(timeout=_left_s(end_s))
        except subprocess.TimeoutExpired as error:
            why = f"what listens there does not answer as Ray within {_ANSWER_S:g} s, or this machine is too busy to ask"
            raise _no_answer(found, why) from error
        finally:
            probe.kill()
    return probe.returncode, printed.decode(errors="replace").splitlines(), errors.decode(errors="replace")


def _left_s(end_s: float) -> float:
    return max(0.0, end_s - time.monotonic())


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
