"""The processes of one run: started, watched for what they reach, struck, and looked for when all is over."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from chaos import moments
from chaos.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
END_S = 45.0  # after the driver: until Ray's own processes have noticed, also one that was just being started


class Home:
    """The directory of a run, and the environment of its processes, by which they are known."""

    def __init__(self, path: Path, scenario: Scenario) -> None:
        self.path, self.run_dir = path, path / "run"
        for name in ("pids", "counts"):
            (path / name).mkdir(parents=True)
        (path / "plan.json").write_text(json.dumps([asdict(strike) for strike in scenario.strikes]))
        python_path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
        self.environment = {**os.environ, moments.HOME: str(path), "PYTHONPATH": python_path, "CHAOS_PLANT": scenario.plant}
        if scenario.is_real:
            self.environment["CHAOS_REAL"] = "yes"

    def start(self, arguments: list[str], output: Path) -> subprocess.Popen[bytes]:
        """A Python module in a session of its own."""
        with output.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-u", "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.path,
                start_new_session=True,
            )

    def left(self) -> list[psutil.Process]:
        """Processes of this run, wherever they stand in the tree."""
        return moments.marked(str(self.path))

    def wait_for_none(self, besides: tuple[int, ...] = ()) -> list[str]:
        """What is still there when time is up."""
        deadline = time.monotonic() + END_S
        while True:
            left = [process for process in self.left() if process.pid not in besides]
            if not left or time.monotonic() > deadline:
                return [_describe(process) for process in left]
            time.sleep(0.1)

    def kill_left(self) -> None:
        """At the end of a run that failed."""
        for process in self.left():
            try:
                process.kill()
            except psutil.Error:
                continue


class Watcher:
    """Carries out the strikes that wait for their delay. `strike_node` is for nodes."""

    def __init__(self, home: Home, strike_node: Callable[[dict[str, Any]], None]) -> None:
        self._home, self._strike_node = home, strike_node
        self._num_read = 0
        self._due: list[dict[str, Any]] = []

    def look(self) -> None:
        """Call often."""
        path = self._home.path / "reached.jsonl"
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
            lines = [line for line in lines if line.endswith("\n")]
            self._due += [json.loads(line) for line in lines[self._num_read :]]
            self._num_read = len(lines)
        now = time.time()
        for strike in [each for each in self._due if each["wall_s"] + each["delay_s"] <= now]:
            self._due.remove(strike)
            if strike["target"].endswith("-node"):
                self._strike_node(strike)
            else:
                kill(self._home, strike)


def kill(home: Home, strike: dict[str, Any]) -> bool:
    """From this process, in the home of another."""
    os.environ[moments.HOME] = str(home.path)
    return moments.kill(strike)


def dump_stacks(process: subprocess.Popen[bytes]) -> None:
    """Of a driver that hangs: it writes them where `common.stacks` says."""
    process.send_signal(signal.SIGUSR1)
    time.sleep(2)


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:90]}"
    except psutil.Error:
        return str(process.pid)
