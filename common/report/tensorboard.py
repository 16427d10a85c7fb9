"""Scalars and histograms for TensorBoard, written as the run goes.

By round: every figure of `RoundMetrics` under `round/`, and the response lengths. By optimizer step: loss, gradient norm
and the trainer's own metrics under `update/`. By weight version: the figures of its evaluation under `eval/`.
"""

import math
from pathlib import Path
from typing import Any

from common.metrics import RoundCollector, RoundMetrics
from common.timeline import Event, Timeline

_NOT_EVAL_FIGURES = frozenset({"t", "kind", "start", "round", "version", "pass_at"})
_SKIPPED = frozenset({"round", "version", "schedule", "is_finished", "books"})


class TensorboardListener:
    """Listens to a timeline; `close` when the run ends (idempotent)."""

    def __init__(self, timeline: Timeline, directory: Path) -> None:
        from tensorboardX import SummaryWriter  # here, because it imports torch where torch is installed

        self._writer = SummaryWriter(str(directory))
        self._collector = RoundCollector(self._on_round)
        self._lengths: list[int] = []
        timeline.listen(self._listen)

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
            self._writer.add_histogram("round/response_length", self._lengths, metrics.round)
        self._lengths = []
        self._writer.flush()

    def _scalar(self, tag: str, value: Any, step: int) -> None:
        if value is not None and math.isfinite(value):
            self._writer.add_scalar(tag, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
