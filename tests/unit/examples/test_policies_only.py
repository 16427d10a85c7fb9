"""The smallest example and the page on it run as they stand; a bare Python reads all examples but those for vLLM and verl."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_the_code_on_the_page_runs_and_leaves_nothing_behind() -> None:
    page = (ROOT / "docs" / "policies-only.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    counts = names["queue"].snapshot()
    assert (counts.num_taken, counts.num_dropped, counts.num_missing, counts.update_index) == (8, 0, 0, 4)
    assert names["policy"].snapshot().num_groups == 0
    assert names["num_done"] == dict.fromkeys(range(8), 4)


def test_every_link_on_the_page_leads_somewhere() -> None:
    page = ROOT / "docs" / "policies-only.md"
    links = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert len(links) > 5
    assert [link for link in links if not (page.parent / link).is_file()] == []
