"""The run directory (design section 8): where everything of a run lies, and its state for a resume."""

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from common.config import Config
from common.errors import ConfigError, DataError, explain


@dataclass(frozen=True, slots=True)
class RunDir:
    """Places within one run directory."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def timeline(self) -> Path:
        return self.path / "timeline.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def groups(self) -> Path:
        return self.path / "groups"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def result(self) -> Path:
        return self.path / "result.json"


def plan_run_dir(config: Config) -> RunDir:
    """Where the run will lie; nothing is made yet. Raises ConfigError where a run lies there already."""
    if config.run_dir is not None:
        run_dir = RunDir(Path(config.run_dir))
        if run_dir.config.exists() or run_dir.timeline.exists():
            remedy = f"choose another, remove it, or go on with it: --resume {config.run_dir}"
            raise ConfigError(explain("run_dir", "must not hold a run already", config.run_dir, remedy))
        return run_dir
    stem = Path("runs") / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = stem, 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}")
    return RunDir(path)


def create(run_dir: RunDir, config: Config) -> None:
    """Make the directory with the resolved configuration."""
    try:
        run_dir.logs.mkdir(parents=True)
        write_atomically(run_dir.config, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    except OSError as error:
        remedy = f"give a place that can be written ({error.strerror})"
        raise ConfigError(explain("run_dir", "must be a directory that can be made", str(run_dir.path), remedy)) from error


def write_atomically(path: Path, text: str) -> None:
    """All of `text`, or what was there before."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def checkpoint_dir(run_dir: RunDir, num_rounds: int) -> Path:
    """Of the state after so many rounds."""
    return run_dir.checkpoints / f"round-{num_rounds:05d}"


def finished_checkpoints(run_dir: RunDir) -> list[Path]:
    """Oldest first; `state.json` is written last, so one without it was not finished."""
    return sorted(path.parent for path in run_dir.checkpoints.glob("round-*/state.json"))


def read_state(checkpoint: Path) -> dict[str, Any]:
    """What the run, not the trainer, needs to go on."""
    try:
        state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(explain("--resume", "needs a readable state.json", str(checkpoint), "remove this checkpoint")) from error
    return dict(state)


def prune(run_dir: RunDir, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and what an interrupted save left."""
    finished = finished_checkpoints(run_dir)
    for path in run_dir.checkpoints.glob("round-*"):
        if path not in finished[-keep:]:
            shutil.rmtree(path, ignore_errors=True)
