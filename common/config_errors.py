"""Reading a configuration file, and turning every fault of it into one line with a remedy."""

import difflib
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from common.errors import ConfigError, explain
from common.safe_files import read_text

Model = TypeVar("Model", bound=BaseModel)
_MAX_VALUES = 100_000  # in one file
_MAX_DEPTH = 100
_MAX_DIGITS = 100
_MAX_PARTS = 16  # of a key a.b.c
_MAX_FILES = 20  # that extend each other


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key may stand once: of two, one would be passed over in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):  # a list or a mapping: refused by SafeLoader, as no key can be one
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is set twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The scanner takes ever longer with each level, until Python's own limit ends it."""
        self._depth = getattr(self, "_depth", 0) + 1
        if self._depth > _MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, "it is nested too deep", self.peek_event().start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Of many digits, or parts in base 60, it takes long to read, and Python refuses to print it."""
        if len(node.value) > _MAX_DIGITS:
            raise yaml.constructor.ConstructorError(None, None, "this number is too long", node.start_mark)
        value: int = super().construct_yaml_int(node)
        return value

    def get_single_node(self) -> yaml.Node | None:
        """Aliases share what they stand for; whoever walks or prints the values sees it again at each."""
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _count_values(node, {})
        return node


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _count_values(node: yaml.Node, counts: dict[int, int]) -> int:
    """With every alias written out. Raises ComposerError beyond `_MAX_VALUES`."""
    if id(node) not in counts:
        counts[id(node)] = _MAX_VALUES + 1  # while its parts are counted: a part that is the node itself has no end
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        inner = [part for pair in parts for part in pair] if isinstance(node, yaml.MappingNode) else parts
        counts[id(node)] = 1 + sum(_count_values(part, counts) for part in inner)
    if counts[id(node)] > _MAX_VALUES:
        problem = f"its aliases stand for more than {_MAX_VALUES} values"
        raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
    return counts[id(node)]


# What broken YAML raises: dates and numbers that are none are ValueErrors, deep nesting is a RecursionError.
_YAML_FAULTS = (yaml.YAMLError, ValueError, RecursionError)


def _load(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def _yaml_fault(error: BaseException) -> str:
    """What is wrong, and where."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return _one_line(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {_one_line(Exception(getattr(error, 'problem', '')))}"


def read_yaml(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The mapping in `path`, laid over the one that its `extends` names: sections are joined, all else is replaced.

    `extends` is a file, relative to `path`; `above` are the files that led here. Raises ConfigError where a file is missing,
    broken or no mapping, or extends itself, or is the last of too many.
    """
    data = _read_mapping(path)
    base = data.pop("extends", None)
    if base is None:
        return data
    if not isinstance(base, str):
        raise ConfigError(explain("extends", "must be the name of a configuration file", base, f"see {path}"))
    above = (*above, path.resolve())
    if len(above) == _MAX_FILES:
        raise ConfigError(explain("extends", f"must lead through at most {_MAX_FILES} files", base, f"join some, up to {path}"))
    try:
        leads_back = (path.parent / base).resolve() in above
    except (OSError, ValueError, RuntimeError) as error:  # a zero byte; links in a circle
        cause = f"see {path} ({_one_line(error)})"
        raise ConfigError(explain("extends", "must be the name of a configuration file", base, cause)) from error
    if leads_back:
        raise ConfigError(explain("extends", f"must not lead back to a file that led to {path}", base, "remove it"))
    return _laid_over(read_yaml(path.parent / base, above), data)


def _laid_over(base: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    both = {key: _laid_over(base[key], value) for key, value in data.items() if _is_section(value) and _is_section(base.get(key))}
    return {**base, **data, **both}


def _is_section(value: object) -> bool:
    return isinstance(value, dict)


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for, for ever
            raise ValueError("it is no regular file")
        text = read_text(path)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or _one_line(error)
        raise ConfigError(explain("CONFIG", "must be a readable YAML file", str(path), f"check the path ({cause})")) from error
    try:
        data = _load(text)
    except _YAML_FAULTS as error:
        raise ConfigError(explain("CONFIG", "must be valid YAML", str(path), f"repair it ({_yaml_fault(error)})")) from error
    if not isinstance(data, dict):
        raise ConfigError(explain("CONFIG", "must hold a mapping of settings", str(path), "see configs/quickstart.yaml"))
    return data


def with_overrides(data: dict[str, Any], overrides: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """`data` with each `a.b=value` set; values are YAML."""
    for text in overrides:
        key, sign, raw = text.partition("=")
        if not sign or not key or key.count(".") >= _MAX_PARTS:
            raise ConfigError(explain("override", "must read key=value", text, "for example rounds=4 or training.lr=1e-4"))
        data = _set(data, key.split("."), _scalar(raw, key), key)
    return data


def _scalar(raw: str, key: str) -> Any:
    """YAML 1.1 reads `1e-4` as text; people mean the number."""
    try:
        value = _load(raw)
    except _YAML_FAULTS as error:
        raise ConfigError(explain(key, "must be a YAML value", raw, f"put it in quotes ({_yaml_fault(error)})")) from error
    return float(value) if isinstance(value, str) and _FLOAT.fullmatch(value) else value


_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")


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
    _refuse_booleans(model, data, "")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_line(model, error)) from None


def _refuse_booleans(model: type[BaseModel], data: dict[str, Any], prefix: str) -> None:
    """Pydantic takes `true` for 1: whoever wrote it meant something else."""
    for name, value in data.items():
        field = model.model_fields.get(name)
        if field is None:
            continue
        types = (field.annotation, *get_args(field.annotation))
        if isinstance(value, bool) and bool not in types and (int in types or float in types):
            raise ConfigError(explain(prefix + name, "must be a number", value, "write it in digits"))
        if isinstance(value, dict):
            for inner in types:
                if isinstance(inner, type) and issubclass(inner, BaseModel):
                    _refuse_booleans(inner, value, f"{prefix}{name}.")


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
    # A setting of several types (a number, or `round`) has a fault for each.
    same = [one for one in faults if [str(part) for part in one["loc"] if not _is_branch(part)] == where]
    return explain(field, ", or ".join(dict.fromkeys(map(_rule, same))), fault["input"], _remedy(same[-1]))


def _rule(fault: ErrorDetails) -> str:
    if fault["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return "must be a section: settings in lines below it"
    message = (fault["msg"][0].lower() + fault["msg"][1:]).partition(", got ")[0]  # `explain` says what it got
    return message.replace("input should", "must").replace("value error, ", "")


def _remedy(fault: ErrorDetails) -> str:
    choices = re.findall(r"'([^']+)'", str(fault.get("ctx", {}).get("expected", "")))
    near = difflib.get_close_matches(str(fault["input"]).lower(), choices, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else "change it, or remove it for the default"


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
