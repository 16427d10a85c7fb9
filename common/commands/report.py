"""`rolloutpipe report`."""

from pathlib import Path
from typing import Any

from rich.console import Console

from common.metrics import collect_rounds, summarize
from common.report.compare import write_compare_report
from common.report.html import write_report
from common.report.rundir import run_events
from common.report.trace import write_trace


def report(run_dir: Path, console: Console) -> dict[str, Any]:
    """Of a run, or of a comparison (a directory with compare.json). Raises DataError where neither is there."""
    if (run_dir / "compare.json").is_file():
        page = write_compare_report(run_dir)
        console.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)
        return {"report": str(page)}
    page, trace = write_report(run_dir), write_trace(run_dir)
    console.print(f"report: {page}\ntrace:  {trace} (open it in Perfetto)", markup=False, highlight=False, soft_wrap=True)
    rounds = collect_rounds(run_events(run_dir))
    return {
        "report": str(page),
        "trace": str(trace),
        "rounds": [metrics.to_json() for metrics in rounds],
        "median": summarize(rounds),
    }
