"""Records of local files: JSON lines, or one JSON list; or of all such files of a directory.

Which of the two a file is, its first sign says. A broken row is an error that names `file:line` or `file[index]`: a row that is
skipped in silence would be missed by nobody.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import DataError, explain

FIELD = "workload.path"
_ENDINGS = (".json", ".jsonl")


def read_files(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and fields of each record, files of a directory by name. Raises DataError; also where there is no record at all."""
    is_empty = True
    for file in _files(path):
        for record in _read_file(file):
            is_empty = False
            yield record
    if is_empty:
        raise DataError(explain(FIELD, "must hold at least one row", str(path), "check the file"))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in _ENDINGS and file.is_file())
    if not files:
        raise DataError(explain(FIELD, "must hold .json or .jsonl files", str(path), "name a file, or their directory"))
    return files


def _read_file(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")  # a byte order mark
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise DataError(explain(FIELD, "must be a readable file", str(path), f"check the path ({cause})")) from error
    return _list(path, content) if content.lstrip().startswith(b"[") else _lines(path, content)


def _lines(path: Path, content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            place = f"{path}:{number}"
            yield place, _object(place, _parse(place, line, "must be one JSON object", "repair the line"))


def _list(path: Path, content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    records = _parse(str(path), content, "must be one JSON list", "repair the file")
    for index, record in enumerate(records):
        yield (place := f"{path}[{index}]"), _object(place, record)


def _object(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        rule = "must be one JSON object"
        raise DataError(explain(place, rule, json.dumps(value)[:80], "write {...} with its fields"))
    return value


def _parse(place: str, content: bytes, rule: str, remedy: str) -> Any:
    try:
        return json.loads(content.decode(), parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        shown = content.decode(errors="replace").strip()[:80]
        raise DataError(explain(place, rule, shown, f"{remedy} ({_cause(error, content)})")) from error


def _cause(error: Exception, content: bytes) -> str:
    if isinstance(error, UnicodeDecodeError):
        line = content.count(b"\n", 0, error.start) + 1
        return f"line {line} is not UTF-8"
    return " ".join(str(error).split())[:200]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:40]} is too large for a number")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that stands twice, one value would be passed over in silence."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)} stands twice")
    return values
