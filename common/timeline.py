"""Every event of a run, one JSON object a line, in `timeline.jsonl`.

Each event has `t` (monotonic seconds since the start of the run), `kind` and, within a round, `round`. An event that
covers an interval has `start` too and is written at its end, `t`. Runs and the simulator write the same kinds:

| kind | further fields |
| --- | --- |
| run_start, run_end | name, schedule / status |
| round_start | version, num_groups |
| dispatch | request, group, member, replica (a request enters an engine) |
| response | start, request, group, member, replica, tokens, finish_reason, version |
| retry | request, group, reason (rejected for its version, lost, or timed out) |
| verify | start, group, member, status, reward |
| group_complete | group, order, reward_mean, reward_std, tokens, filtered |
| group_drop | group, reason, detail |
| rollout_done | |
| wait | start, on (the trainer waits) |
| compute | start, phase (accumulate, finish), update, group |
| update | update, optimizer_step, loss, grad_norm, groups, is_short (fewer than U), tokens, metrics |
| publish | start, phase (export, check, transfer, probe), version |
| stall | message (the watchdog) |
| round_end | books, metrics of the round |

`request` and `group` are strings: `r3/g17/m2`, `r3/g17`.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self

Event = dict[str, Any]
Listener = Callable[[Event], None]


class Timeline:
    """Appends events to a file and tells the listeners (live display, metrics), in order."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic, *, start: float | None = None) -> None:
        self._clock = clock
        self._start = clock() if start is None else start
        self._file: IO[str] | None = _open(path) if path else None
        self._listeners: list[Listener] = []

    def now(self) -> float:
        """Seconds since the start of the run."""
        return self._clock() - self._start

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each later event; it must be quick and must not raise. Returns the call that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def emit(self, kind: str, **fields: Any) -> Event:
        """Record one event at the present time."""
        event = {"t": round(self.now(), 6), "kind": kind, **fields}
        if self._file is not None:
            self._file.write(json.dumps(event, separators=(",", ":")) + "\n")
            if kind in _FLUSHED:
                self._file.flush()
        for listener in self._listeners:
            listener(event)
        return event

    def close(self) -> None:
        """Idempotent; later events reach the listeners only."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Written through at once: what a person needs after a crash. The rest goes with the file's buffer.
_FLUSHED = frozenset(
    {"run_start", "run_end", "round_start", "round_end", "rollout_done", "update", "group_drop", "stall", "publish"}
)


def _open(path: Path) -> IO[str]:
    """For appending; a last line that a killed run left torn is cut off, or the next event would be lost with it."""
    if path.exists():
        with path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            torn = 0
            while torn < size:
                file.seek(size - torn - 1)
                if file.read(1) == b"\n":
                    break
                torn += 1
            file.truncate(size - torn)
    return path.open("a", encoding="utf-8")


def read_timeline(path: Path) -> Iterator[Event]:
    """Events of a run, also of one that still runs or was killed: a torn last line is skipped."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            yield json.loads(line)
