"""The chart of one round as compact plain values, which `page/gantt.js` draws. Times are seconds from the round's start.

An engine shows one bar per request; where a run has too many for a page (or too many slots for a picture) it shows how
many requests were in flight instead, and of a long run only some rounds keep their chart: first, last, evenly between.
"""

from collections.abc import Iterable
from typing import Any

from common.metrics import RoundMetrics
from common.report.spans import Span, SpanBuilder
from common.timeline import Event, group_number

MAX_BARS = 30_000  # request bars in one page
MAX_SLOTS = 320  # of all engines together, drawn one by one
MAX_STEPS = 1_500  # points of an in-flight curve

Chart = dict[str, Any]


class RoundSpans:
    """The bars of one round as they happened."""

    def __init__(self, number: int, start_s: float) -> None:
        self.number, self.start_s, self.end_s = number, start_s, start_s
        self.spans: list[Span] = []

    @property
    def num_requests(self) -> int:
        """Request bars."""
        return sum("ended_by" in span.args for span in self.spans)


def round_spans(events: Iterable[Event]) -> dict[int, RoundSpans]:
    """The bars of every round; a round that was started again after a kill counts once, as its last try."""
    builder, rounds = SpanBuilder(), dict[int, RoundSpans]()
    current: RoundSpans | None = None
    for event in events:
        ended = list(builder.add(event))
        if event["kind"] == "round_start":
            current = rounds[event["round"]] = RoundSpans(event["round"], event["t"])
        elif current is not None and event.get("round") == current.number:
            current.end_s = event["t"]
            current.spans += [span for span in ended if span.round == current.number]
    if current is not None:
        current.spans += [span for span in builder.close(current.end_s) if span.round == current.number]
    return rounds


def evenly(items: list[Any], count: int) -> list[Any]:
    """At most `count` of the items, the first and the last among them."""
    if len(items) <= count:
        return items
    if count <= 1:
        return items[-1:]
    return [items[round(place * (len(items) - 1) / (count - 1))] for place in range(count)]


def chosen_rounds(rounds: dict[int, RoundSpans]) -> list[RoundSpans]:
    """Rounds whose bars fit into one page together."""
    ordered = [rounds[number] for number in sorted(rounds)]
    largest = max((spans.num_requests for spans in ordered), default=0)
    return evenly(ordered, max(2, MAX_BARS // max(1, largest)))


def chart(spans: RoundSpans, metrics: RoundMetrics) -> Chart:
    """The values of one chart."""
    requests = [span for span in spans.spans if "ended_by" in span.args]
    places = sorted({span.place for span in requests}, key=lambda name: (len(name), name))
    slots = {place: 1 + max(span.lane for span in requests if span.place == place) for place in places}
    draws_bars = len(requests) <= MAX_BARS // 2 and sum(slots.values()) <= MAX_SLOTS
    return {
        "round": spans.number,
        "end": _rounded(spans.end_s - spans.start_s),
        "orders": 1 + max((group_number(span.group or "") for span in requests if not _is_eval(span)), default=0),
        "engines": [
            _engine(place, count, [span for span in requests if span.place == place], spans.start_s, draws_bars)
            for place, count in slots.items()
        ],
        "trainer": [_trainer_bar(span, spans.start_s) for span in spans.spans if span.place == "trainer"],
        "verifier": [_bar(span, spans.start_s) for span in spans.spans if span.place == "verifier"] if draws_bars else [],
        "publish": [[*_bar(span, spans.start_s), span.name] for span in spans.spans if span.place == "publish"],
        "evaluation": [[*_bar(span, spans.start_s), span.name] for span in spans.spans if span.place == "evaluation"],
        "markers": _markers(metrics),
    }


def _rounded(seconds: float) -> float:
    return round(seconds, 3)


def _bar(span: Span, start_s: float) -> list[Any]:
    return [_rounded(span.start_s - start_s), _rounded(span.end_s - start_s)]


def _trainer_bar(span: Span, start_s: float) -> list[Any]:
    return [*_bar(span, start_s), span.name, span.args.get("update"), span.group]


def _engine(name: str, slots: int, spans: list[Span], start_s: float, draws_bars: bool) -> Chart:
    engine: Chart = {"name": name, "slots": slots}
    if draws_bars:
        engine["bars"] = [
            [*_bar(span, start_s), span.lane, _order(span), span.name, span.args.get("tokens"), _fate(span)] for span in spans
        ]
    else:
        engine["steps"] = in_flight(spans, start_s)
    return engine


def _is_eval(span: Span) -> bool:
    return "is_eval" in span.args


def _order(span: Span) -> int:
    """Of its group in the round; -1: not of the round, but of the evaluation in its tail."""
    return -1 if _is_eval(span) else group_number(span.group or "")


def _fate(span: Span) -> str:
    kind = span.args["ended_by"].removeprefix("eval_")
    return str(span.args.get("finish_reason") or {"retry": "sampled again", "group_drop": "group dropped"}.get(kind, "cut"))


def in_flight(spans: list[Span], start_s: float) -> list[list[float]]:
    """Requests in flight as [seconds, count] steps, thinned to what a picture can show."""
    changes = sorted([(span.start_s, 1) for span in spans] + [(span.end_s, -1) for span in spans])
    count, steps = 0, []
    for moment, change in changes:
        count += change
        steps.append([_rounded(moment - start_s), count])
    return evenly(steps, MAX_STEPS)


def _markers(metrics: RoundMetrics) -> list[list[Any]]:
    moments = {
        "first group": metrics.first_group_s,
        "first dispatch": metrics.first_dispatch_s,
        "rollout done": metrics.rollout_s,
        "last update": metrics.r2t_end_s,
    }
    return [[_rounded(moment), label] for label, moment in moments.items() if moment is not None]
