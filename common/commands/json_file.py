"""The `--json` file of every command: refused before the work where it cannot be written, and whole or not there after it."""

import json
from pathlib import Path
from typing import Any

from common.errors import ConfigError, explain
from common.rundir import write_atomically


def writable(path: Path | None) -> Path | None:
    """`path` as it was given. Raises ConfigError where it cannot be written: before a run, not after it."""
    if path is not None:
        try:
            existed = path.exists()
            path.open("a").close()
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or error
            rule = "must be a file that can be written"
            raise ConfigError(explain("--json", rule, str(path), f"check the path ({cause})")) from error
        if not existed:
            path.unlink()
    return path


def write_json(path: Path | None, data: dict[str, Any]) -> None:
    """Nothing where `path` is None. A file is replaced as a whole; a pipe or a device, such as /dev/stdout, is written to."""
    if path is None:
        return
    text = json.dumps(data, indent=1) + "\n"
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
    else:
        write_atomically(path.resolve(), text)
