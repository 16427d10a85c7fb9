"""From what `--checkpoint` names to a Hugging Face directory.

    nothing                                   the configuration's own model
    a Hugging Face directory                  as it is
    a run directory, or its `model/`          its `model/`, else its newest checkpoint
    a checkpoint of a run, of either trainer  converted; configuration and tokenizer are those of the run's starting model
    an Orbax directory of `convert`           converted

`locate` says what is there and writes nothing, so that a bad path is told at once; `as_hugging_face` converts where it must.
"""

import importlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from common.config import Config, load_config
from common.errors import DataError, explain
from common.prepare import find_model
from common.rundir import RunDir, finished_checkpoints
from common.safe_files import read_json
from common.spool import model_layout

_FORMS = (
    "a Hugging Face directory, a run directory, a checkpoint of a run (RUN_DIR/checkpoints/round-00001), or an Orbax directory"
)
_ORBAX_PARAMS = Path("0") / "params"

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A checkpoint as it lies on disk."""

    kind: Literal["hf", "torch", "orbax"]
    weights: Path
    files: Path  # whose config.json and tokenizer go with them
    version: int = 0  # of the weights in their run; 0 where that is not known
    run: Config | None = None  # that trained them, where known
    run_dir: Path | None = None  # of that run
    is_start: bool = False  # the configuration's own model, which no run has trained


def locate(config: Config, path: Path | None, report: Report = lambda line: None) -> Located:
    """What `path` is. Raises DataError and ConfigError, each one line."""
    if path is None:
        model = find_model(config, report)
        return Located(kind="hf", weights=model, files=model, is_start=True)
    if not path.is_dir():
        raise DataError(explain("--checkpoint", "must be a directory", str(path), f"give {_FORMS}"))
    run_dir = RunDir(path)
    if run_dir.config.is_file():
        return _of_run(config, run_dir, report)
    parent = RunDir(path.resolve().parent)
    if parent.config.is_file() and path.resolve() == parent.model:
        return _of_run(config, parent, report)
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return Located(kind="hf", weights=path, files=path)
    found = _state(path) or _state(path / "trainer")
    if found is None:
        raise DataError(explain("--checkpoint", "must be a model or a checkpoint", str(path), f"give {_FORMS}"))
    return _of_checkpoint(config, path, found, report)


def as_hugging_face(located: Located, target: Path) -> Path:
    """The directory with the weights; `target` is made where they have to be converted. Raises DataError."""
    if located.kind == "hf":
        return located.weights
    try:
        if located.kind == "torch":
            importlib.import_module("rolloutpipe_torch.convert").convert(located.weights, target, like=located.files)
        else:
            importlib.import_module("rolloutpipe_jax.room").check_packages("eval", str(located.weights))
            _convert_orbax(located, target)
    except DataError as error:
        head, _, rest = str(error).partition(":")
        raise DataError(f"--checkpoint:{rest}" if head in ("SOURCE", "checkpoint") else str(error)) from error
    return target


def _of_run(config: Config, run_dir: RunDir, report: Report) -> Located:
    run = load_config(run_dir.config)
    if (run_dir.model / "config.json").is_file():
        model, version = run_dir.model, _version(run_dir.result)
        return Located(kind="hf", weights=model, files=model, version=version, run=run, run_dir=run_dir.path)
    finished = finished_checkpoints(run_dir)
    if not finished:
        rule = "must hold model/ or a finished checkpoint"
        raise DataError(explain("--checkpoint", rule, str(run_dir.path), "let the run save one: checkpoint.every=1"))
    return locate(config, finished[-1], report)


def _of_checkpoint(config: Config, path: Path, found: tuple[Literal["torch", "orbax"], Path], report: Report) -> Located:
    kind, weights = found
    place = weights.parent if weights.name == "trainer" else weights
    if kind == "orbax" and (weights / "config.json").is_file():
        return Located(kind=kind, weights=weights, files=weights)
    run_dir = RunDir(place.resolve().parent.parent)
    run = load_config(run_dir.config) if run_dir.config.is_file() else None
    if run is None:
        report("the run of this checkpoint is not known: configuration and tokenizer are those of CONFIG's model")
    files = find_model(run or config, report)
    trained = None if run is None else run_dir.path
    return Located(kind=kind, weights=weights, files=files, version=_version(place / "state.json"), run=run, run_dir=trained)


def _state(path: Path) -> tuple[Literal["torch", "orbax"], Path] | None:
    if (path / _ORBAX_PARAMS).is_dir():
        return "orbax", path
    if (path / "state.json").is_file() and any(path.glob("rank-*.safetensors")):
        return "torch", path
    return None


def _version(path: Path) -> int:
    """Of a run's `result.json`, or of a checkpoint's `state.json`."""
    try:
        state = read_json(path)
        return int(state.get("weight_version", state.get("version", 0)))
    except (OSError, ValueError, TypeError, AttributeError):
        return 0


def _convert_orbax(located: Located, target: Path) -> None:
    """In the dtype that the run publishes in: that of its starting model."""
    like = None if located.files == located.weights else located.files
    dtypes = {tensor.dtype for tensor in model_layout(like).values()} if like is not None else set()
    dtype = dtypes.pop() if len(dtypes) == 1 and dtypes <= {"float32", "bfloat16"} else None
    # In a process of its own: JAX has threads, and Ray is still to be started, which forks.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        process.submit(_run_convert, located.weights, target, dtype, like).result()


def _run_convert(source: Path, target: Path, dtype: str | None, like: Path | None) -> None:
    importlib.import_module("rolloutpipe_jax.convert").convert(source, target, dtype=dtype, like=like)
