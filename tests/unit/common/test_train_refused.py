"""`train` that is refused: for room only where something will lie, and without a run directory left behind."""

import io
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from round_lab import config_of

from common import spool_place
from common.commands import train as module
from common.errors import ConfigError, DataError, DiskError, EngineError, RunError
from common.plan_given import Given
from common.run_parts import RunResult
from common.rundir import RunDir, plan_run_dir

# A checkpoint of 12 MB, a model of 4, a spool of 8.
GIVEN = Given(model="m", num_params=10**6, model_bytes=4 * 10**6, shape=None, workload=None, longest_prompt=8, max_model_len=64)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Train in `tmp_path/run` with a launch that does as told, without model, data or Ray."""
    prepared = SimpleNamespace(workload=SimpleNamespace(content_hash="c0ffee"), model_dir=tmp_path, layout={})
    monkeypatch.setattr(module, "prepare", lambda *_: prepared)
    monkeypatch.setattr(module, "of_prepared", lambda _: GIVEN)
    monkeypatch.setattr(module, "model_identity", lambda _: "m")
    monkeypatch.setattr(module, "ray_running", lambda *_: nullcontext())
    monkeypatch.setattr(module, "check_cluster", lambda *_: None)

    def run(error: Exception, *, log: str = "", console: Console | None = None, **settings: Any) -> Path:
        def launched(config: Any, prepared: Any, run_dir: RunDir, timeline: Any) -> Any:
            if log:
                (run_dir.logs / log).write_text("of a process")
            raise error

        monkeypatch.setattr(module, "launched", launched)
        config = config_of(run_dir=str(tmp_path / "run"), **settings)
        with pytest.raises((ConfigError, RunError)) as caught:
            module.train(config, plan_run_dir(config), console or Console(quiet=True))
        assert str(error) in str(caught.value)
        return tmp_path / "run"

    return run


SHORTFALL = ConfigError("cluster.rollout: asks for 4 GPUs")


def test_a_run_that_is_refused_before_it_begins_leaves_nothing(start: Any) -> None:
    assert not start(SHORTFALL).exists()


def test_a_directory_that_was_there_stays_with_what_was_in_it_and_can_be_used_again(start: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    for _ in range(2):
        assert (start(SHORTFALL) / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(("error", "log"), [(SHORTFALL, "rank-0.log"), (EngineError("it died"), "")])
def test_a_run_that_has_begun_or_failed_keeps_its_directory(start: Any, error: Exception, log: str) -> None:
    run_dir = start(error, log=log)
    assert (run_dir / "config.yaml").is_file() and (run_dir / "logs" / "driver.log").is_file()


def test_room_for_the_spool_is_asked_for_where_it_will_lie(start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 MB are enough for checkpoint and model, not for the spool too: refused where that lies in the run directory alone."""
    memory = tmp_path / "shm"
    memory.mkdir()
    monkeypatch.setattr(spool_place, "SHARED_MEMORY", memory)
    monkeypatch.setattr("common.disk_space._device", lambda path: path == memory)
    monkeypatch.setattr(
        shutil,
        "disk_usage",
        lambda path: shutil._ntuple_diskusage(10**12, 0, 10**9 if path == memory else 20 * 10**6),  # type: ignore[attr-defined]
    )
    start(SHORTFALL)
    with pytest.raises(AssertionError, match="run_dir: must have 24"):
        start(SHORTFALL, cluster={"address": "auto"})


def failing(error: Exception) -> Callable[[Path], Path]:
    def fail(path: Path) -> Path:
        raise error

    return fail


BROKEN_REPORT = (("trace.json", "write_trace", "report.html"), ("report.html", "write_report", "trace.json"))


@pytest.mark.parametrize(("name", "writer", "other"), BROKEN_REPORT)
@pytest.mark.parametrize("fault", [KeyError("start"), DiskError("the disk\nis full"), DataError("groups: line 3")])
def test_reports_that_cannot_be_written_do_not_hide_the_error_of_the_run(
    start: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    writer: str,
    other: str,
    fault: Exception,
) -> None:
    monkeypatch.setattr(module, writer, failing(fault))
    said = io.StringIO()
    run_dir = start(EngineError("it died"), console=Console(file=said))
    assert (run_dir / other).is_file() and not (run_dir / name).exists()
    cause = f"{type(fault).__name__}: {' '.join(str(fault).split())}"
    assert said.getvalue().splitlines()[-1] == f"{name} was not written: {cause}"


@pytest.mark.parametrize(("name", "writer", "other"), BROKEN_REPORT)
def test_a_run_that_succeeded_does_so_without_its_reports(
    start: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    writer: str,
    other: str,
    tmp_path: Path,
) -> None:
    async def run(*_: Any) -> RunResult:
        return RunResult(schedule="fgd", rounds=[], weight_version=3, final_weights_sha256="c0ffee")

    monkeypatch.setattr(module, "_run", run)
    monkeypatch.setattr(module, writer, failing(KeyError("start")))
    config = config_of(run_dir=str(tmp_path / "run"))
    out = io.StringIO()
    assert module.train(config, plan_run_dir(config), Console(file=out)).weight_version == 3
    said = out.getvalue()
    assert said.count(f"{name} was not written: KeyError: 'start'\n") == 1 and (tmp_path / "run" / other).is_file()
    assert (f"report: {tmp_path / 'run' / 'report.html'}" in said) == (name != "report.html")
