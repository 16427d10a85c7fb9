"""The names of the weights here and in the Hugging Face layout, and whether a model directory holds what it must.

| here | Hugging Face |
| --- | --- |
| `embed_tokens`, `norm.weight`, `lm_head` | `model.embed_tokens.weight`, `model.norm.weight`, `lm_head.weight` |
| `layers.PART`, with a leading axis of N layers | `model.layers.0.PART` to `model.layers.N-1.PART` |

Names and sizes only: no weights are read here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from common.errors import DataError, explain
from common.spool import TensorLayout

_STACK = "layers."
DTYPES: dict[str, Any] = {  # that a model's files may have
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


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
