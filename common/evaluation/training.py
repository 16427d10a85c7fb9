"""Evaluations of a run while it trains: in each `eval.every`-th round, of the version that the round is pinned to.

    rollout of round r ──> engines idle ──> evaluate version v ──┐
    training of round r ─────────────── the tail ────────────────┴──> publish v + 1

The publish waits for both. After the last round the final version is evaluated too, when its weights have been saved. Each
evaluation is a line of `eval.jsonl`, and its samples a file of `eval/`, named by the version.
"""

import json
from dataclasses import replace
from typing import Any

from common.config import Config
from common.disk import writing
from common.errors import ConfigError, explain
from common.evaluation.evaluator import EvalParts, Evaluation, Evaluator, settings_of
from common.json_lines import read_lines
from common.protocols import Problem
from common.records import Group
from common.report.groups import GroupWriter, round_path
from common.rundir import RunDir, write_atomically


class TrainingEvals:
    """Of one run; with no problems to ask, there are none."""

    def __init__(self, config: Config, parts: EvalParts, run_dir: RunDir) -> None:
        self._config, self._run_dir = config, run_dir
        self._every = config.eval.every if parts.problems else None
        self._writer: GroupWriter | None = None
        self._version = 0  # of the evaluation that goes on
        self._parts = replace(parts, on_group=self._store, on_end=self._note)
        self._done: list[dict[str, Any]] = []  # lines of eval.jsonl

    @property
    def is_on(self) -> bool:
        """The run has evaluations."""
        return self._every is not None

    def is_due(self, index: int, version: int) -> bool:
        """Round `index` evaluates `version`, and it was not done before."""
        return self._every is not None and index % self._every == 0 and not self._is_done(version)

    def is_due_at_the_end(self, version: int) -> bool:
        """The final `version` is to be evaluated, and was not."""
        return self.is_on and not self._is_done(version)

    def in_round(self, index: int, version: int) -> Evaluator | None:
        """That of a round; None where none is due, or it was done before a resume."""
        return self._begin(version, index) if self.is_due(index, version) else None

    def at_the_end(self, version: int) -> Evaluator | None:
        """That of the final version, after the last round."""
        return self._begin(version, None) if self.is_due_at_the_end(version) else None

    def restore(self) -> None:
        """Know what was done before."""
        self._done = read_evals(self._run_dir)
        if self._run_dir.evals.exists():  # written again in any case: half a line must not stand in front of the next
            self._write()

    def forget_from(self, num_rounds: int) -> None:
        """Keep what was done in the first `num_rounds` rounds, and after the last of them: the rest comes out anew."""
        kept = [line for line in self._done if _is_kept(line, num_rounds)]
        if len(kept) < len(self._done):
            self._done = kept
            self._write()

    def _write(self) -> None:
        write_atomically(self._run_dir.evals, "".join(map(_line, self._done)))

    def _is_done(self, version: int) -> bool:
        return any(line["version"] == version for line in self._done)

    def close(self) -> None:
        """Idempotent."""
        if self._writer is not None:
            self._writer.close()

    def _begin(self, version: int, index: int | None) -> Evaluator:
        self._version = version
        round_path(self._run_dir.eval_samples, version).unlink(missing_ok=True)  # of a try that was cut off
        return Evaluator(self._config, self._parts, version=version, index=index)

    def _store(self, group: Group, problem: Problem) -> None:
        self._writer = self._writer or GroupWriter(self._run_dir.eval_samples)
        self._writer.write(self._version, group, prompt=problem.prompt)

    def _note(self, evaluation: Evaluation) -> None:
        self._done.append(evaluation.to_json())
        with writing(self._run_dir.evals), self._run_dir.evals.open("a", encoding="utf-8") as file:
            file.write(_line(self._done[-1]))


def check_same_evaluations(config: Config, before: Config, run_dir: RunDir) -> None:
    """Raises ConfigError where a resume would put figures beside those of other settings or problems; `every` is free."""
    if not read_evals(run_dir):
        return
    given, wanted = _compared(config), _compared(before)
    for field, value in given.items():
        if value != wanted[field]:
            rule = f"must be what the run's evaluations were made with ({wanted[field]})"
            raise ConfigError(explain(field, rule, value, "set it back, or start a new run"))


def _compared(config: Config) -> dict[str, Any]:
    """By the setting's name. The run's own workload cannot be changed by a resume."""
    settings = config.eval
    own = None if settings.workload is None else settings.workload.model_dump(exclude_defaults=True)
    rest = {"pass_at": list(settings.pass_at), "max_problems": settings.max_problems, "workload": own}
    compared = {**settings_of(config), **rest}
    stops = compared.pop("stop_token_ids")
    return {**{f"eval.{name}": value for name, value in compared.items()}, "sampling.stop_token_ids": stops}


def read_evals(run_dir: RunDir) -> list[dict[str, Any]]:
    """Lines of `eval.jsonl`; none where it is not there. A torn last line, which a killed run may leave, is skipped."""
    return list(read_lines(run_dir.evals, _checked))


def _checked(line: dict[str, Any]) -> dict[str, Any]:
    if type(line["version"]) is not int or type(line["round"]) not in (int, type(None)):
        raise ValueError("no version and round")
    return line


def _line(evaluation: dict[str, Any]) -> str:
    return json.dumps(evaluation, separators=(",", ":"), allow_nan=False) + "\n"


def _is_kept(line: dict[str, Any], num_rounds: int) -> bool:
    """A round that is sampled again is evaluated again; what came after the last round is of its version."""
    return bool(line["version"] <= num_rounds if line["round"] is None else line["round"] < num_rounds)
