"""Which rows become the problems of a run: not too long, each once, of the part that is asked for, at most `max_problems`."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from common.config_workload import SCHEMAS, WorkloadConfig
from common.errors import DataError, explain
from common.protocols import Problem
from common.workloads.identity import content_hash, digest, draw_key, is_held_out, question_hash
from common.workloads.rows import Row

Part = Literal["train", "eval", "all"]
Prompted = tuple[Row, tuple[str, list[int]]]  # row, prompt and token ids


@dataclass(slots=True)
class Selection:
    """The problems by id, and how many rows are none, by reason."""

    problems: dict[str, Problem] = field(default_factory=dict)
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)  # a task of each kind
    num_filtered: int = 0
    num_duplicates: int = 0
    num_held_out: int = 0
    num_beyond: int = 0  # of the right part, and more than max_problems
    conflicts: list[str] = field(default_factory=list)  # places of rows whose question has another answer elsewhere


def select(config: WorkloadConfig, prompted: Iterable[Prompted], limit: int | None, part: Part) -> Selection:
    """Problems of `part` in source order. `limit`: tokens of a prompt."""
    chosen = Selection()
    kept = _distinct(config, prompted, limit, chosen)
    held_out = {problem.problem_id for problem in kept if is_held_out(problem.question_hash, config.holdout)}
    chosen.num_held_out = len(held_out)
    problems = kept
    if config.holdout > 0 and part != "all":
        problems = [problem for problem in problems if (problem.problem_id in held_out) == (part == "eval")]
    if config.max_problems is not None and (part != "eval" or config.holdout == 0):
        drawn = sorted(problems, key=lambda problem: draw_key(config.seed, problem.content_hash))[: config.max_problems]
        chosen.num_beyond = len(problems) - len(drawn)
        wanted = {problem.problem_id for problem in drawn}
        problems = [problem for problem in problems if problem.problem_id in wanted]
    for problem in problems:
        chosen.problems[problem.problem_id] = problem
        chosen.examples.setdefault(
            json.dumps([problem.task["workload"], problem.task.get("options")], sort_keys=True), problem.task
        )
    return chosen


def _distinct(config: WorkloadConfig, prompted: Iterable[Prompted], limit: int | None, chosen: Selection) -> list[Problem]:
    """The problem of each row within the limit, repeats and contradictions counted and left out."""
    kept: list[Problem] = []
    seen: set[str] = set()  # ids, content hashes and, for the schemas, question hashes
    for row, (prompt, ids) in prompted:
        if not ids:
            raise DataError(explain(row.place, "must give a prompt of at least one token", prompt, "repair or remove the row"))
        content, question = content_hash(row), question_hash(row)
        problem_id = digest(config.name, prompt, row.gold)
        if limit is not None and len(ids) > limit:
            chosen.num_filtered += 1
        elif problem_id in seen or content in seen:
            chosen.num_duplicates += 1
        elif question in seen:
            chosen.conflicts.append(row.place)
        else:
            seen |= {problem_id, content, *([question] if config.name in SCHEMAS else [])}
            kept.append(_problem(config, row, problem_id, prompt, ids))
    return kept


def _problem(config: WorkloadConfig, row: Row, problem_id: str, prompt: str, ids: list[int]) -> Problem:
    extra = {"answer_pattern": config.answer_pattern, "category": row.category}
    task = {**row.task, **{key: value for key, value in extra.items() if value is not None}}
    return Problem(
        problem_id=problem_id,
        prompt=prompt,
        prompt_ids=tuple(ids),
        task=task,
        content_hash=content_hash(row),
        question_hash=question_hash(row),
    )
