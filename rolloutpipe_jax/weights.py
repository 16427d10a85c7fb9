"""Weights between this room and the Hugging Face layout (`layout`), tensor by tensor and bit for bit, both ways.

A tied head is the embedding: it is read once and sent once. The model is never held twice: loading reads what each device
keeps straight from the files, and export takes one tensor at a time.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh
from numpy.typing import NDArray
from safetensors import safe_open

from common.spool import SpoolWriter, TensorLayout
from rolloutpipe_jax.layout import DTYPES, Entry, entries
from rolloutpipe_jax.model import Skeleton
from rolloutpipe_jax.parallelize import param_shardings


def load_params(model_dir: Path, skeleton: Skeleton, mesh: Mesh, dtypes: Mapping[str, str] | None = None) -> dict[str, Array]:
    """The weights of a checked model directory, each device's part read from the files and no more.

    They are float32, or of the `dtypes` given by parameter.
    """
    files = [safe_open(str(path), framework="np") for path in sorted(model_dir.glob("*.safetensors"))]
    where = {name: file for file in files for name in file.keys()}  # noqa: SIM118 (not a mapping)
    stored: dict[str, list[Entry]] = {}
    for entry in entries(skeleton.shapes):
        stored.setdefault(entry.name, []).append(entry)
    shardings = param_shardings(skeleton.shapes, mesh)
    params: dict[str, Array] = {}
    for name, shape in skeleton.shapes.items():
        dtype = DTYPES[dtypes[name] if dtypes else "float32"]
        value = jax.make_array_from_callback(shape, shardings[name], partial(_read, stored[name], where, dtype))
        params[name] = value.block_until_ready()  # else what was read for it may still be held beside what is read next
    return params


def _read(stored: list[Entry], where: Mapping[str, Any], dtype: Any, index: tuple[slice, ...]) -> NDArray[Any]:
    """One device's part of a parameter."""
    if stored[0].layer is None:
        return _read_tensor(stored[0].hf_name, where, dtype, index)
    layers, *rest = index
    mine = stored[layers]
    shape = [len(range(size)[part]) for size, part in zip(mine[0].shape, rest, strict=True)]
    whole = np.empty((len(mine), *shape), dtype)  # filled layer by layer: stacking a list would hold all twice
    for place, entry in enumerate(mine):
        whole[place] = _read_tensor(entry.hf_name, where, dtype, tuple(rest))
    return whole


def _read_tensor(name: str, where: Mapping[str, Any], dtype: Any, index: tuple[slice, ...]) -> NDArray[Any]:
    return np.asarray(where[name].get_slice(name)[index], dtype)


def export_weights(spool: Path, version: int, params: Mapping[str, Array], layout: Mapping[str, TensorLayout]) -> None:
    """Write `params` into `spool` under the names and in the dtypes of `layout`."""
    with SpoolWriter(spool, version) as writer:
        for name, array in whole_tensors(params):
            dtype = layout[name].dtype
            writer.add(name, dtype, array.shape, np.ascontiguousarray(array, DTYPES[dtype]).tobytes())


def whole_tensors(params: Mapping[str, Array]) -> Iterator[tuple[str, NDArray[Any]]]:
    """(Hugging Face name, array in its layout), gathered from the devices one at a time."""
    for entry in entries({name: value.shape for name, value in params.items()}):
        value = params[entry.name]
        yield entry.hf_name, np.asarray(value if entry.layer is None else _layer(value, entry.layer))


@jax.jit
def _layer(stacked: Array, index: int) -> Array:
    """`index` is an argument of the program, so that it is compiled once for all layers."""
    return stacked[index]
