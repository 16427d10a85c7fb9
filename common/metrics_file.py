"""`metrics.jsonl`: the figures of a run, one round a line."""

import json
from pathlib import Path

from common.disk import writing
from common.metrics import RoundMetrics


def append_metrics(path: Path, metrics: RoundMetrics) -> None:
    """One more line of `metrics.jsonl`. Raises DiskError."""
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write(metrics_line(metrics))


def metrics_line(metrics: RoundMetrics) -> str:
    """A line of `metrics.jsonl`, its end included."""
    return json.dumps(metrics.to_json(), separators=(",", ":"), allow_nan=False) + "\n"


def read_metrics(path: Path) -> list[RoundMetrics]:
    """The rounds of `metrics.jsonl`; none where it is not there. A torn last line, which a killed run may leave, is skipped."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [RoundMetrics(**json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]
