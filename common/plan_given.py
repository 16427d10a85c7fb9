"""What a plan is made from: model, lengths, problems. Measured where they are at hand, else from what is known of them."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from common.config import Config
from common.errors import ConfigError, DataError, explain
from common.model_shape import BUILT_IN, FAMILIES, ModelShape, shape_of
from common.prepare import Prepared, context_length, find_model, longest_prompt, max_model_len
from common.safe_files import read_json
from common.workloads.load import Workload, load_problems, read_rows
from common.workloads.prompts import load_tokenizer

_KNOWN_CONTEXT = 40_960  # tokens of the Qwen3 models that are built in
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Model and data of a plan."""

    model: str  # where the shape comes from, for people
    num_params: int
    model_bytes: int  # of its files, which is what a publish moves
    shape: ModelShape | None  # None: an architecture whose memory is not modelled
    workload: Workload | None  # None: not at hand
    longest_prompt: int  # tokens; without a workload the limit
    max_model_len: int  # tokens of prompt and response


def of_prepared(prepared: Prepared) -> Given:
    """From all that a run starts with."""
    num_params = sum(prod(tensor.shape) for tensor in prepared.layout.values())
    return Given(
        model=str(prepared.model_dir),
        num_params=num_params,
        model_bytes=sum(prod(tensor.shape) * _BYTES.get(tensor.dtype, 4) for tensor in prepared.layout.values()),
        shape=_read(prepared.model_dir)[0],
        workload=prepared.workload,
        longest_prompt=longest_prompt(prepared.workload),
        max_model_len=prepared.max_model_len,
    )


def of_names(config: Config, report: Callable[[str], None]) -> Given:
    """From a config.json, or the name of the model's directory, and from the data where they are at hand; weights are not read.

    A recipe is made, as by a run. Raises ConfigError and DataError.
    """
    path = Path(config.model.path) if config.model.path is not None else find_model(config, report)
    if (path / "config.json").is_file():
        shape, data = _read(path)
        context, source, dtype = context_length(path), f"{path}/config.json", str(data.get("dtype") or data.get("torch_dtype"))
    else:
        shape, context, source, dtype = (
            BUILT_IN.get(path.name.lower()),
            _KNOWN_CONTEXT,
            f"the known shape of {path.name}",
            "bfloat16",
        )
    if shape is None:
        known = ", ".join(BUILT_IN)
        rule = (
            f"must hold a config.json of {', '.join(FAMILIES)} to be planned without its weights, or be named as one of {known}"
        )
        raise DataError(explain("model.path", rule, str(path), "copy the model's config.json there"))
    limit = context - config.sampling.max_tokens
    if limit < 1:
        rule = f"must leave room for a prompt within the model's {context} tokens"
        raise ConfigError(explain("sampling.max_tokens", rule, config.sampling.max_tokens, "lower it"))
    workload = _workload(config, path, limit)
    longest = longest_prompt(workload) if workload is not None else _prompt_limit(config, limit)
    return Given(
        model=source,
        num_params=shape.num_params,
        model_bytes=shape.num_params * _BYTES.get(dtype, 4),
        shape=shape,
        workload=workload,
        longest_prompt=longest,
        max_model_len=max_model_len(config, longest),
    )


def _read(model_dir: Path) -> tuple[ModelShape | None, dict[str, Any]]:
    """The shape in a config.json, None where it is of another family, and all that stands there. Raises DataError."""
    file = model_dir / "config.json"
    try:
        data = read_json(file)
        family = (data.get("architectures") or ["none"])[0]
        return (shape_of(family, data) if family in FAMILIES else None), data
    except DataError:  # a ValueError too, and it says better what is wrong
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        remedy = f"copy the model's config.json again ({type(error).__name__}: {' '.join(str(error).split())})"
        raise DataError(explain("model.path", "must hold a readable config.json", str(file), remedy)) from error


def _workload(config: Config, model_dir: Path, limit: int) -> Workload | None:
    """The problems, where tokenizer and data are here."""
    source = config.workload
    has_tokenizer = any((model_dir / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    if not has_tokenizer or (source.path is not None and not Path(source.path).exists()):
        return None
    return load_problems(source, load_tokenizer(model_dir), limit, read_rows(source, needs_gold=config.rewards.needs_gold))


def _prompt_limit(config: Config, limit: int) -> int:
    """The longest prompt that the settings let through."""
    room = config.training.micro_batch_tokens - config.sampling.max_tokens
    return min(limit, room, config.workload.max_prompt_tokens or limit)
