"""What the benchmarks that run the command line share."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("ROLLOUTPIPE_TEST_DATA") or ROOT.parent / "shared" / "data")  # real files of the workloads


def where() -> str:
    """Commit and hardware, for the head of a table."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    model = next(
        (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.processor() or "unknown CPU",
    )
    return f"commit {commit.stdout.strip() or 'unknown'}, {os.cpu_count()} cores of {model}, Python {platform.python_version()}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def rolloutpipe(*arguments: str) -> dict[str, Any]:
    """Run a command with `--json` and return what it wrote; its own output passes through. Exits where it fails."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        command = [sys.executable, "-m", "common.cli", *arguments, "--json", str(result)]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        data: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return data


class Marks:
    """Prints each figure beside its mark; `end` exits 1 where one was missed."""

    def __init__(self) -> None:
        self._is_met = True

    def check(self, name: str, value: str, mark: str, is_met: bool) -> None:
        """One line."""
        self._is_met &= is_met
        print(f"{'ok    ' if is_met else 'MISSED'}  {name}: {value} (mark: {mark})")

    def end(self) -> None:
        """Exit status: 0 where every mark was met."""
        sys.exit(0 if self._is_met else 1)
