"""The smallest example runs as it stands, and every example but those made for vLLM and verl is read by a bare Python."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_policies_only_runs_in_a_bare_python_and_balances_its_books() -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "examples" / "policies_only.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    trained = [line for line in lines if "rewards" in line]
    steps = [line for line in lines if line.endswith("step")]
    last = re.fullmatch(r"(\d+) groups trained, (\d+) dropped, (\d+) updates", lines[-1])
    assert last is not None
    assert len(trained) == int(last[1])
    assert len(steps) == int(last[3])
    assert int(last[1]) + int(last[2]) == 6


@pytest.mark.parametrize("name", ["gate_openai_server", "frontier_gate", "slime_generate", "trl_rollout_func"])
def test_example_is_imported_by_a_bare_python(name: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import examples.{name}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
