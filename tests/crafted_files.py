"""Files that somebody made to do harm, by the place that reads them: more of everything than there is, and ways out."""

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEEP = 100_000
MARK = "opened"  # what code in a file would leave behind


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


def bomb(directory: Path) -> bytes:
    """A pickle whose code runs when it is read."""
    return pickle.dumps(Bomb(directory / MARK))


def header(tensors: dict[str, Any], data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with this header; `length`: what it claims of it."""
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(start: int, end: int, shape: list[int] | None = None) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [1] if shape is None else shape, "data_offsets": [start, end]}


def _many() -> bytes:
    return header({f"t{number}": tensor(0, 0, [0]) for number in range(150_000)})


# What is put in place of a safetensors file with tensor `w` of one float32.
TENSOR_FILES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"hello, this is no tensor file",
    "header of 2^60 bytes": lambda: header({"w": tensor(0, 4)}, b"1234", 2**60),
    "header of 10^9 bytes": lambda: header({"w": tensor(0, 4)}, b"1234", 10**9),
    "header beyond the file": lambda: header({"w": tensor(0, 4)}, b"1234", 200),
    "150 000 tensors": _many,
    "beyond the file": lambda: header({"w": tensor(0, 2**40, [2**38])}, b"1234"),
    "negative": lambda: header({"w": tensor(-4, 0)}, b"1234"),
    "overlap": lambda: header({"w": tensor(0, 4), "v": tensor(0, 4)}, b"1234"),
    "gap": lambda: header({"w": tensor(4, 8)}, b"12345678"),
    "shape overflows": lambda: header({"w": tensor(0, 4, [2**40, 2**40])}, b"1234"),
    "nested": lambda: struct.pack("<Q", 2 * DEEP) + b"[" * DEEP + b"]" * DEEP,
}

# What is put in place of a JSON file.
JSON_FILES: dict[str, bytes] = {
    "empty": b"",
    "nested lists": b"[" * DEEP + b"]" * DEEP,
    "nested objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a list": b"[1, 2]",
    "null": b"null",
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "NUL": b'{"a": \x00}',
    "a number of 10^5 digits": b'{"version": ' + b"9" * 100_000 + b"}",
    "17 MB": b'{"a": "' + b"x" * (17 * 10**6) + b'"}',
}

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
# What is put in place of a configuration.
YAML_FILES: dict[str, bytes] = {
    "python object": b"model: !!python/object/apply:os.mkdir [opened]",
    "python name": b"model: !!python/name:os.system",
    "billion laughs": LAUGHS.encode(),
    "a list that holds itself": b"a: &a [*a]",
    "merged laughs": b"a: &a {x: 1}\n" + b"".join(b"b%d: {<<: *a, y: *a}\n" % n for n in range(30_000)),
    "10^6 brackets": b"[" * 10**6,
    "10^5 brackets": b"a: " + b"[" * 10**5 + b"]" * 10**5,
    "10^5 dashes": b"- " * 10**5,
    "NUL": b"rounds: \x00",
    "not UTF-8": b"name: \xff\xfe",
    "an int of 10^5 digits": b"rounds: " + b"9" * 10**5,
    "an int in base 60": b"rounds: " + b":".join([b"59"] * 50_000),
    "unknown tag": b"rounds: !boom 1",
    "binary": b"rounds: !!binary ====",
    "a list": b"[1]",
    "empty": b"",
}


def sparse(path: Path, num_bytes: int) -> None:
    """A file that claims a size, and takes no room."""
    with path.open("ab") as file:
        file.truncate(num_bytes)
