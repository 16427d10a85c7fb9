"""A short `make chaos`: two runs with fake engines and trainer in real processes, and kill -9 of each kind of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(280)]

ROOT = Path(__file__).parents[2]


def chaos(directory: Path, *words: str) -> list[dict]:
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "chaos"),
        "--nodes",
        "no",
        "--no-compare",
        "--dir",
        str(directory / "runs"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--json", str(directory / "found.json"), *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((directory / "found.json").read_text())


@pytest.mark.parametrize(("seed", "kinds"), [(3, ("rank", "engine", "driver")), (20, ("worker", "engine", "nursery", "rank"))])
def test_nothing_is_lost_trained_twice_or_mixed_when_processes_are_killed(
    tmp_path: Path, seed: int, kinds: tuple[str, ...]
) -> None:
    """The judge computes the final weights from the journals, and finds nothing to say."""
    (found,) = chaos(tmp_path, "--seeds", str(seed), "--kinds", ",".join(kinds))
    assert found["findings"] == []
    assert {strike["target"] for strike in found["strikes"]} == set(kinds)
    assert found["num_starts"] == 1 + kinds.count("driver")
