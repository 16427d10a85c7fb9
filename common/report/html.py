"""report.html: one page that opens offline. It refers to nothing outside itself, and its content policy forbids it to.

Whatever a model wrote reaches the page as JSON in which `<`, `>` and `&` are escaped, and is shown as text, never as HTML.
"""

import json
import math
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from common.disk import writing
from common.figures import seconds
from common.metrics import RoundMetrics, collect_rounds
from common.report import gantt, summary
from common.report.evals import COLUMNS, evaluations
from common.report.rundir import RunInfo, run_events, run_info
from common.report.samples import choose_samples
from common.timeline import Event

_PAGE = Path(__file__).parent / "page"
_MAX_LENGTHS = 20_000  # response lengths in each of the two histograms


def write_report(run_dir: Path) -> Path:
    """Write RUN_DIR/report.html, also of a run that still goes on or was killed. Raises DataError on a missing run."""
    events = list(run_events(run_dir))
    info, rounds = run_info(run_dir, events), collect_rounds(events)
    lines, num_lines = summary.incidents(events)
    context = {
        "info": info,
        "settings": summary.settings(info),
        "config_text": yaml.safe_dump(info.config, sort_keys=False) if info.config else "",
        "tiles": summary.tiles(info, rounds),
        "columns": summary.columns(info),
        "rounds": rounds,
        "books": summary.books_rows(rounds),
        "incidents": lines,
        "num_incidents": num_lines,
        "evals": evaluations(events),
        "eval_columns": COLUMNS,
        "elapsed": seconds(info.end_s),
        "has_requests": any(event["kind"] == "response" for event in events),
    }
    return write_page(run_dir / "report.html", "report.html.j2", context, page_data(info, rounds, events))


def page_data(info: RunInfo, rounds: list[RoundMetrics], events: list[Event]) -> dict[str, Any]:
    """Everything that the page's scripts draw."""
    spans = gantt.round_spans(events)
    metrics = {entry.round: entry for entry in rounds}
    whole = {number: entry for number, entry in spans.items() if number in metrics}  # without its start, a round has none
    charts = [gantt.chart(entry, metrics[entry.number]) for entry in gantt.chosen_rounds(whole)]
    return {
        "rounds": [entry.to_json() for entry in rounds],
        "gap_limit": summary.gap_limit(info),
        "charts": charts,
        "evals": [{name: event[name] for name in ("version", "accuracy", "low", "high")} for event in evaluations(events)],
        "lengths": _lengths(events, rounds),
        "samples": choose_samples(info.directory, rounds),
    }


def _lengths(events: list[Event], rounds: list[RoundMetrics]) -> list[dict[str, Any]]:
    """Response lengths of the first and the last rounds (two of each where there are four)."""
    numbers = [entry.round for entry in rounds]
    width = 2 if len(numbers) >= 4 else 1
    parts = [numbers[:width], numbers[-width:]] if len(numbers) > 1 else [numbers]
    found: list[dict[str, Any]] = []
    for part in parts:
        lengths = [
            event["tokens"]
            for event in events
            if event["kind"] == "response" and event.get("round") in part and event["finish_reason"] != "abort"
        ]
        found.append({"rounds": part, "values": gantt.evenly(lengths, _MAX_LENGTHS)})
    return found


def write_page(path: Path, template: str, context: dict[str, Any], data: dict[str, Any]) -> Path:
    """Render a template with the shared style and scripts; whole or not at all."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = ("theme.js", "curves.js", "gantt.js", "samples.js")
    text = environment.get_template(template).render(
        **context,
        style=Markup((_PAGE / "report.css").read_text(encoding="utf-8")),
        scripts=[Markup((_PAGE / name).read_text(encoding="utf-8")) for name in names],
        plotly=Markup(get_plotlyjs()),
        data=Markup(script_json(data)),
    )
    draft = path.with_suffix(".html.tmp")
    with writing(path):
        draft.write_text(text, encoding="utf-8", errors="replace")
        draft.replace(path)
    return path


def script_json(data: Any) -> str:
    """JSON that may stand inside a script element: no character of it can end the element or begin a tag."""
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
