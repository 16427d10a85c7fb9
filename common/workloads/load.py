"""From `WorkloadConfig` to problems: rows of a source -> prompt -> token ids -> the part that is asked for, in source order."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from common.config_workload import WorkloadConfig
from common.errors import DataError, explain
from common.protocols import Problem
from common.workloads.identity import digest
from common.workloads.prompts import build_prompts
from common.workloads.rows import Source
from common.workloads.select import Part, Selection, select
from common.workloads.source import read_rows

__all__ = ["Part", "Workload", "load_problems", "overlap", "read_rows"]

_PLACES_SHOWN = 3
_PINNED = ("unit", "tolerance", "choices", "answer_kind")  # of a task, beside gold: what a verdict depends on


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The problems of a run, and what became of all other rows: the counts and `left_out` add up to `num_rows`."""

    name: str
    problems: tuple[Problem, ...]
    content_hash: str  # of names, problem ids in order and what verdicts depend on: a resumed run must find the same
    examples: tuple[dict[str, Any], ...]  # a task of each kind, for the verifier's warm-up
    num_rows: int = 0  # in the source
    num_filtered: int = 0  # left out: prompt longer than allowed
    num_duplicates: int = 0  # left out: same question and answer as an earlier one
    num_bad_golds: int = 0  # left out: answer that cannot be read
    num_held_out: int = 0  # the share kept for evaluation, whichever part this is
    left_out: dict[str, int] = field(default_factory=dict)  # by reason, what has no count of its own above
    notes: tuple[str, ...] = ()  # a line for each reason why rows were left out, for people


def load_problems(
    config: WorkloadConfig,
    tokenizer: Any,
    max_prompt_tokens: int | None = None,
    rows: Source | None = None,
    part: Part = "train",
    *,
    needs_gold: bool = True,
) -> Workload:
    """The problems of the workload, tokenized. `tokenizer`: a Hugging Face one. `rows`: where they were read already.

    `part`: with `holdout`, `eval` is the share held out, `train` the rest, `all` both; without it, all three are the same.
    `max_problems` never limits a share held out. The tighter of `max_prompt_tokens` and the configuration's limit holds.
    Without `needs_gold` rows may have no answer. Raises ConfigError for settings, DataError for rows (they are named) and where
    no problem is left.

    A few reasoning-gym data sets (isomorphic_strings, ransom_note, list_functions, polynomial_multiplication) read Python's
    string hashes: their problems are the same again only under one PYTHONHASHSEED.
    """
    source = read_rows(config, needs_gold=needs_gold) if rows is None else rows
    prompts = build_prompts(config, tokenizer, source.rows)
    limit = min((n for n in (max_prompt_tokens, config.max_prompt_tokens) if n is not None), default=None)
    chosen = select(config, zip(source.rows, prompts, strict=True), limit, part)
    if not chosen.problems:
        raise _empty(config, chosen, part, limit, len(source.rows))
    problems = tuple(chosen.problems.values())
    return Workload(
        name=config.name,
        problems=problems,
        num_rows=source.num_read,
        num_filtered=chosen.num_filtered,
        num_duplicates=chosen.num_duplicates,
        num_bad_golds=len(source.bad_golds),
        num_held_out=chosen.num_held_out,
        left_out=dict(_left_out(source, chosen)),
        notes=tuple(_notes(source, chosen, part)),
        content_hash=digest(config.name, config.answer_pattern, *map(_pinned, problems)),
        examples=tuple(chosen.examples.values()),
    )


def overlap(train: Workload, other: Workload) -> int:
    """How many problems of `other` have a question that is in `train` too, whatever is written there as its answer."""
    known = {problem.question_hash for problem in train.problems}
    return sum(problem.question_hash in known for problem in other.problems)


def _pinned(problem: Problem) -> list[Any]:
    return [problem.problem_id, *(problem.task[key] for key in _PINNED if key in problem.task)]


def _empty(config: WorkloadConfig, chosen: Selection, part: Part, limit: int | None, num_rows: int) -> DataError:
    if config.holdout > 0 and chosen.num_filtered < num_rows:
        rule = f"leaves no problem for {part} ({chosen.num_held_out} held out)"
        return DataError(explain("workload.holdout", rule, config.holdout, "change it, or give more rows"))
    rule = f"leaves no problem: all {num_rows} prompts are longer"
    return DataError(explain("workload.max_prompt_tokens", rule, limit, "raise it, or shorten workload.prompt_template"))


def _left_out(source: Source, chosen: Selection) -> Iterator[tuple[str, int]]:
    yield from ((reason, len(places)) for reason, places in source.left_out.items())
    if chosen.conflicts:
        yield _CONFLICT, len(chosen.conflicts)
    if chosen.num_beyond:
        yield _BEYOND, chosen.num_beyond


def _notes(source: Source, chosen: Selection, part: Part) -> Iterator[str]:
    for reason, places in source.left_out.items():
        yield _note(reason, places)
    if source.bad_golds:
        yield _note("answer that cannot be read", source.bad_golds)
    if chosen.num_filtered:
        yield f"{chosen.num_filtered} left out: prompt too long"
    if chosen.num_duplicates:
        yield f"{chosen.num_duplicates} left out: repeats of another row"
    if chosen.conflicts:
        yield _note(_CONFLICT, chosen.conflicts)
    if chosen.num_held_out:
        yield f"{chosen.num_held_out} held out for evaluation" + {"eval": ": these", "all": ", and here too"}.get(part, "")
    if chosen.num_beyond:
        yield f"{chosen.num_beyond} left out: {_BEYOND}"


_CONFLICT = "another row has the same question with another answer"
_BEYOND = "more than workload.max_problems"


def _note(reason: str, places: list[str]) -> str:
    more = ", ..." if len(places) > _PLACES_SHOWN else ""
    return f"{len(places)} left out: {reason} ({', '.join(places[:_PLACES_SHOWN])}{more})"
