"""What of a round's journal may be used: the lines that can be believed, and that are of the round that is asked for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import DataError, explain
from common.journal_lines import Complete, End, Entry, Head, name_of, read_line
from common.requests import group_name

MAX_LINE_BYTES = 2**30  # a group of 100,000 responses is smaller


@dataclass(slots=True)
class Found:
    """The usable lines with what they say, the others, and what is to be told about those."""

    has_head: bool = False
    is_whole: bool = False  # its last line says that every group has been reported
    entries: list[tuple[Entry, bytes]] = field(default_factory=list)
    rejected: list[bytes] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def reject_all(self, why: str) -> None:
        """None of it can be used."""
        self.notes.append(f"{why}: its {len(self.entries)} groups are sampled again")
        self.rejected += [line for _, line in self.entries]
        self.entries, self.has_head, self.is_whole = [], False, False


def read_journal(path: Path, head: Head, num_members: int, fault_of: Callable[[Entry], str] = lambda entry: "") -> Found:
    """The journal of the round that `head` describes; empty where there is none. Never raises for what a file holds.

    Raises DataError where it is no file."""
    found = Found()
    if not path.exists():
        return found
    if not path.is_file():
        raise DataError(explain("groups", "must hold regular files", str(path), "move it away, then resume again"))
    lines = _lines(path)
    first = next(lines, b"")
    if (fault := _fault_of_head(first, head)) is not None:
        found.rejected += [first, *lines] if first else []
        found.notes.append(f"{path.name}: {fault}: its groups are sampled again")
        return found
    found.has_head = True
    seen: set[str] = set()
    num_reports = None
    for number, line in enumerate(lines, start=2):
        parsed = read_line(line)
        if isinstance(parsed, End):
            num_reports = parsed.num_reports
            continue
        fault = parsed if isinstance(parsed, str) else _fault_of(parsed, head, num_members, seen)
        if fault is None and not isinstance(parsed, str | Head):
            fault = fault_of(parsed) or None
        if fault is None and not isinstance(parsed, str | Head):
            seen.add(parsed.group_id)
            found.entries.append((parsed, line))
        else:
            name = name_of(line)
            again = f"{name} is sampled again" if name and name not in seen else "it is left out"
            found.rejected.append(line)
            found.notes.append(f"{path.name}: line {number}{name and f' ({name})'} {fault}; {again}")
    found.is_whole = num_reports == len(found.entries) and not found.rejected
    return found


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            yield line


def _fault_of_head(line: bytes, wanted: Head) -> str | None:
    if not line:
        return "it is empty"
    found = read_line(line)
    if not isinstance(found, Head):
        return f"its first line {found}" if isinstance(found, str) else "its first line does not name the round"
    if found.weights != wanted.weights:
        prints = f"{found.weights[:12]}, now {wanted.weights[:12]}"
        return f"it was sampled from other weights than version {wanted.version} has ({prints})"
    for name in ("round", "version", "problems", "num_groups"):
        if getattr(found, name) != getattr(wanted, name):
            return f"it is of another round ({name} {getattr(found, name)}, not {getattr(wanted, name)})"
    return None


def _fault_of(entry: Entry | Head, head: Head, num_members: int, seen: set[str]) -> str | None:
    """Why a line that can be believed is not of this round."""
    if isinstance(entry, Head):
        return "is a second head"
    if entry.group_id != group_name(head.round, entry.order):
        return f"does not name group {entry.order} of round {head.round}"
    if entry.group_id in seen:
        return "reports its group a second time"
    if not isinstance(entry, Complete):
        return None
    group = entry.group
    versions = {version for each in group.samples for version in (each.response.version_start, each.response.version_end)}
    if group.weight_version != head.version or versions != {head.version}:
        return f"is of another weight version than {head.version}"
    if [sample.request.member for sample in group.samples] != list(range(num_members)):
        return f"does not hold the {num_members} members of a group"
    return None
