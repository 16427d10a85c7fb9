"""The figures of a round, computed from its timeline events alone: one definition for live view, reports and simulator.

`RoundCollector` takes events as they come (`Timeline.listen`); `collect_rounds` feeds it a recorded timeline. All durations
are seconds. None means: not known, as of a killed round's end.

    wait and compute      recorded trainer intervals, cut to [round start, end of the last update]
    waiting_ratio         wait / (wait + compute)
    first_dispatch_s      end of the trainer's last wait before the last accumulate of the round's first update began: then its
                          U-th group (or, where it fell short, its last) was handed over
    waiting_ratio_first   first_dispatch_s / r2t_end_s, the paper's other definition
"""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import fields

from common.round_events import RoundEvents, RoundMetrics, percentile
from common.timeline import Event

__all__ = ["RoundCollector", "RoundMetrics", "collect_rounds", "percentile", "summarize"]


class RoundCollector:
    """Turns events into `RoundMetrics`; calls `on_round` at each round_end. Pass its `listen` to `Timeline.listen`."""

    def __init__(self, on_round: Callable[[RoundMetrics], None] | None = None) -> None:
        self.rounds: list[RoundMetrics] = []  # finished
        self._on_round = on_round
        self._schedule = ""
        self._open: RoundEvents | None = None
        self._last: RoundEvents | None = None  # the open one, or the one before

    def listen(self, event: Event) -> None:
        """Take the next event."""
        if event["kind"] == "run_start":
            self._schedule = event.get("schedule", "")
        elif event["kind"] == "round_start":
            self._open = self._last = RoundEvents(event, event.get("schedule", self._schedule))
        elif self._open is not None and event.get("round") == self._open.round:
            self._open.add(event)
            if self._open.is_finished:
                self._finish(self._open.metrics())

    @property
    def was_replay(self) -> bool:
        """The last round, or the open one, is trained from disk alone."""
        return self._last is not None and self._last.is_replay

    def _finish(self, metrics: RoundMetrics) -> None:
        self._open = None
        self.rounds.append(metrics)
        if self._on_round is not None:
            self._on_round(metrics)

    def unfinished(self) -> RoundMetrics | None:
        """The open round so far, if one is open."""
        return self._open.metrics() if self._open is not None else None


def collect_rounds(events: Iterable[Event]) -> list[RoundMetrics]:
    """Every round of a recorded timeline, also an unfinished last one; of a repeated round (after a resume) the last try.

    A try that only trained what was on disk does not count where an earlier one finished.
    """
    found: dict[int, RoundMetrics] = {}
    collector = RoundCollector()
    for event in events:
        collector.listen(event)
        if event["kind"] == "round_end" and collector.rounds and not (collector.was_replay and event["round"] in found):
            found[event["round"]] = collector.rounds[-1]
    unfinished = collector.unfinished()
    if unfinished is not None and not (collector.was_replay and unfinished.round in found):
        found[unfinished.round] = unfinished
    return list(found.values())


def summarize(rounds: Iterable[RoundMetrics]) -> dict[str, float | None]:
    """Median of each figure over the finished rounds; None where no round has it."""
    finished = [metrics.to_json() for metrics in rounds if metrics.is_finished]
    medians: dict[str, float | None] = {}
    for name in (spec.name for spec in fields(RoundMetrics) if spec.name not in _NOT_FIGURES):
        values = [row[name] for row in finished if row[name] is not None]
        medians[name] = statistics.median(values) if values else None
    return medians


# Figures of a round by which schedules are compared.
COMPARED = (
    "r2t_end_s",
    "first_group_s",
    "first_dispatch_s",
    "waiting_ratio",
    "waiting_ratio_first",
    "trainer_compute_s",
    "trainer_cpu_s",
    "rollout_s",
    "tokens",
)
_NOT_FIGURES = frozenset({"round", "version", "schedule", "is_finished", "books", "optimizer_step"})
