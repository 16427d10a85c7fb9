"""Where the spool lies: a directory of the run's own, gone with the run, also where the run was killed."""

import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from round_lab import config_of

from common import spool_place as place_module
from common.config import Config
from common.errors import ConfigError
from common.model_files import TensorLayout
from common.spool_place import planned_root, spool_bytes, spool_place

ROOT = Path(__file__).resolve().parents[3]
LAYOUT = {"w": TensorLayout((1000, 10), "float32"), "n": TensorLayout((100,), "bfloat16")}
Usage = namedtuple("Usage", "total used free")

# Holds a place, says where it is, starts a program that outlives it, and waits to be killed.
HOLD = """
import subprocess, sys, time
from pathlib import Path
from common import spool_place as place_module
from common.model_files import TensorLayout
place_module.SHARED_MEMORY = Path(sys.argv[1])
from round_lab import config_of
config = config_of(cluster={"spool_dir": sys.argv[3] or None})
with place_module.spool_place(config, Path(sys.argv[2]), {"w": TensorLayout((4,), "float32")}) as path:
    (path / "v0").mkdir()
    (path / "v0" / "weights").write_bytes(b"x" * 100)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(path, child.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for shared memory."""
    place = tmp_path / "shm"
    place.mkdir()
    monkeypatch.setattr(place_module, "SHARED_MEMORY", place)
    return place


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    place = tmp_path / "run"
    place.mkdir()
    return place


def local(spool_dir: Path | None = None, address: str = "local") -> Config:
    return config_of(cluster={"spool_dir": None if spool_dir is None else str(spool_dir), "address": address})


def test_a_local_run_has_a_directory_in_shared_memory_that_only_its_user_reads(memory: Path, run_dir: Path) -> None:
    """And it is gone afterwards, with what lies in it, also after an error."""
    with pytest.raises(RuntimeError), spool_place(local(), run_dir, LAYOUT) as path:
        assert path.parent == memory
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "v0").mkdir()
        raise RuntimeError
    assert list(memory.iterdir()) == []
    assert list(run_dir.iterdir()) == []


def test_the_planned_root_is_where_the_spool_then_lies(memory: Path, run_dir: Path, tmp_path: Path) -> None:
    """In memory, in a given directory, and on a cluster; planning makes nothing."""
    needed = 2 * spool_bytes(LAYOUT)
    given = tmp_path / "given"
    for config, expected in ((local(), memory), (local(given), given), (local(address="auto"), run_dir)):
        assert planned_root(config, run_dir, needed) == expected
        assert not given.exists() and list(memory.iterdir()) == list(run_dir.iterdir()) == []
        with spool_place(config, run_dir, LAYOUT) as path:
            assert path.parent == expected
        given.rmdir() if given.exists() else None
    assert planned_root(local(), run_dir, 2**60) == run_dir


def test_two_runs_at_once_have_two_directories_and_neither_removes_the_other(memory: Path, run_dir: Path) -> None:
    """Nor does a third start."""
    with spool_place(local(), run_dir, LAYOUT) as first, spool_place(local(), run_dir, LAYOUT) as second:
        assert first != second
        with spool_place(local(), run_dir, LAYOUT):
            assert first.is_dir()
            assert second.is_dir()
        assert len(list(memory.iterdir())) == 2


@pytest.mark.parametrize("given", [False, True], ids=["shared memory", "spool_dir"])
def test_what_a_killed_run_leaves_is_removed_by_the_next_start(memory: Path, run_dir: Path, tmp_path: Path, given: bool) -> None:
    """kill -9 of the driver, whose children may live on; while it lives, its directory stays."""
    spool_dir = tmp_path / "given" if given else None
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, memory, run_dir, spool_dir or ""],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process, process.stdout:
        left, child = process.stdout.readline().split()
        try:
            with spool_place(local(spool_dir), run_dir, LAYOUT):
                assert (Path(left) / "v0" / "weights").is_file()
            process.kill()
            process.wait(10)
            assert Path(left).is_dir()  # nobody was there to clean up
            with spool_place(local(spool_dir), run_dir, LAYOUT) as path:
                assert not Path(left).exists()
                assert list(path.parent.iterdir()) == [path]
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_another_host_in_a_shared_spool_dir_is_left_alone(run_dir: Path, tmp_path: Path) -> None:
    """Its locks may not be seen from here; and so is whatever else lies there."""
    others = [tmp_path / "given" / name for name in (f"rolloutpipe-{os.getuid()}-elsewhere@x", "mine")]
    for other in others:
        other.mkdir(parents=True)
    with spool_place(local(tmp_path / "given"), run_dir, LAYOUT):
        pass
    assert all(other.is_dir() for other in others)


