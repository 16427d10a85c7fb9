"""report.html of a comparison: the same prompts and starting weights under several schedules, side by side.

A comparison is a directory with one run directory per schedule. The picture shows the round of median length of each
schedule, all on one time axis.
"""

from pathlib import Path
from typing import Any

from common.errors import DataError, explain
from common.figures import number, percent, seconds, small
from common.metrics import RoundMetrics, collect_rounds, summarize
from common.report import gantt, summary
from common.report.html import write_page
from common.report.rundir import TIMELINE, RunInfo, run_events, run_info

_ORDER = ("serial", "cgp", "fgd", "fgd-strict", "adaptive")
Row = tuple[str, str, str, bool | None]  # key of the medians, title, format, whether lower is better

ROWS: tuple[Row, ...] = (
    ("r2t_end_s", "Rollout to train end", "seconds", True),
    ("first_group_s", "First group at the trainer", "seconds", True),
    ("first_dispatch_s", "First dispatch", "seconds", True),
    ("waiting_ratio", "Waiting ratio", "percent", True),
    ("waiting_ratio_first", "Waiting ratio, first dispatch", "percent", True),
    ("rollout_s", "Rollout", "seconds", None),
    ("trainer_compute_s", "Trainer compute", "seconds", None),
    ("publish_s", "Publish", "seconds", None),
    ("rollout_tokens_per_s", "Tokens/s sampled", "number", None),
    ("tokens", "Tokens trained", "number", None),
    ("length_mean", "Response length, mean", "number", None),
    ("groups_trained", "Groups trained", "number", None),
    ("reward_mean", "Reward, mean", "small", None),
    ("logprob_gap_max", "Log-prob gap, largest", "small", None),
)
_FORMATS = {"seconds": seconds, "percent": percent, "number": number, "small": small}


class _Side:
    """One schedule of the comparison."""

    def __init__(self, directory: Path) -> None:
        events = list(run_events(directory))
        self.info: RunInfo = run_info(directory, events)
        self.rounds: list[RoundMetrics] = collect_rounds(events)
        self.medians = summarize(self.rounds)
        self.label = self.info.schedule
        self.chart = self._median_chart(gantt.round_spans(events))

    def _median_chart(self, spans: dict[int, gantt.RoundSpans]) -> dict[str, Any] | None:
        timed = sorted((m for m in self.rounds if m.is_finished and m.r2t_end_s is not None), key=lambda m: m.r2t_end_s or 0.0)
        if not timed:
            return None
        middle = timed[(len(timed) - 1) // 2]
        return gantt.chart(spans[middle.round], middle)


def write_compare_report(compare_dir: Path) -> Path:
    """Write COMPARE_DIR/report.html. Raises DataError where there is no finished round to compare."""
    sides = _sides(compare_dir)
    base = sides[0]
    context = {
        "title": compare_dir.resolve().name,
        "sides": sides,
        "settings": summary.settings(base.info),
        "rows": [_row(row, sides) for row in ROWS if any(side.medians[row[0]] is not None for side in sides)],
        "tiles": [_tile(side, base) for side in sides],
    }
    data = {"charts": [{"title": side.label, **side.chart} for side in sides if side.chart], "compare": True}
    return write_page(compare_dir / "report.html", "compare.html.j2", context, data)


def _sides(compare_dir: Path) -> list[_Side]:
    found = sorted(path.parent for path in compare_dir.glob(f"*/{TIMELINE}")) if compare_dir.is_dir() else []
    if not found:
        rule = "must be a directory with one run directory per schedule"
        raise DataError(explain("COMPARE_DIR", rule, str(compare_dir), "give the directory that `compare` printed"))
    sides = sorted((_Side(path) for path in found), key=lambda side: (_rank(side.info.schedule), side.info.directory.name))
    names = [side.label for side in sides]
    for side in sides:
        if names.count(side.label) > 1:
            side.label = side.info.directory.name
    return sides


def _rank(schedule: str) -> int:
    return _ORDER.index(schedule) if schedule in _ORDER else len(_ORDER)


def _change(value: float | None, base: float | None) -> float | None:
    return value / base - 1 if value is not None and base else None


def _signed(change: float | None) -> str:
    if change is None:
        return ""
    text = f"{100 * change:+.1f} %"
    return "±0.0 %" if text in ("+0.0 %", "-0.0 %") else text.replace("-", "−")


def _row(row: Row, sides: list[_Side]) -> dict[str, Any]:
    key, title, form, lower_is_better = row
    values = [side.medians[key] for side in sides]
    changes = [_change(value, values[0]) if place else None for place, value in enumerate(values)]
    best = min((value for value in values if value is not None), default=None) if lower_is_better else None
    cells = [
        {"text": _FORMATS[form](value), "change": _signed(change), "best": value == best}
        for value, change in zip(values, changes, strict=True)
    ]
    return {"title": title, "cells": [{**cell, "best": cell["best"] and best is not None} for cell in cells]}


def _tile(side: _Side, base: _Side) -> dict[str, str]:
    change = None if side is base else _change(side.medians["r2t_end_s"], base.medians["r2t_end_s"])
    waits = f"trainer waits {percent(side.medians['waiting_ratio'])}"
    against = "" if change is None else f"{_signed(change)} against {base.label}; "
    role = "plain" if change is None or change >= 0 else "train"
    return {"label": side.label, "value": seconds(side.medians["r2t_end_s"]), "note": against + waits, "role": role}
