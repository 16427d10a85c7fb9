"""Who was busy when: the bars of a timeline, found in one pass over its events.

A request gets the lowest free slot of its replica when it is dispatched and leaves it with its response, its retry, or
its group's drop, so two bars of a slot never overlap. Verifier calls, known only at their end, take the first lane that
was free at their start. `SpanBuilder` hands out each bar as soon as its end is known, and so needs memory only for what
is open: a trace of any length can be streamed.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from common.timeline import Event


@dataclass(slots=True, kw_only=True)
class Span:
    """One bar."""

    place: str  # replica name, "trainer", "verifier", "publish", "evaluation" or "phase"
    lane: int  # slot of the replica, or lane of the verifier
    name: str
    start_s: float
    end_s: float
    round: int | None
    group: str | None = None
    args: dict[str, Any] = field(default_factory=dict)


class Slots:
    """Gives the lowest free number."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self.num_used = 0  # highest number of slots ever taken together

    def take(self) -> int:
        """The lowest free slot."""
        if self._free:
            return heapq.heappop(self._free)
        self.num_used += 1
        return self.num_used - 1

    def give(self, slot: int) -> None:
        """Free it."""
        heapq.heappush(self._free, slot)


class Lanes:
    """Lanes for intervals that arrive ordered by their end."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def take(self, start: float, end: float) -> int:
        """The first lane whose last interval ended by `start`."""
        for lane, last in enumerate(self._ends):
            if last <= start:
                self._ends[lane] = end
                return lane
        self._ends.append(end)
        return len(self._ends) - 1


class SpanBuilder:
    """Feed events in order; each call yields the bars that ended with it."""

    def __init__(self) -> None:
        self.slots: dict[str, Slots] = {}
        self._running: dict[str, Span] = {}  # by request
        self._groups: dict[str, set[str]] = {}  # running requests of each group
        self._lanes = Lanes()
        self._phase: Span | None = None

    def add(self, event: Event) -> Iterator[Span]:
        """The bars that end with this event."""
        kind = event["kind"]
        if kind in ("dispatch", "eval_dispatch"):
            yield from self._dispatch(event)
        elif kind in ("response", "retry", "eval_response", "eval_retry"):
            yield from self._leave(event["request"], event)
        elif kind == "group_drop":
            for request in sorted(self._groups.pop(event["group"], ())):
                yield from self._leave(request, event)
        elif kind in ("verify", "compute", "wait", "publish", "eval"):
            yield self._interval(event)
        elif kind in ("round_start", "round_end", "run_end", "phase"):
            yield from self.close(event["t"])
            if kind == "phase":
                self._phase = self._span(event, "phase", 0, event["name"], event["t"])

    def close(self, now_s: float) -> Iterator[Span]:
        """End everything that is still open."""
        for request in list(self._running):
            yield from self._leave(request, {"t": now_s, "kind": "round_end"})
        if self._phase is not None:
            self._phase.end_s = now_s
            yield self._phase
            self._phase = None

    def _span(self, event: Event, place: str, lane: int, name: str, start: float) -> Span:
        return Span(
            place=place, lane=lane, name=name, start_s=start, end_s=event["t"], round=event.get("round"), group=event.get("group")
        )

    def _dispatch(self, event: Event) -> Iterator[Span]:
        if event["request"] in self._running:  # sent again without a word about the first time
            yield from self._leave(event["request"], event)
        replica = str(event["replica"])
        slot = self.slots.setdefault(replica, Slots()).take()
        span = self._running[event["request"]] = self._span(event, replica, slot, event["request"], event["t"])
        if event["kind"] == "eval_dispatch":
            span.args = {"is_eval": True}
        self._groups.setdefault(event["group"], set()).add(event["request"])

    def _leave(self, request: str, event: Event) -> Iterator[Span]:
        span = self._running.pop(request, None)
        if span is None:
            return
        self.slots[span.place].give(span.lane)
        members = self._groups.get(span.group or "")
        if members is not None:
            members.discard(request)
            if not members:
                del self._groups[span.group or ""]
        span.end_s = event["t"]
        if event["kind"] in ("response", "eval_response"):
            span.args |= {"tokens": event["tokens"], "finish_reason": event["finish_reason"]}
        span.args["ended_by"] = event["kind"]
        yield span

    def _interval(self, event: Event) -> Span:
        kind, start = event["kind"], event["start"]
        if kind == "verify":
            lane = self._lanes.take(start, event["t"])
            span = self._span(event, "verifier", lane, f"{event['group']}/m{event['member']}", start)
            span.args = {"status": event["status"], "reward": event.get("reward")}
            return span
        if kind == "publish":
            return self._span(event, "publish", 0, event["phase"], start)
        if kind == "eval":
            span = self._span(event, "evaluation", 0, f"evaluate version {event['version']}", start)
            span.args = {"accuracy": event["accuracy"], "held_up_s": event["wait"]}
            return span
        name = "wait" if kind == "wait" else event["phase"]
        span = self._span(event, "trainer", 0, name, start)
        span.args = {"update": event["update"]} if kind == "compute" else {"on": event.get("on")}
        return span
