"""From `WorkloadConfig` to problems: rows of a source -> prompt -> token ids -> filtered, without repeats, in source order."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.config import WorkloadConfig
from common.errors import ConfigError, DataError, explain
from common.protocols import Problem
from common.workloads import jsonl, reasoning_gym
from common.workloads.prompts import build_prompts
from common.workloads.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The problems of a run."""

    name: str
    problems: tuple[Problem, ...]
    num_filtered: int  # left out: prompt longer than allowed
    num_duplicates: int  # left out: same prompt and gold as an earlier one
    content_hash: str  # of names, problem ids in order and answer pattern: a resumed run must find the same
    examples: tuple[dict[str, Any], ...]  # a task of each kind, for the verifier's warm-up


def read_rows(config: WorkloadConfig, reward_function: str | None = None) -> list[Row]:
    """The rows of the source, before any tokenizer is needed. With a `reward_function`, they need no answer."""
    return list(_rows(config, needs_gold=reward_function is None))


def load_problems(
    config: WorkloadConfig,
    tokenizer: Any,
    max_prompt_tokens: int | None = None,
    reward_function: str | None = None,
    rows: Sequence[Row] | None = None,
) -> Workload:
    """All problems of the workload, tokenized. `tokenizer`: a Hugging Face one. `rows`: where they were read already.

    The tighter of `max_prompt_tokens` and the configuration's limit holds. With a `reward_function`, rows need no answer.
    Raises ConfigError for settings, DataError for rows (`path:line`) and where no problem is left.

    A few reasoning-gym data sets (isomorphic_strings, ransom_note, list_functions, polynomial_multiplication) read Python's
    string hashes: their problems are the same again only under one PYTHONHASHSEED.
    """
    rows = read_rows(config, reward_function) if rows is None else rows
    prompts = build_prompts(config, tokenizer, rows)
    limit = min((n for n in (max_prompt_tokens, config.max_prompt_tokens) if n is not None), default=None)
    chosen = _choose(config, zip(rows, prompts, strict=True), limit)
    if not chosen.problems:
        rule = f"leaves no problem: all {len(rows)} prompts are longer"
        raise DataError(explain("workload.max_prompt_tokens", rule, limit, "raise it, or shorten workload.prompt_template"))
    return Workload(
        name=config.name,
        problems=tuple(chosen.problems.values()),
        num_filtered=chosen.num_filtered,
        num_duplicates=chosen.num_duplicates,
        content_hash=_digest(config.name, config.answer_pattern, *chosen.problems),
        examples=tuple(chosen.examples.values()),
    )


@dataclass(slots=True)
class _Chosen:
    """What is kept of the rows, by id and by kind of task, and how many are not."""

    problems: dict[str, Problem] = field(default_factory=dict)
    examples: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    num_filtered: int = 0
    num_duplicates: int = 0


def _choose(config: WorkloadConfig, prompted: Iterable[tuple[Row, tuple[str, list[int]]]], limit: int | None) -> _Chosen:
    """Rows with (prompt, token ids): those within the limit, each problem once."""
    chosen = _Chosen()
    for row, (prompt, ids) in prompted:
        if not ids:
            raise DataError(explain(row.place, "must give a prompt of at least one token", prompt, "repair or remove the row"))
        problem_id = _digest(config.name, prompt, row.gold)
        if limit is not None and len(ids) > limit:
            chosen.num_filtered += 1
        elif problem_id in chosen.problems:
            chosen.num_duplicates += 1
        else:
            task = row.task if config.answer_pattern is None else {**row.task, "answer_pattern": config.answer_pattern}
            chosen.problems[problem_id] = Problem(
                problem_id=problem_id,
                prompt=prompt,
                prompt_ids=tuple(ids),
                task=task,
                content_hash=_digest(row.question, row.gold),
            )
            chosen.examples.setdefault((task["workload"], json.dumps(task.get("options"), sort_keys=True)), task)
    return chosen


def _rows(config: WorkloadConfig, *, needs_gold: bool) -> Iterator[Row]:
    if config.name == "jsonl":
        return jsonl.read_rows(config, needs_gold=needs_gold)
    if config.name.startswith(reasoning_gym.PREFIX):
        return reasoning_gym.generate_rows(config)
    rule = "must be `jsonl`, `reasoning_gym:NAME` or `reasoning_gym:mix`"
    raise ConfigError(explain("workload.name", rule, config.name, "for example reasoning_gym:chain_sum"))


def _digest(*parts: str | None) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
