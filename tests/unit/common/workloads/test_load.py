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
from common.workloads.load import Workload, load_problems, overlap
from tests.workload_lab import Letters, agieval, ar_lsat, ar_question, olympiad, scibench, write_lines
from tests.workload_lab import load as load_rows


def load(rows: list[dict[str, Any]], folder: Path, **settings: Any) -> Workload:
    return load_rows("jsonl", rows, folder, **settings)


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
    others.append(load([row("a"), row("b")], tmp_path, answer_kind="math"))
    assert len({both.content_hash, *(other.content_hash for other in others)}) == 6


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
    (problem,) = load_problems(config, Letters(), needs_gold=False).problems
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
        ({"name": "jsonl"}, r"workload: exactly one of path and dataset must be set for jsonl, got \{'path': None"),
        ({"name": "gsm8k", "path": "x", "dataset": "y"}, r"workload: exactly one of path and dataset must be set for gsm8k"),
        ({"path": "x.jsonl"}, r"workload: path and dataset are for data from files, got \{'path': 'x\.jsonl'"),
        ({"where": {"a": [1]}}, r"workload\.where: is for data from files, got \{'a': \[1\]\}; remove it"),
        ({"fields": {"a": "b"}}, r"workload\.fields: is for data from files"),
        (
            {"name": "jsonl", "path": "x", "fields": {"a": "b"}},
            r"workload\.fields: is for lsat_ar, .*; use workload\.question_field",
        ),
        (
            {"name": "gsm8k", "path": "x", "split": "test"},
            r"workload\.split: is of a data set, got 'test'; set workload\.dataset",
        ),
        ({"name": "jsonl", "path": "x", "system_prompt": "Hi"}, r"workload\.system_prompt: is for chat templates only"),
    ],
)
def test_settings_are_checked_when_they_are_read(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorkloadConfig(**settings)


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


MANY = [row(f"Question {number}?", str(number)) for number in range(2000)]


def questions(workload: Workload) -> list[str]:
    return [problem.task["row"]["question"] for problem in workload.problems]


def test_held_out_problems_are_the_rest_s_complement_and_about_the_share_asked_for(tmp_path: Path) -> None:
    train, held_out, everything = (load(MANY, tmp_path, holdout=0.3, part=part) for part in ("train", "eval", "all"))
    assert overlap(train, held_out) == 0
    assert sorted(questions(train) + questions(held_out)) == sorted(questions(everything)) == sorted(q["question"] for q in MANY)
    assert abs(len(held_out.problems) - 600) < 82  # binomial: four standard deviations of 20.5
    assert {train.num_held_out, held_out.num_held_out, everything.num_held_out} == {len(held_out.problems)}
    assert f"{train.num_held_out} held out for evaluation" in train.notes


def test_the_side_of_a_problem_depends_on_its_question_alone(tmp_path: Path) -> None:
    """Not on file order, prompt, seed, blanks or the answer that a row gives; a larger share holds the smaller one."""
    reference = set(questions(load(MANY, tmp_path, holdout=0.3, part="eval")))
    assert set(questions(load(MANY[::-1], tmp_path, holdout=0.3, part="eval"))) == reference
    assert set(questions(load(MANY[:500], tmp_path, holdout=0.3, part="eval"))) == reference & {q["question"] for q in MANY[:500]}
    assert set(questions(load(MANY, tmp_path, holdout=0.3, part="eval", seed=7, prompt_template="Q: {question}"))) == reference
    assert reference < set(questions(load(MANY, tmp_path, holdout=0.4, part="eval")))
    spaced = [row(q["question"].replace(" ", " \n "), q["answer"] + "0") for q in MANY]
    assert {" ".join(q.split()) for q in questions(load(spaced, tmp_path, holdout=0.3, part="eval"))} == reference


def test_without_holdout_all_parts_are_the_same(tmp_path: Path) -> None:
    parts = [load(MANY, tmp_path, max_problems=9, part=part) for part in ("train", "eval", "all")]
    assert len({part.content_hash for part in parts}) == 1
    assert len(parts[0].problems) == 9
    assert overlap(parts[0], parts[1]) == 9


def test_max_problems_is_a_seeded_choice_of_the_rest_in_file_order(tmp_path: Path) -> None:
    first, again, other = (load(MANY, tmp_path, max_problems=50, seed=seed) for seed in (0, 0, 1))
    assert questions(first) == questions(again) != questions(other)
    assert [int(q.split()[1][:-1]) for q in questions(first)] == sorted(int(q.split()[1][:-1]) for q in questions(first))
    assert max(int(q.split()[1][:-1]) for q in questions(first)) > 1000  # not simply the first
    assert set(questions(load(MANY[::-1], tmp_path, max_problems=50))) == set(questions(first))
    assert set(questions(load(MANY, tmp_path, max_problems=40))) < set(questions(first))
    assert first.left_out == {"more than workload.max_problems": 1950}
    assert len(load(MANY, tmp_path, max_problems=50, holdout=0.5, part="eval").problems) > 800  # the held-out share is whole


def test_a_share_that_leaves_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^workload\.holdout: leaves no problem for eval \(0 held out\), got 1e-06; change it"):
        load(MANY[:3], tmp_path, holdout=1e-6, part="eval")
    with pytest.raises(DataError, match=r"^workload\.holdout: leaves no problem for train \(3 held out\)"):
        load(MANY[:3], tmp_path, holdout=0.999999)


def test_the_same_problems_are_found_in_two_files_whatever_their_prompts(tmp_path: Path) -> None:
    train = load(MANY[:20], tmp_path, prompt_template="{question} Answer:")
    assert overlap(train, load(MANY[15:30], tmp_path)) == 5
    again = load([row(" Question  3? ", "3"), row("Question 4?", "5"), row("Question 99?", "3")], tmp_path)
    assert overlap(train, again) == 2


@pytest.mark.parametrize(("one", "other"), [("#### 2,125", "#### 2125"), ("$18", "18"), ("1.0", "1")])
def test_a_question_is_the_same_however_its_answer_is_written(one: str, other: str, tmp_path: Path) -> None:
    """Repeats go by question and answer, and what training and evaluation share by the question alone."""
    first, second = (load([row("Eggs?", answer)], tmp_path) for answer in (one, other))
    assert overlap(first, second) == overlap(second, first) == 1
    assert first.problems[0].question_hash == second.problems[0].question_hash != ""
    assert first.problems[0].content_hash != second.problems[0].content_hash


def test_where_keeps_rows_by_value_and_counts_the_rest(tmp_path: Path) -> None:
    rows = [{**row(f"q{level}{topic}"), "level": level, "topic": topic} for level in (1, 2, 3) for topic in ("a", "b")]
    workload = load(rows, tmp_path, where={"level": [1, "3"], "topic": ["a"]})
    assert questions(workload) == ["q1a", "q3a"]
    assert workload.left_out == {"level is not in workload.where.level": 2, "topic is not in workload.where.topic": 2}
    assert len(workload.problems) + sum(workload.left_out.values()) == workload.num_rows == 6


def test_where_compares_numbers_and_booleans_as_such(tmp_path: Path) -> None:
    values = [(True, 5), (False, 5.0), (1, "5"), ("true", 5.5), (None, 4)]
    rows = [{**row(f"q{number}"), "flag": flag, "level": level} for number, (flag, level) in enumerate(values)]

    def kept(where: dict[str, Any]) -> list[str]:
        config = validate(WorkloadConfig, {"name": "jsonl", "path": str(tmp_path / "rows.jsonl"), "where": where})
        return questions(load_problems(config, Letters()))

    write_lines(tmp_path / "rows.jsonl", rows)
    assert kept({"flag": [True]}) == ["q0", "q3"]
    assert kept({"flag": [False]}) == ["q1"]
    assert kept({"flag": [1]}) == ["q2"]
    assert kept({"level": [5.0]}) == kept({"level": [5]}) == kept({"level": ["5"]}) == ["q0", "q1", "q2"]
    assert kept({"level": [5.5]}) == ["q3"]
    with pytest.raises(DataError, match=r"^workload\.where\.level: must be the value of a row, got 5\.25; "):
        kept({"level": [5.25]})


def test_a_misspelt_value_or_field_of_where_is_an_error(tmp_path: Path) -> None:
    rows = [scibench(source="atkins"), scibench(source="chemmc", problem_text="b")]
    with pytest.raises(
        DataError, match=r"^workload\.where\.source: must be the value of a row, got 'chemc'; did you mean chemmc\?"
    ):
        load_rows("sci_jl", rows, tmp_path, where={"source": ["atkins", "chemc"]})
    with pytest.raises(
        DataError, match=r"rows\.jsonl:1: must have the field book, got .*; add it, or remove workload\.where\.book"
    ):
        load_rows("sci_jl", rows, tmp_path, where={"book": ["atkins"]})
    assert [p.task["category"] for p in load_rows("sci_jl", rows, tmp_path, where={"source": ["chemmc"]}).problems] == ["chemmc"]


def test_an_answer_that_cannot_be_read_stops_or_is_skipped_and_counted(tmp_path: Path) -> None:
    rows = [row("a", "#### 1"), row("b", "no mark"), row("c", "#### two"), row("d", "")]
    for index, text in ((1, "no mark"), (2, "#### two"), (3, "")):
        with pytest.raises(DataError, match=rf"rows\.jsonl:2: answer must .*, got '{text}'; ") as caught:
            load_rows("gsm8k", [rows[0], rows[index]], tmp_path)
        assert "\n" not in str(caught.value)
    workload = load_rows("gsm8k", rows, tmp_path, on_bad_gold="skip")
    assert [problem.task["gold"] for problem in workload.problems] == ["1"]
    assert (workload.num_bad_golds, workload.num_rows) == (3, 4)
    (note,) = workload.notes
    assert note.startswith("3 left out: answer that cannot be read (") and "rows.jsonl:2" in note
    with pytest.raises(DataError, match=r"all 3 were left out \(answers that cannot be read\)"):
        load_rows("gsm8k", rows[1:], tmp_path, on_bad_gold="skip")


def test_a_broken_question_stops_whatever_is_done_with_bad_answers(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="question must be text or a number"):
        load_rows("gsm8k", [row("a", "#### 1"), row("", "#### 1")], tmp_path, on_bad_gold="skip")


def test_two_answers_to_one_question_are_one_problem_and_agieval_s_answer_wins(tmp_path: Path) -> None:
    """Also where AR-LSAT comes first; and the same option under another letter is the same answer."""
    reordered = ["Ann", "Ed", "Cy", "Di", "Bob"]
    rows = [ar_lsat(ar_question(answer="C"), ar_question("Who sits last?", "E", reordered)), agieval(label="B")]
    rows.append(agieval("Who sits last?", label="B"))
    workload = load_rows("lsat_ar", rows, tmp_path)
    assert [(p.task["gold"], p.task["choices"][1]) for p in workload.problems] == [("B", "Bob"), ("B", "Bob")]
    assert workload.num_duplicates == 1
    assert workload.left_out == {"another row has the same question with another answer": 1}
    assert any("another answer (" in note and "rows.jsonl:1.questions[0]" in note for note in workload.notes)


def test_the_same_question_about_another_passage_is_another_problem(tmp_path: Path) -> None:
    rows = [agieval(), {**agieval(), "passage": "Five stand in a queue."}, {**agieval(label="C"), "passage": "Six run."}]
    workload = load_rows("lsat_ar", rows, tmp_path)
    assert (len(workload.problems), workload.num_duplicates, workload.left_out) == (3, 0, {})
    assert overlap(workload, load_rows("lsat_ar", [{**agieval(), "passage": "Seven."}], tmp_path)) == 0


NO_GOLD: list[tuple[str, dict[str, Any], str]] = [
    ("lsat_ar", agieval(), "label"),
    ("sci_xw", scibench(), "answer_number"),
    ("olyphys", olympiad("1"), "final_answer"),
    ("gsm8k", row("a", "#### 1"), "answer"),
    ("math500", {"problem": "a", "answer": "1"}, "answer"),
    ("jsonl", row("a"), "answer"),
]


@pytest.mark.parametrize("is_null", [True, False])
@pytest.mark.parametrize(("name", "good", "field"), NO_GOLD, ids=[name for name, _, _ in NO_GOLD])
def test_a_missing_gold_is_a_bad_gold(name: str, good: dict[str, Any], field: str, is_null: bool, tmp_path: Path) -> None:
    bad = {**good, field: None} if is_null else {key: value for key, value in good.items() if key != field}
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: .*{field}.*, or set workload\.on_bad_gold=skip"):
        load_rows(name, [good, bad], tmp_path)
    workload = load_rows(name, [good, bad], tmp_path, on_bad_gold="skip")
    assert (len(workload.problems), workload.num_bad_golds) == (1, 1)


@pytest.mark.parametrize("is_null", [True, False])
def test_a_question_of_a_passage_without_an_answer_names_the_answer(is_null: bool, tmp_path: Path) -> None:
    bad = ar_question("Who sits last?")
    bad = {**bad, "answer": None} if is_null else {key: value for key, value in bad.items() if key != "answer"}
    rows = [ar_lsat(ar_question(), bad)]
    with pytest.raises(DataError, match=r"questions\[1\]: (must have the field )?answer.*workload\.on_bad_gold=skip") as caught:
        load_rows("lsat_ar", rows, tmp_path)
    assert "label" not in str(caught.value).partition(", got")[0]
    assert load_rows("lsat_ar", rows, tmp_path, on_bad_gold="skip").num_bad_golds == 1


@pytest.mark.parametrize(
    ("name", "bad", "field"),
    [
        ("sci_xw", scibench(unit="$10^{99999}$"), "unit"),
        ("sci_xw", scibench(unit=" 10^ {-999999999} \\mathrm{~J}"), "unit"),
        ("sci_xw", scibench(unit="$10^{" + "9" * 5000 + "}$"), "unit"),
        ("sci_xw", scibench(unit="$\\mathrm{10}^{401}$"), "unit"),
        ("sci_xw", scibench("1e999"), "answer_number"),
        ("gsm8k", row("b", "#### 1e999"), "answer"),
        ("gsm8k", row("b", "#### 1e-999"), "answer"),
    ],
)
def test_a_power_of_ten_without_bound_is_a_bad_gold(name: str, bad: dict[str, Any], field: str, tmp_path: Path) -> None:
    good = row("a", "#### 1") if name == "gsm8k" else scibench("2", "$10^{400}$", problem_text="a")
    with pytest.raises(DataError, match=rf"rows\.jsonl:2: {field} must .*workload\.on_bad_gold=skip"):
        load_rows(name, [good, bad], tmp_path)
    assert load_rows(name, [good, bad], tmp_path, on_bad_gold="skip").num_bad_golds == 1


def test_a_directory_of_several_kinds_is_told_how_to_name_one(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"GT": "x=1"}])
    config = WorkloadConfig(name="gsm8k", path=str(tmp_path))
    with pytest.raises(
        DataError, match=r"a\.jsonl:1: must have the field question, .* or one file of the directory in workload\.path"
    ):
        load_problems(config, Letters())


