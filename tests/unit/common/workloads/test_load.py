"""From a configuration to problems: filtered, without repeats, recognisable."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from common.config import Config, WorkloadConfig
from common.config_errors import validate
from common.errors import ConfigError, DataError
from common.records import Verdict
from common.rewards.scorers import score
from common.workloads.load import Workload, load_problems


class Letters:
    """A tokenizer of one token a character."""

    bos_token_id = None
    chat_template = None

    def __call__(self, text: Any, add_special_tokens: bool = True) -> dict[str, Any]:
        return {"input_ids": [self(part)["input_ids"] for part in text] if isinstance(text, list) else [ord(c) for c in text]}


def load(rows: list[dict[str, Any]], folder: Path, *, limit: int | None = None, **settings: Any) -> Workload:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_problems(WorkloadConfig(name="jsonl", path=str(path), **settings), Letters(), limit)


def row(question: str, answer: Any = "1") -> dict[str, Any]:
    return {"question": question, "answer": answer}


def test_a_row_becomes_a_problem(tmp_path: Path) -> None:
    workload = load([row("Two?", "so\n#### 2")], tmp_path, prompt_template="Q: {question}\nA:")
    (problem,) = workload.problems
    assert problem.prompt == "Q: Two?\nA:"
    assert problem.prompt_ids == tuple(map(ord, "Q: Two?\nA:"))
    assert problem.task == {"workload": "jsonl", "gold": "2", "row": {"question": "Two?", "answer": "so\n#### 2"}}
    assert workload.examples == (problem.task,)


def test_prompts_over_the_limit_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [row("x" * 16), row("x" * 17), row("x" * 40)]
    workload = load(rows, tmp_path, limit=16)
    assert [len(problem.prompt_ids) for problem in workload.problems] == [16]
    assert workload.num_filtered == 2
    assert load(rows, tmp_path, limit=20, max_prompt_tokens=16).num_filtered == 2  # the tighter one holds
    assert load(rows, tmp_path, limit=16, max_prompt_tokens=20).num_filtered == 2
    with pytest.raises(DataError, match="all 3 prompts are longer, got 3; raise it"):
        load(rows, tmp_path, limit=3)


def test_repeats_are_left_out_and_counted(tmp_path: Path) -> None:
    workload = load([row("a"), row("b"), row("a"), row("a", "2")], tmp_path)
    assert [(p.prompt, p.task["gold"]) for p in workload.problems] == [("a", "1"), ("b", "1"), ("a", "2")]
    assert workload.num_duplicates == 1


def test_a_problem_keeps_its_id_wherever_it_stands_and_the_set_has_an_identity(tmp_path: Path) -> None:
    both, swapped = load([row("a"), row("b")], tmp_path), load([row("b"), row("a")], tmp_path)
    assert [p.problem_id for p in both.problems] == [p.problem_id for p in reversed(swapped.problems)]
    assert both.content_hash == load([row("a"), row("b")], tmp_path).content_hash
    others = [swapped, load([row("a")], tmp_path), load([row("a"), row("b", "2")], tmp_path)]
    others.append(load([row("a"), row("b")], tmp_path, answer_pattern="(.)"))
    assert len({both.content_hash, *(other.content_hash for other in others)}) == 5


def test_the_answer_pattern_travels_with_the_task(tmp_path: Path) -> None:
    (problem,) = load([row("a")], tmp_path, answer_pattern="=(.)").problems
    assert problem.task["answer_pattern"] == "=(.)"


def test_a_question_pattern_cuts_the_question(tmp_path: Path) -> None:
    (problem,) = load([row("Please tell me: 1 + 2?")], tmp_path, question_pattern=r": (.*)\?").problems
    assert problem.prompt == "1 + 2"
    with pytest.raises(DataError, match=r"rows\.jsonl:2: workload\.question_pattern finds nothing in the question, got 'no'"):
        load([row("tell me: 1?"), row("no")], tmp_path, question_pattern=r": (.*)\?")


def test_with_a_reward_function_rows_need_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "a", "tests": [1]}\n')
    config = WorkloadConfig(name="jsonl", path=str(path))
    with pytest.raises(DataError, match="answer"):
        load_problems(config, Letters())
    (problem,) = load_problems(config, Letters(), reward_function="my_rewards:score").problems
    assert problem.task == {"workload": "jsonl", "gold": None, "row": {"question": "a", "tests": [1]}}


@pytest.mark.parametrize("name", ["gsm9k", "chain_sum", "reasoning-gym:chain_sum"])
def test_an_unknown_workload_names_the_choices(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^workload\.name: must be one of lsat_ar, .*, jsonl, reasoning_gym:NAME, got"):
        validate(Config, {"model": {"path": "m"}, "workload": {"name": name}})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"answer_pattern": "("}, r"workload\.answer_pattern: must be a regular expression"),
        ({"answer_pattern": "x"}, r"workload\.answer_pattern: must have a group"),
        ({"question_pattern": "x"}, r"workload\.question_pattern: must have a group"),
        ({"prompt_template": "Q:"}, r"workload\.prompt_template: must contain \{question\}"),
        ({"name": "jsonl"}, r"workload\.path: must be set for the workload jsonl"),
        ({"path": "x.jsonl"}, r"workload\.path: must be set for the workload jsonl, and only for it, got 'x\.jsonl'"),
    ],
)
def test_settings_are_checked_when_they_are_read(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorkloadConfig(**settings)  # type: ignore[arg-type]


def test_every_gsm8k_row_loads_and_every_gold_passes_its_own_check(data_dir: Path) -> None:
    workload = load_problems(WorkloadConfig(name="jsonl", path=str(data_dir / "gsm8k" / "test.jsonl")), Letters())
    assert len(workload.problems) == 1319
    assert workload.num_duplicates == workload.num_filtered == 0
    for problem in workload.problems:
        gold = problem.task["gold"]
        for response in (problem.task["row"]["answer"], rf"so \boxed{{{gold}}}.", f"The answer is {gold}.", f"It is {gold}"):
            assert score(None, problem.task, response).status is Verdict.OK
        assert score(None, problem.task, f"#### {gold}1").status is Verdict.WRONG


def test_problems_are_plain_json() -> None:
    workload = load_problems(WorkloadConfig(name="reasoning_gym:arc_1d", size=3), Letters())
    for problem in workload.problems:
        assert json.loads(json.dumps(problem.task)) == problem.task
    assert dataclasses.is_dataclass(workload)
