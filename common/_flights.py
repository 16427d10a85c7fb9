"""The requests in flight of an adaptive policy: how far each of them is, and what those that end tell about the engines' speed.

Pure core: the standard library alone. All running requests decode one token a step, so it is enough to count steps: the seconds
that pass over the step time at that occupancy. Whoever was admitted at step n has decoded `steps - n` tokens by now.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from common.errors import MAX_COUNT, UsageError, check_count, explain, is_finite
from common.history import StepTime
from common.records import PipelineState, Request

_MAX_PAUSE_S = 1e6  # between two observations; more is a clock that jumped


def check_state(state: PipelineState) -> None:
    """Raise UsageError where a number is none, or cannot be."""
    if not isinstance(state, PipelineState):
        raise UsageError(explain("state", "must be a PipelineState", state, "pass common.records.PipelineState"))
    if not is_finite(state.now_s):
        raise UsageError(explain("now_s", "must be a finite number", state.now_s, "pass seconds of one clock"))
    for name in ("trainer_backlog_groups", "engine_running", "engine_capacity"):
        check_count(name, getattr(state, name), 0, "pass 0 while unknown", maximum=MAX_COUNT)
    for name in ("trainer_groups_per_s", "engine_tokens_per_s", "trainer_tokens_per_s", "trainer_update_s"):
        value = getattr(state, name)
        if not (is_finite(value) and value >= 0):
            raise UsageError(explain(name, "must be a finite number of 0 or more", value, "pass 0.0 while unknown"))


@dataclass(slots=True)
class _Flight:
    admitted_s: float | None  # None: nothing had been observed, or the clock has jumped since
    steps: float  # when it was admitted
    area: float  # occupancy x steps, summed up to then


class Flights:
    """`observe` the clock before requests are admitted, as in `AdmissionPolicy`; the rest as it happens."""

    def __init__(self, step_time: StepTime) -> None:
        self._step_time = step_time
        self._flights: dict[Hashable, _Flight] = {}
        self._ended: list[tuple[_Flight, int]] = []  # and their tokens, since the last observation
        self._now_s: float | None = None
        self._capacity = 0
        self._num_running = 0  # since the last admission
        self._steps = self._area = 0.0

    def observe(self, state: PipelineState) -> None:
        """Time has passed; those that ended since the last observation ended just now.

        Where the clock has jumped, back or far ahead, no time has passed until it is where it was, and those that ran meanwhile
        teach no speed.
        """
        now_s = float(state.now_s)
        passed_s = 0.0 if self._now_s is None else now_s - self._now_s
        if self._now_s is not None and not 0 <= passed_s <= _MAX_PAUSE_S:
            now_s, passed_s = self._now_s, 0.0
            for flight in (*self._flights.values(), *(flight for flight, _ in self._ended)):
                flight.admitted_s = None
        if self._capacity > 0 and self._num_running:
            occupancy = self._num_running / self._capacity
            steps = passed_s / self._step_s(occupancy)
            self._steps += steps
            self._area += occupancy * steps
        self._now_s, self._capacity = now_s, state.engine_capacity
        self._learn(now_s)

    def admit(self, requests: Iterable[Request]) -> None:
        """They run from now on."""
        for request in requests:
            self._flights[request.request_id] = _Flight(self._now_s, self._steps, self._area)
        self._num_running = len(self._flights)

    def finish(self, request_id: Hashable, num_tokens: int | None) -> None:
        """It has ended; `num_tokens` of its response, where known."""
        flight = self._flights.pop(request_id)
        if num_tokens:
            self._ended.append((flight, num_tokens))

    def forget(self, request_id: Hashable) -> None:
        """It has ended, and says nothing about the speed."""
        del self._flights[request_id]

    def tokens(self, request_id: Hashable) -> float | None:
        """Decoded by now, an estimate; None: it is not in flight."""
        flight = self._flights.get(request_id)
        return None if flight is None else self._steps - flight.steps

    def _step_s(self, occupancy: float) -> float:
        """Seconds of an engine step; 1 while unknown."""
        line = self._step_time.line()
        return (line[0] + line[1] * occupancy if line is not None else 0.0) or 1.0

    def _learn(self, now_s: float) -> None:
        was_unknown = self._step_time.line() is None
        for flight, tokens in self._ended:
            steps = self._steps - flight.steps
            if steps > 0 and flight.admitted_s is not None:
                self._step_time.learn((now_s - flight.admitted_s) / tokens, (self._area - flight.area) / steps)
        self._ended.clear()
        if was_unknown and self._step_time.line() is not None:
            self._rescale(1 / self._step_s(self._area / self._steps))

    def _rescale(self, scale: float) -> None:
        """Steps were counted as seconds while the step time was unknown."""
        self._steps, self._area = self._steps * scale, self._area * scale
        for flight in self._flights.values():
            flight.steps, flight.area = flight.steps * scale, flight.area * scale
