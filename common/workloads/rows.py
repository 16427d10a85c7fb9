"""What every source yields, and what a schema is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from common.workloads.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem of a source."""

    place: str  # for messages: `file:line`, `file[index]` or `data set[index]`
    question: str  # what replaces `{question}` in the prompt template
    gold: str | list[str] | None  # part of the row's identity; None where the scorer needs none
    task: dict[str, Any]  # plain JSON, for the scorer
    category: str | None = None  # of the tables of an evaluation
    # Question and answer as the source has them, without our wording and layout. None: as above.
    source_question: str | None = None
    source_gold: str | None = None
    rank: int = 0  # of two rows that differ in the answer to one question, the lower one is kept


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A record that makes no problem, and why."""

    place: str
    reason: str


@dataclass(slots=True)
class Source:
    """All rows of a source, and what was left out on the way."""

    rows: list[Row] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)  # reason: places
    bad_golds: list[str] = field(default_factory=list)  # places

    def leave_out(self, left: LeftOut) -> None:
        self.left_out.setdefault(left.reason, []).append(left.place)

    @property
    def num_read(self) -> int:
        """Rows in the files, whatever became of them."""
        return len(self.rows) + len(self.bad_golds) + sum(map(len, self.left_out.values()))


def _one(record: Record) -> Iterable[Record]:
    return (record,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """How the records of a workload are read."""

    fields: tuple[str, ...]  # those that `workload.fields` may rename
    read: Callable[[Record], Row | LeftOut]  # raises DataError, and BadGold where the answer alone is at fault
    template: str = "{question}"  # the workload's own prompt
    split: Callable[[Record], Iterable[Record]] = _one  # a record that holds several problems
