"""Where a run's spool lies: a directory of the run's own, in memory where two spools of the model fit there with room to spare.

    cluster.spool_dir    where it is set: a directory that all nodes see
    shared memory        of a local run: a publish then writes and reads no disk
    the run directory    else

A process that is killed cleans up nothing, and memory must not stay taken for ever. So each directory outside the run's is
locked by its run for as long as that lives (the system frees a lock with the process that had it), and every start removes
those that nobody holds.
"""

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path

import psutil

from common.config import Config
from common.errors import ConfigError, explain
from common.model_files import TensorLayout

SHARED_MEMORY = Path("/dev/shm")
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
NUM_SPOOLS = 2  # the one that engines serve, and the next one while it is written
_SPARE = 2  # what must be free, in multiples of what the spools take
_GB = 1e9


@contextmanager
def spool_place(config: Config, run_dir: Path, layout: Mapping[str, TensorLayout]) -> Iterator[Path]:
    """A directory for the spools of `run_dir`'s run, empty, for the time of the block.

    Raises ConfigError where `cluster.spool_dir` cannot be used.
    """
    needed = NUM_SPOOLS * spool_bytes(layout)
    in_run_dir = run_dir / "spool"
    shutil.rmtree(in_run_dir, ignore_errors=True)  # of a driver that was killed; no two runs share a run directory
    place: tuple[Path, int] | None = None
    if config.cluster.spool_dir is not None:
        place = _given(config.cluster.spool_dir, needed)
    elif config.cluster.is_local:
        place = _in_memory(needed)
    path, lock = place or (in_run_dir, None)
    path.mkdir(exist_ok=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def planned_root(config: Config, run_dir: Path, needed: int) -> Path:
    """What `spool_place` will choose for spools of `needed` bytes in all, when only the present room is known; nothing is made.

    As there, what killed runs have left is removed first.
    """
    given = config.cluster.spool_dir
    if given is not None:
        with suppress(OSError, ValueError):  # told by `spool_place`
            _remove_left(Path(given), _host_prefix())
        return Path(given)
    return SHARED_MEMORY if config.cluster.is_local and _has_memory(needed) else run_dir


def spool_bytes(layout: Mapping[str, TensorLayout]) -> int:
    """Of one spool with these tensors; headers and manifest are nothing beside them."""
    return sum(prod(tensor.shape) * _BYTES.get(tensor.dtype, 4) for tensor in layout.values())


def _in_memory(needed: int) -> tuple[Path, int] | None:
    """None where it has too little room, or cannot be used."""
    try:
        return _held_in(SHARED_MEMORY, _prefix()) if _has_memory(needed) else None
    except OSError:
        return None


def _has_memory(needed: int) -> bool:
    try:
        _remove_left(SHARED_MEMORY, _prefix())  # first: what they take may be the room that is wanting
        free = min(shutil.disk_usage(SHARED_MEMORY).free, psutil.virtual_memory().available)  # it counts against both
        return free >= _SPARE * needed
    except OSError:
        return False


def _given(spool_dir: str, needed: int) -> tuple[Path, int]:
    field, place = "cluster.spool_dir", Path(spool_dir)
    try:
        place.mkdir(parents=True, exist_ok=True)
        prefix = _host_prefix()
        _remove_left(place, prefix)
        free = shutil.disk_usage(place).free
        if free >= needed:
            return _held_in(place, prefix)
    except (OSError, ValueError) as error:
        rule = "must be a directory that can be written and locked"
        cause = getattr(error, "strerror", None) or error
        raise ConfigError(explain(field, rule, spool_dir, f"choose another place ({cause})")) from error
    rule = f"must have {needed / _GB:.3g} GB free, for {NUM_SPOOLS} spools (it has {free / _GB:.3g} GB)"
    raise ConfigError(explain(field, rule, spool_dir, "make room, or choose another place"))


def _prefix(host: str = "") -> str:
    return f"rolloutpipe-{os.getuid()}-{host}"


def _host_prefix() -> str:
    """A lock may not be seen from another host, so each removes its own."""
    return _prefix(f"{socket.gethostname()}@")


def _held_in(place: Path, prefix: str) -> tuple[Path, int]:
    """A new directory there, and the handle that locks it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        lock = _lock(path)
        if lock is not None and path.exists():
            return path, lock
        if lock is not None:  # between its making and its locking another start took it for one that was left
            os.close(lock)


def _remove_left(place: Path, prefix: str) -> None:
    for path in place.glob(f"{prefix}*"):
        lock = None if path.is_symlink() else _lock(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _lock(path: Path) -> int | None:
    """The handle of a directory that is now ours alone; None where another has it, or it is gone, or no directory of ours."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        os.close(handle)
        raise
    return handle
