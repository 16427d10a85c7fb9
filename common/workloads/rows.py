"""What every source yields."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a source."""

    place: str  # for messages: `file:line` or `data set[index]`
    question: str
    gold: str | None  # part of the row's identity; None where the scorer needs none
    task: dict[str, Any]  # plain JSON, for the scorer
