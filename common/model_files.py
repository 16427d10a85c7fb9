"""What a model directory holds, read without loading it: names, shapes and dtypes of its tensors, and its config.json."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from common.errors import DataError, explain
from common.safe_files import check_plain_name, check_tensor_file, read_json

# Names of dtypes as frameworks have them, and as safetensors files have them.
CODES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_COUNTS = re.compile(r"(?:n|num)_(?:\w+_)?(?:layers?|experts)")
_MAX_EXPERTS = 4096  # in a layer


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Shape and dtype (`float32`, `bfloat16`, `float16`) of one tensor."""

    shape: tuple[int, ...]
    dtype: str


def model_layout(model_dir: Path) -> dict[str, TensorLayout]:
    """What a model directory holds, from its safetensors headers; a tied head is left out. Raises DataError."""
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise DataError(
            explain("model.path", "must hold safetensors weights", str(model_dir), "convert the model with save_pretrained")
        )
    long_names = {code: name for name, code in CODES.items()}
    layout: dict[str, TensorLayout] = {}
    for file in files:
        try:
            check_tensor_file(file)
            with safe_open(str(file), framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    part = tensors.get_slice(name)
                    code = part.get_dtype()
                    layout[name] = TensorLayout(tuple(part.get_shape()), long_names.get(code, code))
        except (SafetensorError, OSError, ValueError, MemoryError) as error:
            remedy = f"copy the file again ({' '.join(str(error).split())})"
            raise DataError(explain("model.path", "must hold readable safetensors", str(file), remedy)) from error
    _check_index(model_dir)
    data = model_config(model_dir)
    _check_counts(model_dir, data, len(layout))
    if data.get("tie_word_embeddings", False):
        layout.pop("lm_head.weight", None)
    return layout


def model_config(model_dir: Path) -> dict[str, Any]:
    """What config.json holds. Raises DataError."""
    file = model_dir / "config.json"
    try:
        return read_json(file)
    except (OSError, ValueError) as error:
        remedy = f"copy the file again ({' '.join(str(error).split())})"
        raise DataError(explain("model.path", "must hold a readable config.json", str(file), remedy)) from error


def _check_index(model_dir: Path) -> None:
    """An index names files of the directory alone. They may be links: a cache of a model hub is made of them."""
    file = model_dir / "model.safetensors.index.json"
    if not file.exists():
        return
    try:
        names = read_json(file)["weight_map"].values()
        for name in names:
            check_plain_name(name)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        remedy = f"copy the file again ({' '.join(str(error).split())})"
        raise DataError(explain("model.path", "must hold a readable index of its files", str(file), remedy)) from error


def _check_counts(model_dir: Path, data: Any, num_tensors: int) -> None:
    """That no layer or expert lacks weights: a model is built of them, one by one, before its shapes are compared."""
    for key, value in data.items() if isinstance(data, dict) else ():
        counted = _COUNTS.fullmatch(key)
        limit = num_tensors if counted and "layer" in key else _MAX_EXPERTS
        if counted and isinstance(value, int | float) and not value <= limit:
            rule = f"must have at most {limit} there, for weights of {num_tensors} tensors"
            shown = f"{key} = {str(value)[:40]}"
            raise DataError(explain("model.path", rule, shown, f"copy {model_dir / 'config.json'} again"))
        if isinstance(value, dict):  # parts of a model that reads more than text
            _check_counts(model_dir, value, num_tensors)
