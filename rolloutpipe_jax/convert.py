"""Weights between a Hugging Face directory and an Orbax directory, bit for bit unless another dtype is asked for.

    Hugging Face      config.json, *.safetensors, tokenizer
    Orbax             0/params as in a checkpoint of the trainer, and beside it config.json, tokenizer: all but the weights

From Hugging Face the model is in memory once, because Orbax writes a tree as a whole; back, one parameter at a time and a
shard of the file. The target appears when all of it is there.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import absl.logging
import jax
import numpy as np
from jax import ShapeDtypeStruct

from common.errors import ConfigError, DataError, explain
from common.spool import SpoolWriter, model_layout, write_safetensors
from rolloutpipe_jax.checkpoint import PARAMS, Checkpoint, check, holds, read_tensor, stored
from rolloutpipe_jax.layout import DTYPES, check_layout, entries
from rolloutpipe_jax.model import Skeleton, skeleton
from rolloutpipe_jax.parallelize import make_mesh, param_shardings
from rolloutpipe_jax.shape import read_shape
from rolloutpipe_jax.weights import load_params, whole_tensors

TO_ORBAX, TO_HUGGING_FACE = "huggingface-to-orbax", "orbax-to-huggingface"
_TRAINER = "trainer"  # where a run's checkpoint has the trainer's state
# What is not copied beside the weights: weights of any kind, Orbax's own, what a download leaves.
_LEFT_OUT = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf", "*.pt", "*.pth", "0", ".*")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is converted: `state` is the directory with the weights, `files` the one with configuration and tokenizer."""

    state: Path
    files: Path
    field: str  # what `files` was given as
    target: Path
    direction: str


def convert(source: Path, target: Path, *, dtype: str | None = None, like: Path | None = None) -> dict[str, Any]:
    """Convert `source` in the direction that it asks for; `dtype` None keeps each parameter's own.

    Returns source, target, direction, tensors (of the Hugging Face layout), params (numbers in them), dtype. Raises
    ConfigError and DataError; there is then no target.
    """
    absl.logging.set_verbosity(absl.logging.ERROR)  # Orbax's notes are for its developers
    jax.config.update("jax_platforms", "cpu")  # else an installed accelerator's library is tried first, at length
    plan = _plan(source, target, like)
    with _named("model.path", plan.field):
        model = skeleton(read_shape(plan.files))
    to_orbax = plan.direction == TO_ORBAX
    found = _stored_in_files(plan, model) if to_orbax else _stored_in_checkpoint(plan, model)
    dtypes = {name: dtype or own for name, own in found.items()}
    with _building(plan, dtypes) as partial:
        (_write_orbax if to_orbax else _write_hugging_face)(plan, model, dtypes, partial)
    return {
        "source": str(source),
        "target": str(target),
        "direction": plan.direction,
        "tensors": len(entries(model.shapes)),
        "params": sum(map(prod, model.shapes.values())),
        "dtype": ",".join(sorted(set(dtypes.values()))),
    }


def _plan(source: Path, target: Path, like: Path | None) -> _Plan:
    _check_target(source, target)
    state = next((place for place in (source, source / _TRAINER) if holds(place, PARAMS)), None)
    if state is None:
        if not (source / "config.json").is_file() or not any(source.glob("*.safetensors")):
            if any(place.with_name(f"{_TRAINER}.partial").is_dir() for place in (source, source / _TRAINER)):
                rule = "must be a checkpoint that was finished (this one was cut off while it was written)"
                raise DataError(explain("SOURCE", rule, str(source), "give an older one"))
            rule = "must be a Hugging Face directory (config.json, *.safetensors) or an Orbax directory (0/params)"
            remedy = (
                "give a model, what convert wrote, or a checkpoint of a run with trainer=jax (RUN_DIR/checkpoints/round-00001)"
            )
            raise DataError(explain("SOURCE", rule, str(source), remedy))
        if like is not None:
            rule = "must be left out where SOURCE is a Hugging Face directory, which has its own config"
            raise ConfigError(explain("--like", rule, str(like), "remove it"))
        return _Plan(source, source, "SOURCE", target, TO_ORBAX)
    if like is None and not (state / "config.json").is_file():
        rule = "must be given, as SOURCE holds no config.json"
        raise ConfigError(explain("--like", rule, like, "give the Hugging Face directory that the run started from"))
    return _Plan(state, like or state, "--like" if like else "SOURCE", target, TO_HUGGING_FACE)