def test_a_link_is_not_followed(memory: Path, run_dir: Path, tmp_path: Path) -> None:
    """Shared memory can be written by everyone: a link there must not lead a start to remove something else."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    (memory / f"rolloutpipe-{os.getuid()}-link").symlink_to(precious)
    with spool_place(local(), run_dir, LAYOUT) as path:
        assert path.parent == memory
    assert (precious / "file").is_file()


def test_full_shared_memory_sends_the_spool_to_the_run_directory(
    memory: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two spools must take at most half of what is free."""
    needed = 2 * 2 * spool_bytes(LAYOUT)
    assert needed == 4 * (40_000 + 200)
    for free, where in ((needed - 1, run_dir), (needed, memory)):
        monkeypatch.setattr(shutil, "disk_usage", lambda place, free=free: Usage(free, 0, free))
        with spool_place(local(), run_dir, LAYOUT) as path:
            assert path.parent == where
    assert list(run_dir.iterdir()) == []


def test_little_memory_sends_it_there_too(memory: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in shared memory takes the machine's memory, whatever the limit of the file system says."""
    monkeypatch.setattr(place_module.psutil, "virtual_memory", lambda: namedtuple("M", "available")(1000))
    with spool_place(local(), run_dir, LAYOUT) as path:
        assert path == run_dir / "spool"


def test_no_shared_memory_or_one_that_cannot_be_written_does_as_well(
    memory: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers may come without it."""

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(place_module.tempfile, "mkdtemp", refuse)
    with spool_place(local(), run_dir, LAYOUT) as path:
        assert path == run_dir / "spool"
    memory.rmdir()
    with spool_place(local(), run_dir, LAYOUT) as path:
        assert path == run_dir / "spool"


def test_on_a_cluster_it_lies_in_the_run_directory_and_old_spools_there_go(memory: Path, run_dir: Path) -> None:
    """Other nodes do not see this machine's memory."""
    (run_dir / "spool" / "v7").mkdir(parents=True)
    with spool_place(local(address="auto"), run_dir, LAYOUT) as path:
        assert path == run_dir / "spool"
        assert list(path.iterdir()) == []
    assert list(memory.iterdir()) == []


def test_a_spool_dir_that_cannot_serve_is_refused(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, with the cause."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^cluster.spool_dir: must be a directory .*\(.*\)$"):
        spool_place(local(tmp_path / "file"), run_dir, LAYOUT).__enter__()
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(10, 0, 10))
    with pytest.raises(ConfigError, match=r"^cluster.spool_dir: must have 8.04e-05 GB free, for 2 spools"):
        spool_place(local(tmp_path / "given"), run_dir, LAYOUT).__enter__()


@pytest.mark.parametrize("is_open", [False, True], ids=["before it is opened", "after"])
def test_a_directory_that_is_removed_before_it_is_locked_is_made_anew(
    memory: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """Another start may come in between, and takes what is not locked yet for something that was left."""
    made: list[Path] = []
    lock = place_module._lock

    def interfere(path: Path) -> int | None:
        made.append(path)
        if len(made) == 1:
            other = lock(path)
            shutil.rmtree(path)
            assert other is not None
            if is_open:
                return other
            os.close(other)
        return lock(path)

    monkeypatch.setattr(place_module, "_lock", interfere)
    with spool_place(local(), run_dir, LAYOUT) as path:
        assert path == made[1]
        assert path.is_dir()
