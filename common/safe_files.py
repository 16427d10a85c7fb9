"""Reading what a run or a person hands over without trusting it: bounds on size, depth, counts and place.

Every fault is an OSError or a ValueError whose text is the cause, for the caller to put into one line of its own. Nothing
here, and nothing that calls it, unpickles or runs code of a file.
"""

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

JSON_BYTES = 16 * 2**20  # a manifest of 100 000 tensors
HEADER_BYTES = 8 * 2**20  # of one safetensors file, 70 000 tensors; the library itself takes 100 MB
TEXT_BYTES = 2**18  # a configuration that a person writes; more would take half a minute to parse
_CHUNK_BYTES = 2**16
_LENGTH_BYTES = 8  # a safetensors file starts with the length of its header, little-endian


def read_text(path: Path, limit: int = TEXT_BYTES) -> str:
    """UTF-8 text of at most `limit` bytes, from anything that can be opened; no more than that is ever read."""
    content = bytearray()
    with path.open("rb") as file:
        while part := file.read(_CHUNK_BYTES):  # a read of `limit` would take that much memory for a small file too
            content += part
            if len(content) > limit:
                raise ValueError(f"it is longer than {limit} bytes")
    return content.decode("utf-8")


def read_json(path: Path, limit: int = JSON_BYTES) -> dict[str, Any]:
    """The JSON object in a regular file."""
    _need_file(path)
    try:
        data = json.loads(read_text(path, limit))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    return data


def whole_number(data: Mapping[str, Any], key: str, low: int, high: int) -> int:
    """`data[key]` from `low` to `high`: an integer as written, not text, true or 3.0."""
    value = data.get(key)
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{key} must be a whole number from {low} to {high}, not {str(value)[:40]}")
    return value


def file_inside(directory: Path, name: object) -> Path:
    """A regular file right in `directory`: no path, and no link, that could lead out of it."""
    path = directory / check_plain_name(name)
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError(f"{name} is no regular file")
    return path


def check_plain_name(name: object) -> str:
    """The name, where it is that of a file, and no path."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{str(name)[:80]!r} is no plain file name")
    return name


def check_tensor_file(path: Path) -> None:
    """That the header of a safetensors file has a sound length. What it says is checked by the library, which refuses tensors
    that overlap, leave gaps, or reach beyond the file."""
    _need_file(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if not 2 <= length <= min(path.stat().st_size - _LENGTH_BYTES, HEADER_BYTES):
        raise ValueError(f"its header cannot be {length} bytes long")


def _need_file(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is no regular file")
