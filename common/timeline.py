"""Every event of a run, one JSON object a line, in `timeline.jsonl`.

Each event has `t` (monotonic seconds since the start of the run), `kind` and, within a round, `round`. An event that
covers an interval has `start` too and is written at its end, `t`. Runs and the simulator write the same kinds:

| kind | further fields |
| --- | --- |
| run_start | name, schedule, rounds, groups_per_round, responses_per_group, groups_per_update, max_logprob_gap (or null) |
| run_end | status (finished, failed, stopped), detail |
| phase | name (what the run does outside rollout and training, until the next phase or round_start: `start engines`) |
| round_start | version, num_groups, schedule |
| plan | waiting (groups of which nothing is admitted), order, width, end_s (forecast, from now): what `adaptive` decided |
| dispatch | request, group, member, replica (a request enters an engine) |
| response | start (of its dispatch), request, group, member, replica, tokens, finish_reason, version |
| retry | request, group, reason (rejected for its version, lost, or timed out) |
| verify | start, group, member, status, reward, seconds (of the verifier's call itself; runs of older versions lack it) |
| group_complete | group, order, reward_mean, reward_std, tokens, filtered (a Reason, or null) |
| group_drop | group, reason, detail |
| rollout_done | |
| wait | start, on (the trainer waits) |
| compute | start, phase (accumulate, finish), update, group |
| update | update, optimizer_step, loss, grad_norm, groups, is_short (fewer than U), tokens, metrics |
| publish | start, phase (export, check, transfer, probe), version; of a probe gap, the largest log-prob gap in nats |
| eval_dispatch, eval_response, eval_retry | as dispatch, response and retry, of an evaluation |
| eval | start, version, accuracy, low, high and more figures (`Evaluation.fields`), wait (for how long it held up the publish) |
| stall | message (the watchdog) |
| fault | part (`engine-1`, `trainer`, `disk`), detail: what died, and how that was noticed |
| recovered | start (of its fault), part, detail |
| recorded | groups, drops (found in the journal, and not sampled again), is_whole (nothing is left to sample) |
| group_recorded | group, lengths, rewards (null: none), statuses, cut_off (how many): of a group that stood in the journal |
| left_out | message (lines of a journal that are not used, and why) |
| round_end | books (rule 3: groups, refilled, trained, filtered, dropped, requests, finished, failed, cancelled) |

`request` and `group` are strings: `r3/g17/m2`, `r3/g17`, where 17 is the group's order; `e3/g17/m2` is of the evaluation of
weight version 3, and where that took place after the last round, has no `round`. A request leaves its engine with its
`response` or `retry`, at the latest with its group's `group_drop`. An accumulate covers one group; `update` counts within the
round. The `run_start` of a simulated run has `is_simulated: true`. Figures of a round: `common.metrics`. What of a
line its readers rely on: `common.event_fields`.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from common.disk import writing
from common.errors import DiskError

_BLOCK = 1 << 16
Event = dict[str, Any]
Listener = Callable[[Event], None]


class Timeline:
    """Appends events to a file and tells the listeners (live display, metrics), in order."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic, *, offset_s: float = 0.0) -> None:
        """`offset_s`: where a resumed run goes on."""
        self._clock = clock
        self._start = clock() - offset_s
        if path is not None:
            _cut_torn_line(path)
        self._path = path
        self._file: IO[str] | None = path.open("a", encoding="utf-8") if path else None
        self._listeners: list[Listener] = []
        self._is_told = False
        self.describe: Callable[[], str] | None = None  # of the round that goes on: who waits for whom
        self.fault: DiskError | None = None  # the first of writing, here or in a listener

    def now(self) -> float:
        """Seconds since the start of the run."""
        return self._clock() - self._start

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each later event; it must be quick. Returns the call that ends it.

        One that raises DiskError is not called again: see `check`. It must not raise anything else.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def emit(self, kind: str, **fields: Any) -> Event:
        """Record one event at the present time. A disk that cannot be written never raises here: see `check`."""
        event = {"t": round(self.now(), 6), "kind": kind, **fields}
        if self._file is not None:
            try:
                with writing(self._path):
                    self._file.write(json.dumps(event, separators=(",", ":")) + "\n")
                    if kind in _FLUSHED:
                        self._file.flush()
            except DiskError as error:
                self._stop(error)
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except DiskError as error:
                self.fault = self.fault or error
                self._listeners.remove(listener)
        return event

    def check(self) -> None:
        """Raises DiskError where an event, or what a listener makes of them, could not be written: the run must end.

        Events come from places that must not fail, such as clean-up; so the run asks, at moments that may.
        """
        if self.fault is not None:
            self._is_told = True
            raise DiskError(str(self.fault)) from self.fault

    def _stop(self, error: DiskError) -> None:
        """Nothing more is written: a line after a torn one would make two unreadable."""
        self.fault = self.fault or error
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def close(self) -> None:
        """Idempotent; later events reach the listeners only. A disk that cannot be written is told by `check`."""
        if self._file is not None:
            try:
                with writing(self._path):
                    self._file.flush()
            except DiskError as error:
                self._stop(error)
            else:
                self._file.close()
                self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is None and not self._is_told:
            self.check()


def group_number(group: str) -> int:
    """The order of a group from its name: 17 of `r3/g17`; 0 for names of another form."""
    digits = group.rpartition("g")[2]
    return int(digits) if digits.isdigit() else 0


# Written through at once: what a person needs after a crash. The rest goes with the file's buffer.
_FLUSHED = frozenset(
    {
        "run_start",
        "run_end",
        "round_start",
        "round_end",
        "rollout_done",
        "update",
        "group_drop",
        "stall",
        "publish",
        "eval",
        "fault",
        "recovered",
        "recorded",
        "left_out",
    }
)


def read_timeline(path: Path) -> Iterator[Event]:
    """Events of a run, also of one that still runs or was killed: a torn last line is skipped."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            yield json.loads(line)


def _cut_torn_line(path: Path) -> None:
    """What a killed run wrote of its last event must not stand in front of a resumed run's first."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = place = file.seek(0, 2)
        while place > 0:  # a block at a time: a long run's timeline does not fit into memory
            place = max(place - _BLOCK, 0)
            file.seek(place)
            if (newline := file.read(_BLOCK).rfind(b"\n")) >= 0:
                place += newline + 1
                break
        if place < end:
            file.truncate(place)
