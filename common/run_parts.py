"""What a run works with, and what it gives."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.metrics import RoundMetrics
from common.protocols import Engine, Problem, Trainer, Verifier
from common.publish import Publisher
from common.timeline import Timeline
from common.workloads.load import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What a run works with; made and closed by `common.launch`."""

    engine: Engine
    trainer: Trainer
    verifier: Verifier
    publisher: Publisher
    decode: Callable[[Any], str]
    workload: Workload
    eval_problems: Sequence[Problem] = ()
    timeline: Timeline
    model_dir: Path  # of the starting weights


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run gave; also `result.json`."""

    schedule: str
    rounds: list[RoundMetrics]
    weight_version: int
    final_weights_sha256: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "rounds": [metrics.to_json() for metrics in self.rounds]}
