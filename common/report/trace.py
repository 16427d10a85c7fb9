"""timeline.jsonl -> trace.json in the Chrome trace format: open it at ui.perfetto.dev or chrome://tracing.

One process per engine replica with a track per running slot, one each for trainer, verifier and publish, arrows from a
group's last response to its accumulate, and counters for requests in flight and complete groups that wait. Written as
read: memory does not grow with the length of the run.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from common.disk import writing
from common.report.rundir import run_events
from common.report.spans import Span, SpanBuilder
from common.round_events import finite
from common.timeline import Event

Record = dict[str, Any]

# Process ids; replicas follow.
_FIXED = {"round": 1, "trainer": 2, "verifier": 3, "publish": 4, "queue": 5, "phase": 6, "evaluation": 7}
_TITLES = {"round": "rounds", "phase": "start", "queue": "complete-group queue"}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 1)


class _TraceWriter:
    """Turns events into trace records."""

    def __init__(self) -> None:
        self._spans = SpanBuilder()
        self._pids = dict(_FIXED)
        self._tracks: set[tuple[str, int]] = set()
        self._in_flight: Counter[str] = Counter()
        self._last_response: dict[str, Span] = {}  # of each group that is not yet trained
        self._queue: list[tuple[float, int]] = []  # moments at which a complete group came (+1) or was taken (-1)
        self._round: tuple[int, float] | None = None
        self._flow = 0
        self._now_s = 0.0

    def add(self, event: Event) -> Iterator[Record]:
        """The records of one event."""
        self._now_s = event["t"]
        for span in self._spans.add(event):
            yield from self._bar(span)
        handler = getattr(self, f"_on_{event['kind']}", None)
        if handler is not None:
            yield from handler(event)

    def finish(self) -> Iterator[Record]:
        """Close what a killed run left open."""
        for span in self._spans.close(self._now_s):
            yield from self._bar(span)
        yield from self._close_round(self._now_s)

    def _track(self, place: str, lane: int = 0) -> Iterator[Record]:
        """Names of the process and the track, once; also where tracks stand."""
        if (place, lane) in self._tracks:
            return
        if place not in self._pids:
            self._pids[place] = len(self._pids) + 10
        pid = self._pids[place]
        if not any(known == place for known, _ in self._tracks):
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": _TITLES.get(place, place)}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        self._tracks.add((place, lane))
        title = f"slot {lane}" if pid > 10 else (f"lane {lane}" if place == "verifier" else place)
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": lane + 1, "args": {"name": title}}

    def _at(self, place: str, lane: int, seconds: float) -> Record:
        return {"pid": self._pids[place], "tid": lane + 1, "ts": _microseconds(seconds)}

    def _bar(self, span: Span) -> Iterator[Record]:
        yield from self._track(span.place, span.lane)
        start, end = _microseconds(span.start_s), _microseconds(span.end_s)
        args = {"round": span.round, "group": span.group, **{name: finite(value) for name, value in span.args.items()}}
        place = {"pid": self._pids[span.place], "tid": span.lane + 1, "ts": start, "dur": round(end - start, 1)}
        yield {"ph": "X", "name": span.name, "cat": span.place, **place, "args": args}
        if "ended_by" in span.args:
            yield self._count_in_flight(span.place, span.end_s, -1)
            if span.args["ended_by"] == "response" and span.group is not None:
                self._last_response[span.group] = span
        if span.name == "accumulate" and span.group is not None:
            self._queue.append((span.start_s, -1))
            yield from self._arrow(span)

    def _arrow(self, span: Span) -> Iterator[Record]:
        """From the group's last response to the accumulate that took it."""
        source = self._last_response.pop(span.group or "", None)
        if source is None:
            return
        self._flow += 1
        flow = {"name": "group", "cat": "group", "id": self._flow}
        yield {"ph": "s", **flow, **self._at(source.place, source.lane, max(source.start_s, source.end_s - 1e-6))}
        yield {"ph": "f", "bp": "e", **flow, **self._at("trainer", 0, span.start_s)}

    def _count_in_flight(self, replica: str, seconds: float, change: int) -> Record:
        self._in_flight[replica] += change
        values = {"requests": self._in_flight[replica]}
        return {"ph": "C", "name": "in flight", "pid": self._pids[replica], "ts": _microseconds(seconds), "args": values}

    def _on_dispatch(self, event: Event) -> Iterator[Record]:
        yield from self._track(str(event["replica"]))
        yield self._count_in_flight(str(event["replica"]), event["t"], +1)

    _on_eval_dispatch = _on_dispatch

    def _on_group_complete(self, event: Event) -> Iterator[Record]:
        if not event.get("filtered"):
            self._queue.append((event["t"], +1))
        yield from self._instant("queue", f"{event['group']} complete", event)

    def _on_group_drop(self, event: Event) -> Iterator[Record]:
        self._last_response.pop(event["group"], None)
        yield from self._instant("queue", f"{event['group']} dropped: {event.get('reason')}", event)

    def _on_update(self, event: Event) -> Iterator[Record]:
        yield from self._instant("trainer", f"optimizer step {event['optimizer_step']}", event)

    def _on_stall(self, event: Event) -> Iterator[Record]:
        yield from self._instant("round", f"stall: {event.get('message')}", event)

    def _on_fault(self, event: Event) -> Iterator[Record]:
        yield from self._instant("round", f"fault of {event['part']}: {event.get('detail')}", event)

    def _on_recovered(self, event: Event) -> Iterator[Record]:
        yield from self._instant("round", f"{event['part']} is back: {event.get('detail')}", event)

    def _instant(self, place: str, name: str, event: Event) -> Iterator[Record]:
        yield from self._track(place)
        yield {"ph": "i", "s": "p", "name": name, "cat": event["kind"], **self._at(place, 0, event["t"])}

    def _on_round_start(self, event: Event) -> Iterator[Record]:
        yield from self._close_round(event["t"])
        yield from self._track("round")
        self._round = (event["round"], event["t"])

    def _on_round_end(self, event: Event) -> Iterator[Record]:
        yield from self._close_round(event["t"])

    def _close_round(self, now_s: float) -> Iterator[Record]:
        """The round's own bar, and its queue counter, whose moments are now all known."""
        waiting = 0
        for moment, change in sorted(self._queue):
            waiting += change
            values = {"groups": max(0, waiting)}
            yield {"ph": "C", "name": "waiting", "pid": _FIXED["queue"], "ts": _microseconds(moment), "args": values}
        self._queue.clear()
        self._last_response.clear()
        if self._round is not None:
            number, start = self._round
            self._round = None
            where = {**self._at("round", 0, start), "dur": _microseconds(now_s - start)}
            yield {"ph": "X", "name": f"round {number}", "cat": "round", **where, "args": {"round": number}}


def trace_records(events: Iterable[Event]) -> Iterator[Record]:
    """The trace of a timeline, record by record."""
    writer = _TraceWriter()
    for event in events:
        yield from writer.add(event)
    yield from writer.finish()


def write_trace(run_dir: Path) -> Path:
    """Write RUN_DIR/trace.json. Raises DataError where RUN_DIR is not a run directory."""
    path = run_dir / "trace.json"
    events = run_events(run_dir)
    draft = path.with_suffix(".json.tmp")
    try:
        with writing(path), draft.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            for number, record in enumerate(trace_records(events)):
                file.write((",\n" if number else "") + json.dumps(record, separators=(",", ":")))
            file.write("\n]}\n")
        return draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
