"""Files that are whole or not there, whatever happens to the process or to the machine."""

import os
from pathlib import Path

from common.disk import writing


def write_durably(path: Path, data: bytes) -> None:
    """All of `data`, on the disk when this returns, or what was there before. Raises DiskError."""
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make names that were added to or removed from it durable."""
    sync_file(directory)


def sync_file(path: Path) -> None:
    """Make what was written to it durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