def test_other_names_of_fields_can_be_given(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "target": "#### 5"}]
    fields = {"question": "prompt", "answer": "target"}
    assert load_rows("gsm8k", rows, tmp_path, fields=fields).problems[0].task["gold"] == "5"
    with pytest.raises(
        DataError, match=r"rows\.jsonl:1: must have the field question, .* the right one in workload\.fields\.question"
    ):
        load_rows("gsm8k", rows, tmp_path)
    with pytest.raises(DataError, match=r"rows\.jsonl:1: must have the field goal, "):
        load_rows("gsm8k", rows, tmp_path, fields={**fields, "answer": "goal"})
    with pytest.raises(
        ConfigError, match=r"^workload\.fields: must be a field of gsm8k's schema \(question, answer\), got 'anwser'"
    ):
        load_rows("gsm8k", rows, tmp_path, fields={"anwser": "target"})


def test_named_workloads_need_no_answer_with_a_reward_function_either(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [{"question": "a"}])
    config = WorkloadConfig(name="gsm8k", path=str(path))
    with pytest.raises(DataError, match="must have the field answer"):
        load_problems(config, Letters())
    assert load_problems(config, Letters(), needs_gold=False).problems[0].task["gold"] is None


def test_an_answer_that_the_checker_cannot_read_stops_or_is_skipped(tmp_path: Path) -> None:
    rows = [{"problem": "a", "answer": "\\frac{1}{2}"}, {"problem": "b", "answer": "\\frac{1}{2"}]
    with pytest.raises(
        DataError, match=r"rows\.jsonl:2: must have an answer that can be checked \(.*braces.*workload\.on_bad_gold=skip"
    ):
        load_rows("math500", rows, tmp_path)
    workload = load_rows("math500", rows, tmp_path, on_bad_gold="skip")
    assert (len(workload.problems), workload.num_bad_golds) == (1, 1)
    path = write_lines(tmp_path / "rows.jsonl", rows)
    config = WorkloadConfig(name="math500", path=str(path))
    assert len(load_problems(config, Letters(), needs_gold=False).problems) == 2  # it judges for itself
