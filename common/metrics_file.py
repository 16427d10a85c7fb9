"""`metrics.jsonl`: the figures of a run, one round a line. Of a round that is run again the last try counts, unless a replay."""

import json
from pathlib import Path

from common.disk import writing
from common.json_lines import read_lines
from common.metrics import RoundMetrics
from common.rundir import write_atomically


class MetricsFile:
    """Of one run; a torn last line, which a killed run may leave, is forgotten."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rounds = {metrics.round: metrics for metrics in read_metrics(path)}
        self.is_replay = False  # the round that goes on is trained from disk: its times say nothing

    @property
    def rounds(self) -> list[RoundMetrics]:
        """In order."""
        return [self._rounds[index] for index in sorted(self._rounds)]

    def add(self, metrics: RoundMetrics) -> None:
        """The figures of one more round; those of later rounds, from a try before it, are forgotten."""
        if self.is_replay and metrics.round in self._rounds:
            return
        before = {index: each for index, each in self._rounds.items() if index < metrics.round}
        is_next = len(before) == len(self._rounds) and not _is_torn(self._path)
        self._rounds = {**before, metrics.round: metrics}
        if is_next:
            append_metrics(self._path, metrics)
        else:
            write_atomically(self._path, "".join(map(metrics_line, self.rounds)))


def append_metrics(path: Path, metrics: RoundMetrics) -> None:
    """One more line of `metrics.jsonl`. Raises DiskError."""
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write(metrics_line(metrics))


def metrics_line(metrics: RoundMetrics) -> str:
    """A line of `metrics.jsonl`, its end included."""
    return json.dumps(metrics.to_json(), separators=(",", ":"), allow_nan=False) + "\n"


def read_metrics(path: Path) -> list[RoundMetrics]:
    """The rounds of `metrics.jsonl`; none where it is not there. A torn last line, which a killed run may leave, is skipped."""
    return list(read_lines(path, lambda line: RoundMetrics(**line)))


def _is_torn(path: Path) -> bool:
    return path.exists() and not path.read_bytes().endswith(b"\n")
