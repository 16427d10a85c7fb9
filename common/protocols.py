"""What the round asks of its parts. Fakes and contract checks: `common.testing`.

All calls are coroutines, because engines and trainer ranks live in other processes. A call either
does its whole job or raises; the round puts a deadline on each (rule 7).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from common.records import Group, Request, Response, Sampling, UpdateResult, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """State of one engine."""

    name: str
    is_alive: bool
    weight_version: int
    num_running: int
    detail: str = ""


@runtime_checkable
class Engine(Protocol):
    """Samples responses from one weight version at a time. One replica, or a pool that places."""

    @property
    def capacity(self) -> int:
        """Requests that may be in flight together."""
        ...

    @property
    def is_recovering(self) -> bool:
        """More capacity is on its way: engines are being started in place of dead ones. Without it, no capacity is final."""
        ...

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever capacity has changed, or recovery has ended in vain. Returns the call that ends it."""
        ...

    def place(self, request: Request) -> int:
        """The replica (0 ...) that the next `generate` of this request will use. Raises EngineError where none has room."""
        ...

    async def generate(self, request: Request, sampling: Sampling) -> Response:
        """Sample one response.

        `version_start` is read when the request enters, `version_end` when its last token is out. An aborted
        request returns normally with FinishReason.ABORT. Raises EngineError where the engine lost it, EngineDiedError
        where the engine died.
        """
        ...

    async def abort(self, request_ids: Iterable[Hashable]) -> None:
        """End these requests early; unknown and finished ids are ignored."""
        ...

    async def publish(self, version: int, spool: Path) -> None:
        """Load the weights of `spool` (checked already, see `common.spool`) as `version`.

        Returns when they are live and the prefix cache is empty. No request may be in flight. Raises PublishError
        and keeps serving the old version where nothing was touched; where something was, the engine is not alive.
        """
        ...

    async def health(self) -> list[Health]:
        """State of every replica, within a second."""
        ...

    async def close(self) -> None:
        """End all processes; idempotent."""
        ...


@runtime_checkable
class Trainer(Protocol):
    """Accumulates gradients group by group and steps once an update (rule 4).

    begin_update -> accumulate* -> finish_update | abort_update
    """

    async def begin_update(self) -> None:
        """Zero the gradient sums and denominators."""
        ...

    async def accumulate(self, groups: Sequence[Group]) -> None:
        """Add the gradient sums of these whole groups."""
        ...

    async def finish_update(self) -> UpdateResult:
        """Divide once by the loss's denominator, clip, step. An update of no trainable token steps nothing.

        `metrics` holds at least `logprob_gap_max` and `logprob_gap_mean` (sampler against trainer, before the step,
        over tokens), `lr` and `denominator`; `update_index` is 0: the round sets it.
        """
        ...

    async def abort_update(self) -> None:
        """Forget the sums of the open update; without one, nothing."""
        ...

    async def begin_round(self) -> None:
        """Note that a round starts: keeps a copy of the weights where `keep_round_weights` asks for it."""
        ...

    async def logprobs(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float) -> list[list[float]]:
        """Log-probs of the second part of each (prompt ids, response ids) under the current weights."""
        ...

    async def export_weights(self, spool: Path, version: int) -> None:
        """Stream the weights, tensor by tensor, into `spool` through `common.spool.SpoolWriter`: HF names, shapes, dtypes."""
        ...

    async def save(self, directory: Path) -> None:
        """Capture all that a resume needs (weights, moments, step, schedule, RNG) for the new `directory`.

        Returns when the state is captured: training may go on, also while it is still being written. A save before it
        that is still open is awaited first.
        """
        ...

    async def saved(self) -> None:
        """Return when the last save is durable, and only then its directory exists; without an open save, at once.

        Other calls may be made meanwhile. Raises what kept the save from being written; it is then lost.
        """
        ...

    async def restore(self, directory: Path) -> None:
        """Continue exactly where `save` was called, on any number of ranks. The save must have been awaited (`saved`)."""
        ...

    async def watch(self) -> None:
        """Never returns. Raises TrainerDiedError that names the process, within seconds of the death of one."""
        ...

    async def restart(self) -> None:
        """End what is left of the processes and start new ones, with the starting weights: as it was at first."""
        ...

    async def close(self) -> None:
        """End all processes; idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One prompt with what its verifier needs."""

    problem_id: str  # hash of the content: the same row has the same id wherever it stands
    prompt: str  # as the model sees it, chat template applied
    prompt_ids: tuple[int, ...]
    task: dict[str, Any]  # plain JSON values for the scorer: {"workload": name, "gold": ..., ...}
    content_hash: str = ""  # of question and gold alone: equal for the same row under another template, or in another file
    question_hash: str = ""  # of the question alone, however its gold is written: what `holdout` and `overlap` go by


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A verifier's answer for one response; `reward` is None exactly when `status` is ERROR."""

    reward: float | None
    status: Verdict
    extracted: str = ""
    reason: str = ""
    parts: tuple[tuple[str, float], ...] = ()  # of a summed reward, by name, before their weights
    duration_s: float = 0.0


@runtime_checkable
class Verifier(Protocol):
    """Scores a response off the control loop, in killable processes with a wall-clock limit."""

    async def score(self, task: dict[str, Any], response: str) -> Score:
        """Never raises for what a response does: TIMEOUT and ERROR are verdicts (rule 9)."""
        ...

    async def close(self) -> None:
        """End all processes; idempotent."""
        ...


class Tokenizer(Protocol):
    """What the round needs of a tokenizer."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text for people and verifiers."""
        ...
