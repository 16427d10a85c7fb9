"""The journal of a run: each group is on disk before the trainer may see it, so a round can go on where it was cut off (rule 10).

    groups/round-00003.jsonl     {"kind": "round", "round": 3, "version": 3, "weights": ..., "problems": ..., "num_groups": R}
                                 one line a complete group, in the order in which the queue got them (`common.report.groups`)
                                 {"kind": "drop", ...}   a group that ended without being complete
                                 {"kind": "end", ...}    every group of the round has been reported

Each line is numbered and sealed (`common.journal_lines`), and with the operating system when the call returns, so that it
survives the death of every process; a thread brings it to the disk meanwhile, and the end of a round waits for that. What a
machine that loses power had not synced is sampled again, from the same weights: trainer state lies at round boundaries only.

The head names the weights that the groups were sampled from, by fingerprint: a replay uses a journal only where it has come out
at the same weights. What cannot be trusted (a torn tail, an edited line, another head) is moved to `groups/rejected.txt`, told,
and sampled again. Lines that were moved are told, and read in the order of their numbers.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from common.disk import writing
from common.durable import sync_directory, write_durably
from common.journal_lines import Entry, Head, renumber, seal
from common.journal_reader import Found, read_journal
from common.protocols import Problem
from common.records import Group, Reason
from common.report.groups import group_to_json, round_path
from common.syncing import Syncer

REJECTED = "rejected.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a round finds on disk: used as it stands, and not sampled again."""

    entries: tuple[Entry, ...] = ()  # in the order in which the queue got them
    is_whole: bool = False  # nothing is left to sample


def problems_hash(problems: Sequence[Problem]) -> str:
    """Of the round's problems, in order."""
    return sha256("\n".join(problem.problem_id for problem in problems).encode()).hexdigest()[:16]


class Journal:
    """Of one run; one round is open at a time. `tell` gets one line about each thing that was left out."""

    def __init__(self, directory: Path, tell: Callable[[str], None] = lambda line: None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._tell = directory, tell
        self._file: IO[bytes] | None = None
        self._syncer: Syncer | None = None
        self._path = directory
        self._lines: list[tuple[Entry, bytes]] = []  # recorded before this process or recovery
        self._num_reports = 0
        self._is_ended = False

    def open(
        self, head: Head, *, num_members: int, is_batch: bool = False, fault_of: Callable[[Entry], str] = lambda entry: ""
    ) -> Recorded:
        """Begin the round of `head`, or go on with it; returns what is on disk and may be used.

        `fault_of` says why a group is not of this round, where it is not.
        `is_batch`: advantages are of the whole round (`advantage_std: batch`), so a part of it is worth nothing.
        """
        self.close()
        self._path = round_path(self._directory, head.round)
        if not self._path.exists() and round_path(self._directory, head.round + 1).exists():
            self._tell(f"{self._path.name} is gone, though later ones are there: its groups are sampled again")
        found = read_journal(self._path, head, num_members, fault_of)
        if is_batch and found.entries and not found.is_whole:
            found.reject_all(f"{self._path.name}: its advantages are of a whole round, which it does not hold")
        self._set_aside(found.rejected, found.notes)
        if not (found.has_head and found.is_whole):  # also to be rid of an end that is none
            self._rewrite(seal({"kind": "round", **asdict(head)}, 1), found.entries)
        self._begin(found)
        return Recorded(entries=tuple(entry for entry, _ in found.entries), is_whole=found.is_whole)

    def has_all(self, head: Head, *, num_members: int) -> bool:
        """Every group of the round that `head` describes is on disk, so that no engine is needed for it."""
        return read_journal(round_path(self._directory, head.round), head, num_members).is_whole

    def group(self, group: Group, problem: Problem) -> None:
        """One complete group, trainable or filtered. Raises DiskError."""
        self._append({**group_to_json(group, problem.prompt), "problem": problem.problem_id})
        self._num_reports += 1

    def drop(self, group_id: str, order: int, reason: Reason, detail: str) -> None:
        """A group that will not become complete."""
        self._append({"kind": "drop", "group": group_id, "order": order, "reason": reason, "detail": detail})
        self._num_reports += 1

    def reject(self, entry: Entry, why: str) -> None:
        """Take out a recorded line that the round cannot use."""
        lines = [line for each, line in self._lines if each is entry]
        self._set_aside(lines, [f"{self._path.name}: {entry.group_id} {why}; it is sampled again"])
        self._lines = [(each, line) for each, line in self._lines if each is not entry]
        self._num_reports -= len(lines)
        head = self._path.open("rb").readline()
        self.close()
        self._rewrite(head, self._lines)
        self._is_ended = False
        self._open_file()

    def end(self) -> None:
        """Every group of the round has been reported."""
        if not self._is_ended:
            self._append({"kind": "end", "num_reports": self._num_reports})
            self._is_ended = True
            if self._syncer is not None:
                self._syncer.now()

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None and self._syncer is not None:
            self._syncer.close()
            self._file.close()
            self._file = self._syncer = None

    def _begin(self, found: Found) -> None:
        self._open_file()
        self._lines, self._num_reports, self._is_ended = found.entries, len(found.entries), found.is_whole

    def _open_file(self) -> None:
        self._file = self._path.open("ab", buffering=0)
        self._syncer = Syncer(self._path, self._file.fileno())

    def _append(self, row: dict[str, Any]) -> None:
        assert self._file is not None and self._syncer is not None, "no round is open"
        line = memoryview(seal(row, self._num_reports + 2))  # the head is line 1
        with writing(self._path):
            while line:  # a write may take a part of it
                line = line[self._file.write(line) :]
        self._syncer.soon()

    def _rewrite(self, head: bytes, entries: Sequence[tuple[Entry, bytes]]) -> None:
        lines = (renumber(line, number) for number, (_, line) in enumerate(entries, start=2))
        write_durably(self._path, b"".join([head, *lines]))

    def _set_aside(self, lines: Sequence[bytes], notes: Sequence[str]) -> None:
        for note in notes:
            self._tell(note)
        if not lines:
            return
        with writing(self._directory / REJECTED), (self._directory / REJECTED).open("ab") as file:
            for line in lines:
                file.write(f"# {self._path.name}\n".encode() + line.rstrip(b"\n") + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._directory)
