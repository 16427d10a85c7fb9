"""Ctrl-C, SIGTERM and kill -9 at any moment: the command ends within 10 s, no process is left, the run directory is readable.

Slow (each case starts a run): `make proofs`.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from common import cli
from tests.integration.tiny_models import sums_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
END_S = 10.0  # the limit
RAY_S = 10.0  # after kill -9: until Ray's own processes have noticed

# What the command prints before the moment, and seconds from then on.
MOMENTS = {
    "while it imports": (None, 0.15),
    "while it checks": (None, 1.0),
    "while Ray starts": ("starting Ray", 0.5),
    "as engines start": ("starting engines", 0.0),
    "while vLLM imports": ("starting engines", 4.0),
    "while the engine loads": ("starting engines", 12.0),
    "while version 0 is published": ("publishing weight version 0", 0.1),
    "in a round": ("round 0", 0.5),
}


@dataclass
class Run:
    """A training in a session of its own, as a terminal would start it."""

    process: subprocess.Popen[str]
    mark: str  # in the environment of everything that it starts
    run_dir: Path
    output: Path

    def wait_for(self, text: str | None, seconds: float) -> None:
        deadline_s = time.monotonic() + 150
        while text is not None and text not in self.output.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline_s, self.output.read_text()
            time.sleep(0.05)
        time.sleep(seconds)

    def end(self) -> float:
        """Seconds until the command has ended."""
        start_s = time.monotonic()
        self.process.wait(timeout=60)
        return time.monotonic() - start_s

    def left(self) -> list[psutil.Process]:
        """Processes that carry the mark, wherever they stand in the tree."""
        return [process for process in psutil.process_iter() if self._is_marked(process)]

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE and process.environ().get("RUN_MARK") == self.mark
        except psutil.Error:
            return False


@pytest.fixture(scope="module", params=["torch", "jax"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("interrupts")
    settings = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    settings |= {"model": {"path": str(sums_model(root / "model", steps=1))}, "rounds": 500, "filter": "keep"}
    settings |= {"trainer": request.param, "groups_per_round": 16, "checkpoint": {"every": 1}, "limits": {}}
    (root / "config.yaml").write_text(yaml.safe_dump(settings))
    return root / "config.yaml"


@pytest.fixture
def run(config: Path, tmp_path: Path) -> Iterator[Run]:
    mark = uuid.uuid4().hex
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RUN_MARK": mark}
    command = [sys.executable, "-u", "-m", "common.cli", "train", str(config), f"run_dir={tmp_path / 'run'}"]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
        )
    found = Run(process, mark, tmp_path / "run", tmp_path / "output")
    yield found
    for left in found.left():
        left.kill()
    process.wait()


def check_readable(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """`report` works on what there is; before the run directory is made there is nothing to read."""
    if not run.run_dir.exists():
        return
    capsys.readouterr()
    assert cli.run(["report", str(run.run_dir)]) == 0, capsys.readouterr().err
    assert (run.run_dir / "report.html").stat().st_size > 1000


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_it_ends_within_10_s_leaves_nothing_and_can_be_read(
    run: Run, moment: str, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C reaches the whole foreground group, SIGTERM the command alone."""
    run.wait_for(*MOMENTS[moment])
    if number is signal.SIGINT:
        os.killpg(run.process.pid, number)
    else:
        run.process.send_signal(number)
    seconds, left = run.end(), run.left()
    said = run.output.read_text()
    assert seconds < END_S and left == [], (seconds, left, said)
    if moment != "while it imports":  # there the interpreter itself still answers
        assert "Traceback" not in said and said.splitlines()[-1].startswith("rolloutpipe: interrupted"), said
        assert run.process.returncode == 130
    check_readable(run, capsys)


def test_a_second_ctrl_c_changes_nothing(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """People press it twice."""
    run.wait_for(*MOMENTS["in a round"])
    for _ in range(3):
        os.killpg(run.process.pid, signal.SIGINT)
        time.sleep(0.3)
    assert run.end() < END_S and run.left() == []
    assert "Traceback" not in run.output.read_text()
    check_readable(run, capsys)


@pytest.mark.parametrize("moment", ["while Ray starts", "while vLLM imports", "in a round"])
def test_kill_9_of_the_command_ends_everything_soon_and_can_be_read(
    run: Run, moment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can clean up then: ranks, engines and verifiers follow their parents, Ray's own processes the driver."""
    run.wait_for(*MOMENTS[moment])
    run.process.kill()
    start_s = time.monotonic()
    run.process.wait()
    while run.left() and time.monotonic() - start_s < RAY_S:
        time.sleep(0.1)
    assert run.left() == [], [" ".join(process.cmdline())[:80] for process in run.left()]
    check_readable(run, capsys)
