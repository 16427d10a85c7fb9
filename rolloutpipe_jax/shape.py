"""Which models this room can build: those of three families, less what their config.json can ask for and it cannot do."""

from pathlib import Path
from typing import Any

from common.errors import ConfigError, DataError, explain
from common.model_shape import BUILT_IN, FAMILIES, Llama3Rope, ModelShape, shape_of
from common.safe_files import read_json


def read_shape(model_dir: Path) -> ModelShape:
    """The shape that a model directory's config.json gives. Raises DataError."""
    file = model_dir / "config.json"
    try:
        data = read_json(file)
        architecture = (data.get("architectures") or ["none"])[0]
        if architecture not in FAMILIES:
            remedy = f"use one of {', '.join(FAMILIES)}, or trainer=torch"
            raise DataError(explain("model.path", "must be of an architecture that trainer=jax knows", architecture, remedy))
        return _shape(architecture, data)
    except DataError:  # a ValueError too, and it says better what is wrong
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        remedy = f"copy the model's config.json again ({type(error).__name__}: {' '.join(str(error).split())})"
        raise DataError(explain("model.path", "must hold a readable config.json", str(file), remedy)) from error


def _shape(family: str, data: dict[str, Any]) -> ModelShape:
    _refuse(data, "hidden_act", {"silu", None})
    _refuse(data, "use_sliding_window", {False, None})
    theta, scaling = _rope(data)
    return shape_of(family, data, theta, scaling)


def _refuse(data: dict[str, Any], key: str, allowed: set[object]) -> None:
    if data.get(key) not in allowed:
        rule = f"{key} of config.json must be {' or '.join(str(value) for value in allowed if value is not None)} for trainer=jax"
        raise DataError(explain("model.path", rule, data[key], "use trainer=torch for this model"))


def _rope(data: dict[str, Any]) -> tuple[float, Llama3Rope | None]:
    """Base and scaling. Transformers 5 writes one dictionary, `rope_parameters`; before, base and scaling stood apart."""
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or data.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        rule = "rope_type of config.json must be default or llama3 for trainer=jax"
        raise DataError(explain("model.path", rule, kind, "use trainer=torch for this model"))
    return theta, Llama3Rope(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_context=int(rope["original_max_position_embeddings"]),
    )


def named_shape(name: str) -> ModelShape:
    """A built-in shape by name, or that of a model directory or config.json. Raises ConfigError and DataError."""
    if name.lower() in BUILT_IN:
        return BUILT_IN[name.lower()]
    path = Path(name)
    if path.name == "config.json":
        path = path.parent
    if (path / "config.json").is_file():
        return read_shape(path)
    rule = f"must be a built-in shape ({', '.join(BUILT_IN)}) or a model directory"
    raise ConfigError(explain("--model", rule, name, "give the directory that holds the model's config.json"))
