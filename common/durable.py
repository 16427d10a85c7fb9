"""Forcing to the disk what must survive a machine that loses power: a file's bytes, and the entries of its directory."""

import os
from pathlib import Path


def sync_file(path: Path) -> None:
    """Its bytes are on the disk when this returns."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """So are the names in it: which files were made, renamed or removed."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
