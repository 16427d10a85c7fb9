"""Lines of the journal (`common.journal`): one JSON object each, numbered, and sealed by the CRC-32 of what stands before it.

    {"kind":"round","round":3, ... ,"line":1,"crc32":"0f3a9c11"}

`read_line` believes nothing: a line is what it says only where its seal fits, every value has its type, and numbers are in range.
"""

import json
import math
import re
import zlib
from dataclasses import dataclass
from typing import Any

from common.records import Group, Reason
from common.report.groups import group_from_json

_SEAL = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\n?\Z')
_NUMBER = re.compile(rb',"line":(\d{1,9})(?=,"crc32"|\Z)')
_GROUP_ID = re.compile(rb'"group":"(r\d{1,9}/g\d{1,9})"')
_MAX_ID = 2**31  # token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a round was sampled from: its first line."""

    round: int
    version: int
    weights: str  # fingerprint of the weights that the engines served
    problems: str  # hash of the round's problems, in order
    num_groups: int  # R, refills not counted


@dataclass(frozen=True, slots=True)
class Complete:
    """A complete group, with its prompt's text and the problem that it answers."""

    group: Group
    prompt: str
    problem: str

    @property
    def group_id(self) -> str:
        """`r3/g17`."""
        return str(self.group.group_id)

    @property
    def order(self) -> int:
        """Of submission."""
        return self.group.order


@dataclass(frozen=True, slots=True)
class Drop:
    """A group that ended without being complete."""

    group_id: str
    order: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class End:
    """Every group of the round has been reported, in so many lines."""

    num_reports: int


Entry = Complete | Drop


@dataclass(frozen=True, slots=True)
class Line:
    """What a line says, and its number as it was written: the head is line 1."""

    number: int
    content: Head | Entry | End


def seal(row: dict[str, Any], number: int) -> bytes:
    """The line of `row`, its end included."""
    return _seal(json.dumps(row, separators=(",", ":"), allow_nan=False).encode()[:-1], number)


def renumber(line: bytes, number: int) -> bytes:
    """A line that `read_line` believes, at another place."""
    body = line[: _SEAL.search(line).start()]  # type: ignore[union-attr]
    return _seal(_NUMBER.sub(b"", body), number)


def _seal(body: bytes, number: int) -> bytes:
    body = b'%b,"line":%d' % (body, number)
    return b'%b,"crc32":"%08x"}\n' % (body, zlib.crc32(body + b"}"))


def read_line(line: bytes) -> Line | str:
    """What a line says, or in words why it cannot be believed."""
    if not line.endswith(b"\n"):
        return "is torn: the run ended while it was written"
    found = _SEAL.search(line)
    if found is None:
        return "has no checksum: it was edited, or is none of a journal"
    if int(found[1], 16) != zlib.crc32(line[: found.start()] + b"}"):
        return "does not match its checksum: it was edited, or damaged"
    try:
        row = json.loads(line)
        return Line(_count(row["line"]), _parse(row))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        return f"is no line of a journal ({type(error).__name__}: {' '.join(str(error).split())[:80]})"


def names_in(line: bytes) -> list[str]:
    """The groups that a line speaks of, as far as can be read."""
    return [name.decode() for name in dict.fromkeys(_GROUP_ID.findall(line))]


def numbers_in(line: bytes) -> list[int]:
    """Its number, as far as can be read: more than one where lines were run together."""
    return [int(number) for number in _NUMBER.findall(line)]


def _parse(row: dict[str, Any]) -> Head | Entry | End:
    kind = row.get("kind")
    if kind == "round":
        names = ("round", "version", "num_groups")
        return Head(**{name: _count(row[name]) for name in names}, weights=_text(row["weights"]), problems=_text(row["problems"]))
    if kind == "drop":
        return Drop(_text(row["group"]), _count(row["order"]), Reason(row["reason"]), _text(row["detail"]))
    if kind == "end":
        return End(_count(row["num_reports"]))
    if kind is not None:
        raise ValueError(f"unknown kind {kind!r}")
    stored = group_from_json(row)
    _check(stored.group)
    return Complete(stored.group, _text(stored.prompt), _text(row["problem"]))


def _check(group: Group) -> None:
    """Raises ValueError unless every value is of its type: what is here goes to the trainer."""
    texts: list[object] = [group.group_id]
    counts = [group.order, group.weight_version]
    for sample in group.samples:
        request, response = sample.request, sample.response
        counts += [request.order, request.member, request.seed, response.version_start, response.version_end]
        texts += [request.request_id, request.group_id, response.request_id, sample.text, sample.reason, sample.extracted]
        if not all(_count(token) < _MAX_ID for tokens in (request.prompt_ids, response.token_ids) for token in tokens):
            raise ValueError("a token id is out of range")
        if len(response.logprobs) != len(response.token_ids) or not all(map(_number, response.logprobs)):
            raise ValueError("log-probs are not one number a token")
        if not (_number(sample.advantage) and (sample.reward is None or _number(sample.reward))):
            raise ValueError("reward or advantage is no finite number")
    for text in texts:
        _text(text)
    for count in counts:
        _count(count)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
