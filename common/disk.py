"""A disk that is full or cannot be written stops a run cleanly: DiskError, one line, and a state that can be resumed.

Where the driver writes a file of the run, it does so within `writing(path)`. Ranks and engines raise errors of their own, which
arrive as text; `disk_fault` finds what the operating system said in them. `stopped` makes of both the line that a person reads.
Files count only when they are whole: written beside their place and renamed, or lines of which a torn last one is cut off.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import DiskError, InputError

_FULL = (errno.ENOSPC, errno.EDQUOT)
# What the disk, not the program, is to blame for.
_FAULTS = {code: os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE)}


@contextmanager
def writing(path: Path | None) -> Iterator[None]:
    """Raises DiskError, which names the file and says how much is free, for every OSError of the block, or what tells of one.

    `path` None: the file that the error names.
    """
    try:
        yield
    except DiskError:
        raise
    except Exception as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else disk_fault(error)
        if cause is None:
            raise
        place = path if path is not None else getattr(error, "filename", None)
        where = "a file of the run" if place is None else str(place)
        raise DiskError(f"{where} cannot be written: {cause}{'' if place is None else free_there(Path(place))}") from error


def disk_fault(error: BaseException | None) -> str | None:
    """What the operating system said of the disk, somewhere in the causes of `error` or their texts; else None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, DiskError):
            return str(error)
        if isinstance(error, OSError) and error.errno in _FAULTS:
            return f"{_FAULTS[error.errno]}{f': {error.filename}' if error.filename else ''}"
        if (found := _fault_in(str(error))) is not None:
            return found
        error = error.__cause__ or error.__context__
    return None


def _fault_in(text: str) -> str | None:
    """As Python writes an OSError, as Rust does (safetensors), as `writing` does, and, of a full disk, as anything does."""
    for code, fault in _FAULTS.items():
        told = fault if code in _FULL else f"cannot be written: {fault}"
        if re.search(rf"\[Errno {code}\]|\bos error {code}\b", text) or told in text:
            return fault
    return None


def stopped(error: BaseException, run_dir: Path) -> DiskError | None:
    """The error that ends a run whose disk is to blame: which file, how much is free, and how to go on. Else None."""
    fault = None if isinstance(error, InputError) else disk_fault(error)
    if fault is None:
        return None
    text = " ".join(str(error).split())
    if not isinstance(error, DiskError):
        fault = f"{text if fault in text else f'{text} ({fault})'}{free_there(run_dir / 'x')}"
    if not (run_dir / "config.yaml").exists():
        return DiskError(f"{fault}; the run directory {run_dir} is gone, or is no longer one")
    return DiskError(f"{fault}; make room, then go on with it: rolloutpipe train --resume {run_dir}")


def free_bytes(path: Path) -> int | None:
    """On the file system that `path` is on, or would be; None where that cannot be told."""
    try:
        return shutil.disk_usage(existing(path)).free
    except OSError:
        return None


def free_there(file: Path) -> str:
    """How much room there is for a file, in brackets."""
    if not file.parent.exists():
        return f" ({file.parent} is gone)"
    free = free_bytes(file)
    return "" if free is None else f" ({size(free)} free on its disk)"


def size(num_bytes: int) -> str:
    """For people."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def existing(path: Path) -> Path:
    """The path, or what exists above it."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
