"""The judge's own reading of `groups/`: lines with their checksums, rows with their hashes. Nothing of the product is used."""

import json
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.arithmetic import Row, group_digest, row_digest

_SEALED = re.compile(rb'^(\{.*),"crc32":"([0-9a-f]{8})"\}$', re.DOTALL)


@dataclass(slots=True)
class Found:
    """What a journal holds."""

    head: dict[str, Any] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)  # groups and drops, in order
    is_ended: bool = False  # and the end counts the reports before it
    num_broken: int = 0  # lines that are torn, or whose checksum is wrong

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Without drops."""
        return [row for row in self.reports if "samples" in row]

    def trained(self, group_order: str) -> list[dict[str, Any]]:
        """Trainable groups in the order in which they have to be trained."""
        rows = [row for row in self.groups if row["filtered"] is None]
        return sorted(rows, key=lambda row: row["order"]) if group_order == "submission" else rows


def unseal(line: bytes) -> dict[str, Any] | None:
    """The row of a whole line with the right checksum."""
    match = _SEALED.match(line)
    if match is None or zlib.crc32(match[1] + b"}") != int(match[2], 16):
        return None
    row: dict[str, Any] = json.loads(match[1] + b"}")
    return row


def read(path: Path) -> Found:
    """One journal."""
    found = Found()
    for number, line in enumerate(filter(None, path.read_bytes().split(b"\n")), start=1):
        row = unseal(line)
        if row is None or row["line"] != number:
            found.num_broken += 1
        elif row.get("kind") == "round":
            found.head = row
        elif row.get("kind") == "end":
            found.is_ended = row["num_reports"] == len(found.reports)
        else:
            found.reports.append(row)
    return found


def read_all(run_dir: Path) -> dict[int, Found]:
    """By round."""
    return {int(path.stem.split("-")[1]): read(path) for path in sorted((run_dir / "groups").glob("round-*.jsonl"))}


def digest(row: dict[str, Any]) -> bytes:
    """Of a group, as the ranks see it."""
    return group_digest(map(row_digest, map(_row, filter(lambda sample: sample["token_ids"], row["samples"]))))


def _row(sample: dict[str, Any]) -> Row:
    numbers = tuple(float(value) for value in sample["logprobs"])
    return tuple(sample["prompt_ids"]), tuple(sample["token_ids"]), numbers, sample["advantage"]


def digests_on_disk(run_dir: Path) -> set[str]:
    """Of every group that was ever written: in journals, and among what was rejected."""
    rows = [row for found in read_all(run_dir).values() for row in found.groups]
    rejected = run_dir / "groups" / "rejected.txt"
    lines = rejected.read_bytes().split(b"\n") if rejected.exists() else []
    rows += [row for line in lines if (row := unseal(line)) is not None and "samples" in row]
    return {digest(row).hex() for row in rows}
