"""All that can be known, and refused, before anything is started: model, tokenizer, problems, lengths, room.

Heavy packages are imported inside functions, so that a broken configuration is told within a second.
"""

import asyncio
import importlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config import Config
from common.errors import ConfigError, DataError, explain
from common.evaluation.problems import evaluation_length, load_evaluation
from common.model_files import model_config
from common.rewards.verifier import make_verifier
from common.safe_files import whole_number
from common.spool import TensorLayout, model_layout
from common.workloads.load import Workload, load_problems, read_rows
from common.workloads.prompts import load_tokenizer

TRAINER_ROOMS = {"torch": "rolloutpipe_torch", "jax": "rolloutpipe_jax"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a run starts from."""

    model_dir: Path
    layout: dict[str, TensorLayout]  # what the engines will expect
    tokenizer: Any
    workload: Workload
    evaluation: Workload | None  # what is asked during the training; None: nothing is
    max_model_len: int  # tokens of prompt and response together

    @property
    def examples(self) -> tuple[dict[str, Any], ...]:
        """A task of each kind, for the verifier's warm-up."""
        return self.workload.examples + (self.evaluation.examples if self.evaluation is not None else ())


def prepare(config: Config, report: Callable[[str], None] = lambda line: None, *, has_engines: bool = True) -> Prepared:
    """Build or find the model, load the problems, check what must fit. Raises ConfigError and DataError, each one line.

    Without `has_engines`, no room is asked for them, and vLLM need not be installed.
    """
    check_room(config, has_engines=has_engines)
    check_rewards(config)
    rows = read_rows(config.workload, needs_gold=config.rewards.needs_gold)
    model_dir = find_model(config, report)
    layout = model_layout(model_dir)
    check_room(config, model_dir, has_engines=has_engines)
    num_tokens = room_of(config, "model").check_model(model_dir, layout)
    context = context_length(model_dir)
    if config.sampling.max_tokens >= context:
        rule = f"must leave room for a prompt within the model's {context} tokens"
        raise ConfigError(explain("sampling.max_tokens", rule, config.sampling.max_tokens, "lower it"))
    tokenizer = load_tokenizer(model_dir)
    workload = load_problems(config.workload, tokenizer, context - config.sampling.max_tokens, rows)
    check_remote(config, workload.examples)
    evaluation = load_evaluation(config, tokenizer, context, report, workload) if config.eval.every is not None else None
    model_len = max(max_model_len(config, longest_prompt(workload)), evaluation_length(config, evaluation))
    for problems in (workload, evaluation):
        if problems is not None:
            _check_tokens(config, problems, num_tokens, model_dir)
    engine = importlib.import_module("rolloutpipe_torch.rollout.engine")
    if not (engine.eos_token_ids(model_dir) or config.sampling.stop_token_ids):
        report("the model names no token that ends a response (eos_token_id): all will run to sampling.max_tokens")
    for note in workload.notes:
        report(note)
    if config.workload.when_short == "stop" and len(workload.problems) < config.groups_per_round:
        rule = f"needs at least groups_per_round ({config.groups_per_round}) problems with workload.when_short `stop`"
        raise DataError(explain("workload", rule, len(workload.problems), "add problems, or set workload.when_short=wrap"))
    return Prepared(
        model_dir=model_dir,
        layout=layout,
        tokenizer=tokenizer,
        workload=workload,
        evaluation=evaluation,
        max_model_len=model_len,
    )


def _check_tokens(config: Config, workload: Workload, num_tokens: int, model_dir: Path) -> None:
    """All token ids must be in the model's vocabulary."""
    largest = max(max(problem.prompt_ids) for problem in workload.problems)
    if largest >= num_tokens:
        rule = f"must have a vocabulary that holds the tokenizer's ids (a prompt has id {largest})"
        remedy = f"put the model's own tokenizer into {model_dir}"
        raise DataError(explain("model.path", rule, f"{num_tokens} tokens", remedy))
    for token in config.sampling.stop_token_ids:
        if not 0 <= token < num_tokens:
            rule = f"must be ids of the model's {num_tokens} tokens"
            raise ConfigError(explain("sampling.stop_token_ids", rule, token, "remove it"))


def room_of(config: Config, module: str) -> Any:
    """A module of the configured trainer's room, imported now."""
    return importlib.import_module(f"{TRAINER_ROOMS[config.trainer]}.{module}")


def check_room(config: Config, model_dir: Path | None = None, *, has_engines: bool = True) -> None:
    """More ranks or engines than this machine has room for: ConfigError, within seconds; model memory needs `model_dir`."""
    room_of(config, "room").check_room(config, model_dir)
    if has_engines:
        importlib.import_module("rolloutpipe_torch.rollout.pool").check_room(config, model_dir)


def check_rewards(config: Config) -> None:
    """A user's function is imported in a verifier process, a remote verifier must be there: ConfigError where they are not."""
    if config.rewards.function is not None or config.rewards.remote is not None:
        asyncio.run(_try_verifier(config))


def check_remote(config: Config, examples: Iterable[dict[str, Any]]) -> None:
    """A remote verifier must give a verdict on an example: ConfigError where it does not, or breaks the contract."""
    if config.rewards.remote is not None:
        asyncio.run(_try_verifier(config, examples))


async def _try_verifier(config: Config, examples: Iterable[dict[str, Any]] = ()) -> None:
    verifier = make_verifier(config.rewards, examples=examples, log=Path(os.devnull))
    try:
        await verifier.start(config.limits.start_timeout_s)
    finally:
        await verifier.close()


def find_model(config: Config, report: Callable[[str], None] = lambda line: None) -> Path:
    """The model directory; a recipe is built once and cached."""
    if config.model.path is not None:
        path = Path(config.model.path)
        if not (path / "config.json").is_file():
            remedy = "give a Hugging Face model directory, with config.json"
            raise DataError(explain("model.path", "must be a model directory", config.model.path, remedy))
        return path
    return Path(
        importlib.import_module("rolloutpipe_torch.recipes").find_or_make(
            config.model.recipe, config.model.recipe_options, report
        )
    )


def context_length(model_dir: Path) -> int:
    """Tokens that the model can attend to. Raises DataError."""
    try:
        return whole_number(model_config(model_dir), "max_position_embeddings", 1, 2**40)
    except DataError:  # a ValueError too, and it says better what is wrong
        raise
    except ValueError as error:
        rule = f"must hold a config.json in which {error}"
        raise DataError(explain("model.path", rule, str(model_dir), "copy the model's config.json again")) from error


def longest_prompt(workload: Workload) -> int:
    """Tokens."""
    return max(len(problem.prompt_ids) for problem in workload.problems)


def max_model_len(config: Config, num_prompt_tokens: int) -> int:
    """Tokens of prompt and response that the engines must hold, for prompts of up to so many. Raises ConfigError."""
    longest = num_prompt_tokens + config.sampling.max_tokens
    if config.training.micro_batch_tokens < longest:
        rule = f"must hold the longest allowed sample ({longest} tokens: longest prompt plus sampling.max_tokens)"
        remedy = f"raise it to {longest} or more, or lower sampling.max_tokens or workload.max_prompt_tokens"
        raise ConfigError(explain("training.micro_batch_tokens", rule, config.training.micro_batch_tokens, remedy))
    given = config.rollout.max_model_len
    if given is not None and given < longest:
        rule = f"must hold the longest prompt plus sampling.max_tokens ({longest})"
        raise ConfigError(explain("rollout.max_model_len", rule, given, "remove it, or lower workload.max_prompt_tokens"))
    return given or longest
