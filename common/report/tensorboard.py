"""Scalars and histograms for TensorBoard, written as the run goes.

By round: every figure of `RoundMetrics` under `round/`, and the response lengths. By optimizer step: loss, gradient norm
and the trainer's own metrics under `update/`. By weight version: the figures of its evaluation under `eval/`.
"""

import math
import os
import time
from pathlib import Path
from typing import Any

from common.disk import writing
from common.metrics import RoundCollector, RoundMetrics
from common.timeline import Event, Timeline

_MAX_BINS = 64  # of a histogram
_NOT_EVAL_FIGURES = frozenset({"t", "kind", "start", "round", "version", "pass_at"})
_SKIPPED = frozenset({"round", "version", "schedule", "is_finished", "books"})


class EventFile:
    """What tensorboardX's own writer does, without its thread: a full disk would end that, and the run would wait for it."""

    def __init__(self, directory: Path) -> None:
        from tensorboardX import event_file_writer, summary  # here, because it imports torch where torch is installed
        from tensorboardX.proto import event_pb2

        self._summary, self._event = summary, event_pb2.Event
        self._directory = directory
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            # The process is part of the name: a clock that was set back must not make a resumed run write over the first.
            self._file: Any = event_file_writer.EventsWriter(str(directory / "events"), f".{os.getpid()}")

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """One point of a curve. Raises DiskError, as the other calls."""
        self._write(self._summary.scalar(tag, value), step)

    def add_lengths(self, tag: str, values: list[int], step: int) -> None:
        """One histogram."""
        self._write(self._summary.histogram(tag, values, "auto", max_bins=_MAX_BINS), step)

    def _write(self, summary: Any, step: int) -> None:
        with writing(self._directory):
            self._file.write_event(self._event(summary=summary, step=step, wall_time=time.time()))

    def flush(self) -> None:
        """So that TensorBoard sees it."""
        with writing(self._directory):
            self._file.flush()

    def close(self) -> None:
        """Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            with writing(self._directory):
                file.close()


class TensorboardListener:
    """Listens to a timeline; `close` when the run ends (idempotent)."""

    def __init__(self, timeline: Timeline, directory: Path) -> None:
        self._writer = EventFile(directory)
        self._collector = RoundCollector(self._on_round)
        self._lengths: list[int] = []
        self._unlisten = timeline.listen(self._listen)

    def _listen(self, event: Event) -> None:
        kind = event["kind"]
        if kind == "response" and event["finish_reason"] != "abort":
            self._lengths.append(event["tokens"])
        elif kind == "update":
            self._on_update(event)
        elif kind == "eval":
            self._on_eval(event)
        self._collector.listen(event)

    def _on_update(self, event: Event) -> None:
        values = {"loss": event["loss"], "grad_norm": event["grad_norm"], **(event.get("metrics") or {})}
        for name, value in values.items():
            self._scalar(f"update/{name}", value, event["optimizer_step"])

    def _on_eval(self, event: Event) -> None:
        values = {f"pass_at_{k}": value for k, value in event["pass_at"].items()}
        values |= {name: value for name, value in event.items() if name not in _NOT_EVAL_FIGURES}
        for name, value in values.items():
            self._scalar(f"eval/{name}", value, event["version"])
        self._writer.flush()

    def _on_round(self, metrics: RoundMetrics) -> None:
        for name, value in metrics.to_json().items():
            if name not in _SKIPPED:
                self._scalar(f"round/{name}", value, metrics.round)
        if self._lengths:
            self._writer.add_lengths("round/response_length", self._lengths, metrics.round)
        self._lengths = []
        self._collector.rounds.clear()  # they are written
        self._writer.flush()

    def _scalar(self, tag: str, value: Any, step: int) -> None:
        if value is not None and math.isfinite(value):
            self._writer.add_scalar(tag, value, step)

    def close(self) -> None:
        """Write what is left. Raises DiskError."""
        self._unlisten()
        self._writer.close()
