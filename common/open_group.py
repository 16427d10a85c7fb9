"""A group on its way through the round, and what each of its K members is doing.

WAITING ──admit──> SAMPLING ──response──> SCORING ──verdict──> DONE
   ^                  │
   └──────retry───────┴──retries used up──> FAILED
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from common.protocols import Problem
from common.records import Request, Sample


class Stage(StrEnum):
    """Where a member is; the value completes "m2 is ..."."""

    WAITING = "not admitted"
    SAMPLING = "in an engine"
    SCORING = "with the verifier"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Member:
    """One request of the group, through all its tries."""

    request: Request
    stage: Stage = Stage.WAITING
    since_s: float = 0.0  # when the stage began
    admitted_s: float = 0.0  # last try
    replica: int = 0  # of the last try
    num_retries: int = 0
    num_moves: int = 0  # engines that died with it
    task: asyncio.Task[None] | None = None  # of the last try
    sample: Sample | None = None  # once DONE

    def enter(self, stage: Stage, now_s: float) -> None:
        """Go on to `stage`."""
        self.stage, self.since_s = stage, now_s

    def describe(self, now_s: float) -> str:
        """`m2 (in an engine for 40 s)`."""
        age = "" if self.stage is Stage.WAITING else f" for {now_s - self.since_s:.0f} s"
        return f"m{self.request.member} ({self.stage}{age})"


@dataclass(slots=True, eq=False)
class OpenGroup:
    """A group that has not ended: neither complete nor dropped."""

    group_id: str
    order: int
    problem: Problem
    members: Sequence[Member]
    deadline: asyncio.TimerHandle | None = None  # from its first admission on; anew when an engine has died with a member
    is_open: bool = True

    @property
    def requests(self) -> list[Request]:
        """One a member."""
        return [member.request for member in self.members]

    @property
    def is_complete(self) -> bool:
        """All K members are done (rule 2)."""
        return all(member.stage is Stage.DONE for member in self.members)

    def members_in(self, *stages: Stage) -> list[Member]:
        """Members in one of these stages."""
        return [member for member in self.members if member.stage in stages]

    def waits_for(self, now_s: float) -> str:
        """The members that are still missing, and where each one is."""
        missing = self.members_in(Stage.WAITING, Stage.SAMPLING, Stage.SCORING)
        return ", ".join(member.describe(now_s) for member in missing)

    def samples(self) -> list[Sample]:
        """Of all members that are DONE, in order."""
        return [member.sample for member in self.members if member.sample is not None]

    def end(self) -> None:
        """No longer open; its deadline is off."""
        self.is_open = False
        self.stop_deadline()

    def stop_deadline(self) -> None:
        """None until the next admission of a member."""
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
