"""Pools of a run on a Ray cluster of several nodes: where its processes land, and what happens when a node dies."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.listeners import LOOPBACK

pytestmark = [pytest.mark.ray, pytest.mark.slow]  # `make two-nodes`
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the scenario saw: it has a cluster and a driver of its own, as Ray allows one in a process."""
    logs = tmp_path_factory.mktemp("nodes")
    path = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "nodes_scenario.py"), str(logs)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240)
    lines = done.stdout.splitlines()
    assert lines and lines[-1].startswith("{"), done.stdout + done.stderr
    return json.loads(lines[-1])


def test_two_gpus_train_in_one_node_and_eight_sample_in_another_as_in_the_paper(found):
    assert found["on_gpu"] == [True, True]
    # Four engines of two GPUs each and two ranks of one, on nodes found by label, and by label and resource.
    assert found["places"] == [["roll", 2]] * 4 + [["train", 1]] * 2


def test_who_has_not_joined_is_told_the_same_nodes(found):
    assert found["from_outside"] is True


def test_gpus_that_others_hold_are_missed_by_name(found):
    assert found["held"].startswith(
        "cluster.trainer: asks for 2 GPUs on nodes with label pool=train and resource fast, which must"
    )


def test_ranks_on_a_node_that_dies_are_named_and_start_again_on_the_next_one(found):
    node = found["node"]
    assert node["died"].startswith("trainer rank ")
    assert node["died"].endswith(".log")
    assert " died (" in node["died"]
    assert node["who"] == [[0, 2], [1, 2]]


def test_nobody_listens_on_more_than_the_loopback_address(found):
    assert found["node"]["met"] == [["127.0.0.1", "127.0.0.1"]] * 2  # of the nodes' Ray addresses
    assert set(found["node"]["listens"]) <= LOOPBACK
    assert found["node"]["listens"]
