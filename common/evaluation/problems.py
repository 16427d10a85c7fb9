"""Which problems an evaluation asks: those of `eval.workload`, or the run's own; of either the held-out part, if there is one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from common.config import Config
from common.config_eval import as_typed
from common.errors import ConfigError, DataError, InputError, explain
from common.workloads.identity import draw_key
from common.workloads.load import Workload, load_problems, overlap

Report = Callable[[str], None]


def load_evaluation(config: Config, tokenizer: Any, context: int, report: Report, training: Workload | None) -> Workload:
    """The problems, of `context` tokens at most with their responses; what the training has of them is reported.

    `eval.max_problems` are the same ones whatever else changes: they are drawn by `eval.seed` and their content.
    Raises ConfigError and DataError, each one line.
    """
    settings, sampling = config.eval, config.eval.sampling(config.sampling.build())
    source = settings.workload or config.workload
    if sampling.max_tokens >= context:
        rule = f"must leave room for a prompt within the model's {context} tokens"
        field = "sampling.max_tokens" if settings.max_tokens is None else "eval.max_tokens"
        raise ConfigError(explain(field, rule, sampling.max_tokens, "lower it"))
    with _as_typed(settings.workload is not None):
        found = load_problems(
            source,
            tokenizer,
            context - sampling.max_tokens,
            needs_gold=config.rewards.needs_gold,
            part="eval" if source.holdout > 0 else "all",
        )
    if settings.workload is not None:
        for note in found.notes:
            report(f"evaluation: {note}")
    if settings.max_problems is not None:
        drawn = sorted(found.problems, key=lambda problem: draw_key(settings.seed, problem.content_hash))
        found = replace(found, problems=tuple(drawn[: settings.max_problems]))
    if training is not None and (num_seen := overlap(training, found)):
        report(f"{num_seen} of the evaluation's {len(found.problems)} problems are among those that are trained on")
    return found


def evaluation_length(config: Config, evaluation: Workload | None) -> int:
    """Tokens of the longest prompt with its response; 0 without problems."""
    if evaluation is None:
        return 0
    longest = max(len(problem.prompt_ids) for problem in evaluation.problems)
    length = longest + config.eval.sampling(config.sampling.build()).max_tokens
    given = config.rollout.max_model_len
    if given is not None and given < length:
        rule = f"must hold the evaluation's longest prompt plus its max_tokens ({length})"
        raise ConfigError(explain("rollout.max_model_len", rule, given, "remove it, or lower eval.max_tokens"))
    return length


@contextmanager
def _as_typed(is_own: bool) -> Iterator[None]:
    """Errors about `workload` speak of `eval.workload`, where that is what was set."""
    try:
        yield
    except (ConfigError, DataError) as error:
        told: type[InputError] = type(error)
        raise told(as_typed(str(error)) if is_own else str(error)) from error
