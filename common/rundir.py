"""The run directory (design section 8): where everything of a run lies, and its state for a resume."""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from common.config import Config
from common.durable import write_durably
from common.errors import MAX_COUNT, ConfigError, DataError, DiskError, explain
from common.safe_files import read_json, whole_number


@dataclass(frozen=True, slots=True)
class RunDir:
    """Places within one run directory."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def start(self) -> Path:
        return self.path / "start.json"

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
    def evals(self) -> Path:
        return self.path / "eval.jsonl"

    @property
    def eval_samples(self) -> Path:
        return self.path / "eval"

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
        check_no_run(run_dir)
        _check_place(run_dir.path)
        return run_dir
    stem = Path("runs") / f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = stem, 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}")
    _check_place(path)
    return RunDir(path)


def check_no_run(run_dir: RunDir) -> None:
    """Raises ConfigError where a run lies in the directory."""
    if run_dir.config.exists() or run_dir.timeline.exists():
        remedy = f"choose another, remove it, or go on with it: --resume {run_dir.path}"
        raise ConfigError(explain("run_dir", "must not hold a run already", str(run_dir.path), remedy))


def _check_place(path: Path) -> None:
    """That a directory can be made there, without making it."""
    place = path
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        cause = "it cannot be written" if place.is_dir() else "it is no directory"
        raise _bad_place(path, f"{place}: {cause}")


def _bad_place(path: Path, cause: object) -> ConfigError:
    remedy = f"give a place that can be written ({cause})"
    return ConfigError(explain("run_dir", "must be a directory that can be made", str(path), remedy))


def create(run_dir: RunDir, config: Config, start: Mapping[str, str] = MappingProxyType({})) -> None:
    """Make the directory with the resolved configuration and what the run starts from (`start.json`), or nothing."""
    existed = run_dir.path.exists()
    try:
        run_dir.logs.mkdir(parents=True, exist_ok=True)
        write_atomically(run_dir.start, json.dumps(dict(start)))
        write_config(run_dir, config)
    except (OSError, ValueError, DiskError) as error:
        if not existed:
            shutil.rmtree(run_dir.path, ignore_errors=True)
        raise _bad_place(run_dir.path, getattr(error, "strerror", None) or error) from error


def has_begun(run_dir: RunDir) -> bool:
    """Whether a process of the run has left anything there: a log beside the driver's, or samples."""
    return run_dir.groups.exists() or any(path.name != "driver.log" for path in run_dir.logs.iterdir())


def undo(run_dir: RunDir, *, was_empty: bool) -> None:
    """Take back what `create` made, and the driver since then, of a run that was refused before it began.

    Of a directory that held other files only what would keep another run out of it.
    """
    if was_empty:
        for path in run_dir.path.iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        return
    for path in (run_dir.config, run_dir.start, run_dir.timeline, run_dir.logs / "driver.log"):
        path.unlink(missing_ok=True)


def write_config(run_dir: RunDir, config: Config) -> None:
    """The resolved configuration; of a resumed run the one that it goes on with."""
    write_atomically(run_dir.config, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))


@contextmanager
def begun(run_dir: RunDir) -> Iterator[None]:
    """The place of a new run, made and held: no other start gets it. What is still empty at the end goes again."""
    missing = [path for path in (run_dir.path, *run_dir.path.parents) if not path.exists()]
    try:
        run_dir.path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise _bad_place(run_dir.path, getattr(error, "strerror", None) or error) from error
    try:
        with held(run_dir):
            check_no_run(run_dir)
            yield
    finally:
        with suppress(OSError):  # not empty: the run is there
            for path in missing:
                path.rmdir()


@contextmanager
def held(run_dir: RunDir) -> Iterator[None]:
    """No second process runs in the directory at the same time."""
    handle = os.open(run_dir.path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            rule = "must not be a run that still goes on"
            raise ConfigError(explain("run_dir", rule, str(run_dir.path), "end that process first")) from None
        yield
    finally:
        os.close(handle)


def write_atomically(path: Path, text: str) -> None:
    """All of `text`, or what was there before."""
    write_durably(path, text.encode("utf-8"))


def checkpoint_dir(run_dir: RunDir, num_rounds: int) -> Path:
    """Of the state after so many rounds."""
    return run_dir.checkpoints / f"round-{num_rounds:05d}"


def finished_checkpoints(run_dir: RunDir) -> list[Path]:
    """Oldest first; `state.json` is written last, so one without it was not finished."""
    found = (path.parent for path in run_dir.checkpoints.glob("round-*/state.json"))
    return sorted((path for path in found if path.name[6:].isdigit()), key=lambda path: int(path.name[6:]))


def newest_checkpoint(run_dir: RunDir) -> tuple[Path, dict[str, Any]]:
    """Its directory and its `state.json`. Raises DataError where there is none."""
    finished = finished_checkpoints(run_dir)
    if not finished:
        remedy = "start again in a new run directory, with checkpoint.every=1"
        raise DataError(explain("--resume", "needs a finished checkpoint", str(run_dir.path), remedy))
    return finished[-1], read_state(finished[-1])


_MOVE_AWAY = "move that directory away, then resume again: the checkpoint before it counts"
START_RULES = {
    "workload": ("must be the problems that the run was trained on", "give the same file and settings as before"),
    "model": ("must be the weights and tokenizer that the run started from", "give the same model directory as before"),
}


def check_same_start(run_dir: RunDir, start: Mapping[str, str]) -> None:
    """Raises DataError where a run that is resumed would start from other problems, or another model. Older runs may not say."""
    try:
        before = read_json(run_dir.start) if run_dir.start.exists() else {}
    except (OSError, ValueError) as error:
        raise DataError(explain("--resume", "needs a readable start.json", str(run_dir.path), "start a new run")) from error
    for field, (rule, remedy) in START_RULES.items():
        if field in start and isinstance(before, dict) and before.get(field, start[field]) != start[field]:
            raise DataError(explain(field, f"{rule} (content {before[field]})", start[field], remedy))


def check_same_problems(state: dict[str, Any], content_hash: str) -> None:
    """Raises DataError where a checkpoint's run was trained on other problems."""
    if state["workload"] != content_hash:
        rule = f"must be the problems that the run was trained on (content {state['workload']})"
        raise DataError(explain("workload", rule, content_hash, "give the same file and settings as before"))


def read_state(checkpoint: Path) -> dict[str, Any]:
    """What the run, not the trainer, needs to go on."""
    try:
        state = read_json(checkpoint / "state.json")
        whole_number(state, "round", 1, MAX_COUNT)
        whole_number(state, "version", 0, MAX_COUNT)
        if not {"sampler", "workload"} <= state.keys():
            raise ValueError("parts are missing")
        if not state["round"] == state["version"] == int(checkpoint.name.rpartition("-")[2]):
            raise ValueError(f"round {state['round']} and version {state['version']} are not those of its directory")
    except (OSError, ValueError) as error:
        raise DataError(explain("--resume", f"needs a whole state.json ({error})", str(checkpoint), _MOVE_AWAY)) from error
    return state


def prune(run_dir: RunDir, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and what an interrupted save left."""
    finished = finished_checkpoints(run_dir)
    for path in run_dir.checkpoints.glob("round-*"):
        if path not in finished[-keep:]:
            shutil.rmtree(path, ignore_errors=True)
