"""Weights between this room and the Hugging Face layout, tensor by tensor and bit for bit, both ways.

| here | Hugging Face |
| --- | --- |
| `embed_tokens`, `norm.weight`, `lm_head` | `model.embed_tokens.weight`, `model.norm.weight`, `lm_head.weight` |
| `layers.PART`, with a leading axis of N layers | `model.layers.0.PART` to `model.layers.N-1.PART` |

A tied head is the embedding: it is read once and sent once. The model is never held twice: loading reads what each device
keeps straight from the files, and export takes one tensor at a time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import Array
from jax.sharding import Mesh
from numpy.typing import NDArray
from safetensors import safe_open

from common.errors import DataError, explain
from common.spool import SpoolWriter, TensorLayout
from rolloutpipe_jax.model import Skeleton
from rolloutpipe_jax.parallelize import param_shardings

_STACK = "layers."
DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the Hugging Face layout, and where it is here."""

    hf_name: str
    name: str
    layer: int | None  # place on the leading axis
    shape: tuple[int, ...]


def entries(shapes: Mapping[str, tuple[int, ...]]) -> list[Entry]:
    """All tensors, layer by layer within each parameter."""
    return [entry for name, shape in shapes.items() for entry in _entries_of(name, shape)]


def _entries_of(name: str, shape: tuple[int, ...]) -> Iterator[Entry]:
    if not name.startswith(_STACK):
        hf_name = {"embed_tokens": "model.embed_tokens.weight", "lm_head": "lm_head.weight"}.get(name, f"model.{name}")
        yield Entry(hf_name, name, None, shape)
        return
    for layer in range(shape[0]):
        yield Entry(f"model.layers.{layer}.{name.removeprefix(_STACK)}", name, layer, shape[1:])


def check_layout(shapes: Mapping[str, tuple[int, ...]], layout: Mapping[str, TensorLayout], model_dir: Path) -> None:
    """Raises DataError that names a tensor which is missing from the files, one too many, or of another shape or dtype."""
    expected = {entry.hf_name: entry.shape for entry in entries(shapes)}
    for name in sorted(expected.keys() ^ layout.keys()):
        rule = f"must not hold tensor {name}, which config.json has no place for"
        if name in expected:
            rule = f"must hold tensor {name}"
        raise DataError(explain("model.path", rule, str(model_dir), "copy config.json and the weights from one model"))
    for name, shape in expected.items():
        found = layout[name]
        if found.shape != shape:
            rule = f"must hold {name} in the shape that config.json gives it, {shape}"
            raise DataError(explain("model.path", rule, found.shape, "copy config.json and the weights from one model"))
        if found.dtype not in DTYPES:
            rule = f"must hold {name} as one of {', '.join(DTYPES)}"
            raise DataError(explain("model.path", rule, found.dtype, "convert the model with save_pretrained"))


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
    return {
        name: jax.make_array_from_callback(
            shape, shardings[name], partial(_read, stored[name], where, DTYPES[dtypes[name] if dtypes else "float32"])
        )
        for name, shape in skeleton.shapes.items()
    }


def _read(stored: list[Entry], where: Mapping[str, Any], dtype: Any, index: tuple[slice, ...]) -> NDArray[Any]:
    """One device's part of a parameter."""
    if stored[0].layer is None:
        return _read_tensor(stored[0].hf_name, where, dtype, index)
    layers, *rest = index
    return np.stack([_read_tensor(entry.hf_name, where, dtype, tuple(rest)) for entry in stored[layers]])


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
