"""What of a round's journal may be used: the lines that can be believed, and that are of the round that is asked for."""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from common.errors import DataError, explain
from common.journal_lines import Complete, End, Entry, Head, names_in, numbers_in, read_line
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

    def reject(self, line: bytes, where: str, why: str, known: Container[str]) -> None:
        """A line that cannot be used; `known`: groups that are on disk without it."""
        names = names_in(line)
        who = f" ({', '.join(names)})" if names else ""
        lost = ", ".join(name for name in names if name not in known)
        again = f"what is lost is sampled again: {lost}" if lost else "it is left out"
        self.rejected.append(line)
        self.notes.append(f"{where}{who} {why}; {again}")

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
    reports: dict[str, tuple[int, Entry, bytes]] = {}  # by group, as they stand
    numbers: list[int] = []  # of usable lines, as they stand
    num_reports = None
    for place, line in enumerate(lines, start=2):
        read = read_line(line)
        content = read if isinstance(read, str) else read.content
        fault = content if isinstance(content, str) else _fault_of(content, head, num_members, reports, fault_of)
        if isinstance(content, End) and num_reports is not None:
            fault = "is a second end"
        if fault or isinstance(read, str) or isinstance(content, str | Head):
            found.reject(line, f"{path.name}: line {place}", str(fault), reports)
            continue
        numbers.append(read.number)
        if isinstance(content, End):
            num_reports = content.num_reports
        else:
            reports[content.group_id] = read.number, content, line
    found.notes += [f"{path.name}: {fault}" for fault in _faults_of_order(numbers, found.rejected)]
    found.entries = [(entry, line) for _, entry, line in sorted(reports.values(), key=lambda report: report[0])]
    is_as_written = numbers == list(range(2, 2 + len(numbers))) and not found.rejected
    found.is_whole = is_as_written and num_reports == len(found.entries)
    return found


def _faults_of_order(numbers: list[int], rejected: list[bytes]) -> Iterator[str]:
    """What was done to the lines as a whole: moved, or taken out."""
    if numbers != sorted(numbers):
        yield "its lines were moved; they are read in the order in which they were written"
    known = sorted({1, *numbers, *(number for line in rejected for number in numbers_in(line))})
    gaps = [(before + 1, after - 1) for before, after in pairwise(known) if before + 1 < after <= max(numbers, default=0)]
    if gaps:
        spans = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in gaps[:5])
        yield f"lines {spans}{' and others' if len(gaps) > 5 else ''} were taken out; their groups are sampled again"


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            yield line


def _fault_of_head(line: bytes, wanted: Head) -> str | None:
    if not line:
        return "it is empty"
    read = read_line(line)
    found = read if isinstance(read, str) else read.content
    if not isinstance(found, Head):
        return f"its first line {found}" if isinstance(found, str) else "its first line does not name the round"
    if found.weights != wanted.weights:
        prints = f"{found.weights[:12]}, now {wanted.weights[:12]}"
        return f"it was sampled from other weights than version {wanted.version} has ({prints})"
    for name in ("round", "version", "problems", "num_groups"):
        if getattr(found, name) != getattr(wanted, name):
            return f"it is of another round ({name} {getattr(found, name)}, not {getattr(wanted, name)})"
    return None


def _fault_of(
    content: Head | Entry | End, head: Head, num_members: int, seen: Container[str], fault_of: Callable[[Entry], str]
) -> str:
    """Why a line that can be believed is not of this round; empty where it is."""
    if isinstance(content, End):
        return ""
    if isinstance(content, Head):
        return "is a second head"
    if content.group_id != group_name(head.round, content.order):
        return f"does not name group {content.order} of round {head.round}"
    if content.group_id in seen:
        return "reports its group a second time"
    if not isinstance(content, Complete):
        return fault_of(content)
    group = content.group
    versions = {version for each in group.samples for version in (each.response.version_start, each.response.version_end)}
    if group.weight_version != head.version or versions != {head.version}:
        return f"is of another weight version than {head.version}"
    if [sample.request.member for sample in group.samples] != list(range(num_members)):
        return f"does not hold the {num_members} members of a group"
    return fault_of(content)
