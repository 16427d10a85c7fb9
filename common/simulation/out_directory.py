"""The `--out` of a simulation: made before the work begins, and left as it was where the work does not end."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import ConfigError, explain


@contextmanager
def new_directory(out: Path | None) -> Iterator[None]:
    """`out` is there and empty inside, and gone again after an error or Ctrl-C. Does nothing for None.

    Raises ConfigError where it holds something, or cannot be made or written to.
    """
    if out is None:
        yield
        return
    made = _make(out)
    try:
        yield
    except BaseException:
        _remove(out, made)
        raise


def _make(out: Path) -> Path | None:
    """The topmost directory that was made for it; None where it was there."""
    made = None
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(explain("--out", "must be a new or an empty directory", str(out), "choose another, or remove it"))
        made = next((path for path in (*reversed(out.parents), out) if not path.exists()), None)
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        rule = "must be a directory that can be made and written to"
        raise ConfigError(explain("--out", rule, str(out), f"check the path ({error.strerror or error})")) from error
    return made


def _remove(out: Path, made: Path | None) -> None:
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)
        return
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
