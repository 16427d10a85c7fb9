"""Reading a configuration file, and turning every fault of it into one line with a remedy."""

import difflib
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from common.errors import ConfigError, explain

Model = TypeVar("Model", bound=BaseModel)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in `path`; raises ConfigError where it is missing, broken or no mapping."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            explain("CONFIG", "must be a readable YAML file", str(path), f"check the path ({_one_line(error)})")
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(explain("CONFIG", "must be valid YAML", str(path), _one_line(error))) from error
    if not isinstance(data, dict):
        raise ConfigError(explain("CONFIG", "must hold a mapping of settings", str(path), "see configs/quickstart.yaml"))
    return data


def with_overrides(data: dict[str, Any], overrides: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """`data` with each `a.b=value` set; values are YAML."""
    for text in overrides:
        key, sign, raw = text.partition("=")
        if not sign or not key:
            raise ConfigError(explain("override", "must read key=value", text, "for example rounds=4 or training.lr=1e-4"))
        data = _set(data, key.split("."), _scalar(raw, key), key)
    return data


def _scalar(raw: str, key: str) -> Any:
    """YAML 1.1 reads `1e-4` as text; people mean the number."""
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise ConfigError(explain(key, "must be a YAML value", raw, _one_line(error))) from error
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _set(data: dict[str, Any], path: list[str], value: Any, key: str) -> dict[str, Any]:
    head, *rest = path
    if not rest:
        return {**data, head: value}
    inner = data.get(head) or {}
    if not isinstance(inner, dict):
        raise ConfigError(explain(key, f"{head} must be a section to have parts", inner, "check the spelling of the key"))
    return {**data, head: _set(inner, rest, value, key)}


def validate(model: type[Model], data: dict[str, Any]) -> Model:
    """Build `model`; the first fault becomes a ConfigError."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_line(model, error)) from None


def _line(model: type[BaseModel], error: ValidationError) -> str:
    # Unknown keys first: a misspelt key often causes a second, misleading fault.
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    fault = faults[0]
    where = [str(part) for part in fault["loc"] if not _is_branch(part)]
    field = ".".join(where) or "configuration"
    context = fault.get("ctx", {}).get("error")
    if isinstance(context, ConfigError):
        return str(context)
    if fault["type"] == "extra_forbidden":
        names = _names(model, where[:-1])
        near = difflib.get_close_matches(where[-1], names, n=1, cutoff=0.5)
        remedy = f"did you mean {'.'.join([*where[:-1], near[0]])}?" if near else f"known here: {', '.join(sorted(names))}"
        return explain(field, "is no known setting", fault["input"], remedy)
    if fault["type"] == "missing":
        return explain(field, "must be set", None, "add it to the configuration")
    message = fault["msg"][0].lower() + fault["msg"][1:]
    return explain(field, message.replace("input should", "should"), fault["input"], "change it, or remove it for the default")


def _is_branch(part: object) -> bool:
    """Pydantic adds the branch of a union to the place of a fault."""
    return isinstance(part, str) and (
        part in {"int", "str", "float"} or part.startswith(("literal[", "constrained", "function-"))
    )


def _names(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        inner = model.model_fields[part].annotation if part in model.model_fields else None
        options = [inner, *getattr(inner, "__args__", ())]
        model = next((option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), model)
    return list(model.model_fields)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