def _check_target(source: Path, target: Path) -> None:
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        rule = "must be a new directory, or an empty one"
        raise ConfigError(explain("TARGET", rule, str(target), "choose another name, or remove it"))
    if source.resolve() in target.resolve().parents:
        raise ConfigError(explain("TARGET", "must not lie within SOURCE", str(target), "choose a place beside it"))


def _stored_in_files(plan: _Plan, model: Skeleton) -> dict[str, str]:
    """dtype by parameter; float32, which holds all others exactly, where its layers differ."""
    with _named("model.path", "SOURCE"):
        layout = model_layout(plan.state)
        check_layout(model.shapes, layout, plan.state)
    by_name: dict[str, set[str]] = {}
    for entry in entries(model.shapes):
        by_name.setdefault(entry.name, set()).add(layout[entry.hf_name].dtype)
    return {name: found.pop() if len(found) == 1 else "float32" for name, found in by_name.items()}


def _stored_in_checkpoint(plan: _Plan, model: Skeleton) -> dict[str, str]:
    with _named("checkpoint", "SOURCE"):
        check(plan.state, {PARAMS: {name: ShapeDtypeStruct(shape, np.float32) for name, shape in model.shapes.items()}})
        found = {name: str(np.dtype(leaf.dtype)) for name, leaf in stored(plan.state, PARAMS).items()}
    for name, dtype in found.items():
        if dtype not in DTYPES:
            rule = f"must hold tensor {name} as one of {', '.join(DTYPES)}"
            raise DataError(explain("SOURCE", rule, dtype, "save it with this dtype"))
    return found


def _write_orbax(plan: _Plan, model: Skeleton, dtypes: Mapping[str, str], partial: Path) -> None:
    params = load_params(plan.state, model, make_mesh(1, 1, jax.devices("cpu")[:1]), dtypes)
    checkpoint = Checkpoint()
    checkpoint.save(partial, params)
    checkpoint.wait()


def _write_hugging_face(plan: _Plan, model: Skeleton, dtypes: Mapping[str, str], partial: Path) -> None:
    shardings = param_shardings(model.shapes, make_mesh(1, 1, jax.devices("cpu")[:1]))
    found = stored(plan.state, PARAMS)
    spool = partial / ".spool"
    with _named("checkpoint", "SOURCE"), SpoolWriter(spool, 0) as writer:
        for name, shape in model.shapes.items():
            wanted = ShapeDtypeStruct(shape, found[name].dtype, sharding=shardings[name])
            value = read_tensor(plan.state, PARAMS, name, wanted)
            for hf_name, array in whole_tensors({name: value}):
                data = np.ascontiguousarray(array, DTYPES[dtypes[name]]).tobytes()
                writer.add(hf_name, dtypes[name], array.shape, data)
    write_safetensors(spool, partial, move=True)
    shutil.rmtree(spool)


@contextmanager
def _building(plan: _Plan, dtypes: Mapping[str, str]) -> Iterator[Path]:
    """A directory beside the target with all but the weights. It becomes the target at the end, or goes."""
    target = plan.target.resolve()
    partial = target.with_name(f".{target.name}.partial")
    try:
        try:
            shutil.rmtree(partial, ignore_errors=True)  # of a conversion that was killed
            shutil.copytree(plan.files, partial, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        except OSError as error:
            cause = error.strerror or " ".join(str(error).split())
            rule = "must be a place that can be written"
            raise ConfigError(explain("TARGET", rule, str(plan.target), f"choose another ({cause})")) from error
        _set_dtype(partial / "config.json", set(dtypes.values()))
        yield partial
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _set_dtype(config: Path, dtypes: set[str]) -> None:
    """Let the configuration name the dtype of the weights; where it does already, its bytes stay."""
    data = json.loads(config.read_text(encoding="utf-8"))
    key = "torch_dtype" if "torch_dtype" in data else "dtype"  # the name before transformers 5, and since
    if len(dtypes) == 1 and (dtype := next(iter(dtypes))) != data.get(key):
        config.write_text(json.dumps({**data, key: dtype}, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _named(inner: str, field: str) -> Iterator[None]:
    """Errors about `inner`, as a configuration has it, speak of the word of the command line."""
    try:
        yield
    except DataError as error:
        raise DataError(str(error).replace(f"{inner}:", f"{field}:", 1)) from error
