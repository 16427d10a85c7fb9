"""The real files: how many problems each gives, what is left out and why, and golds computed a second time."""

import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from common.config_workload import WorkloadConfig
from common.errors import DataError
from common.workloads.load import Workload, load_problems, overlap
from tests.workload_lab import Letters

CONTRADICTION = "answer_number and answer_latex contradict each other"
CONFLICT = "another row has the same question with another answer"
BOOKS = ("atkins", "calculus", "chemmc", "class", "diff", "fund", "matter", "quan", "stat", "thermo")


def load(name: str, path: Path, **settings: Any) -> Workload:
    return load_problems(WorkloadConfig(name=name, path=str(path), **settings), Letters())


@pytest.mark.parametrize(
    ("name", "path", "num_rows", "num_problems", "num_duplicates", "left_out"),
    [
        ("lsat_ar", "lsat_ar/agieval_v1_lsat-ar.jsonl", 230, 230, 0, {}),
        ("lsat_ar", "lsat_ar/ar_lsat_AR_TestData.json", 230, 230, 0, {}),
        ("lsat_ar", "lsat_ar/ar_lsat_AR_DevelopmentData.json", 231, 231, 0, {}),
        ("lsat_ar", "lsat_ar/ar_lsat_AR_TrainingData.json", 1630, 1609, 21, {}),
        ("lsat_ar", "lsat_ar", 2321, 2070, 250, {CONFLICT: 1}),
        ("sci_xw", "sci_xw", 692, 685, 2, {CONTRADICTION: 5}),
        ("olyphys", "olyphys/OE_TO_maths_en_COMP.subset.jsonl", 158, 158, 0, {}),
        ("olyphys", "olyphys/OE_TO_physics_en_COMP.rebuilt5.jsonl", 5, 5, 0, {}),
        ("gsm8k", "gsm8k/test.jsonl", 1319, 1319, 0, {}),
        ("math500", "math500/math500_test.json", 500, 500, 0, {}),
    ],
)
def test_every_row_is_a_problem_or_left_out_for_a_reason(
    name: str, path: str, num_rows: int, num_problems: int, num_duplicates: int, left_out: dict[str, int], data_dir: Path
) -> None:
    workload = load(name, data_dir / path)
    assert (workload.num_rows, len(workload.problems)) == (num_rows, num_problems)
    assert (workload.num_duplicates, workload.left_out, workload.num_bad_golds) == (num_duplicates, left_out, 0)
    assert len({problem.problem_id for problem in workload.problems}) == num_problems
    assert len({problem.content_hash for problem in workload.problems}) == num_problems


def test_agieval_and_ar_lsat_share_all_questions_and_differ_in_one_answer(data_dir: Path) -> None:
    agieval = load("lsat_ar", data_dir / "lsat_ar" / "agieval_v1_lsat-ar.jsonl")
    test = load("lsat_ar", data_dir / "lsat_ar" / "ar_lsat_AR_TestData.json")
    train = load("lsat_ar", data_dir / "lsat_ar" / "ar_lsat_AR_TrainingData.json")
    assert (overlap(agieval, test), overlap(test, agieval), overlap(train, test)) == (230, 230, 0)
    assert Counter(problem.task["gold"] for problem in agieval.problems) == {"A": 53, "B": 41, "C": 47, "D": 45, "E": 44}
    (only_agieval,) = {p.content_hash for p in agieval.problems} - {p.content_hash for p in test.problems}
    (kept,) = [p for p in load("lsat_ar", data_dir / "lsat_ar").problems if p.content_hash == only_agieval]
    assert "Jackson is the only witness scheduled to testify on Monday" in kept.prompt
    assert kept.task["gold"] == "B"


def test_a_directory_with_a_file_of_another_kind_is_an_error_that_says_how_to_name_one_file(data_dir: Path) -> None:
    with pytest.raises(DataError, match=r"scoring_examples\.json\[0\]: .* or one file of the directory in workload\.path"):
        load("olyphys", data_dir / "olyphys")


def test_scibench_golds_are_answer_times_power_exactly(data_dir: Path) -> None:
    """Computed again with decimals and another reading of the unit's power."""
    raw = {}
    for path in sorted((data_dir / "sci_xw").glob("*.json")):
        for row in json.loads(path.read_text()):
            raw[" ".join(row["problem_text"].split())] = row
    problems = load("sci_xw", data_dir / "sci_xw", prompt_template="{question}").problems
    num_powers = 0
    for problem in problems:
        text = problem.prompt.removeprefix("<user>").partition("\n\nGive the number")[0]
        row = raw[" ".join(text.split())]
        power = re.search(r"10\s*\^\s*\{?\s*(-?\d+)", row["unit"])
        num_powers += power is not None
        number = Decimal(row["answer_number"].strip().replace(",", "").replace("\u2212", "-"))
        assert Decimal(problem.task["gold"]) == number * (Decimal(10) ** int(power[1]) if power else 1)
        assert re.fullmatch(r"-?\d+(\.\d+)?", problem.task["gold"])
        assert bool(row["unit"].strip()) == ("unit" in problem.task) == ("Give the number" in problem.prompt)
    assert num_powers == 107  # of 109: one such row contradicts itself, one stands twice


def test_the_books_of_scibench_can_be_divided_between_two_workloads(data_dir: Path) -> None:
    first = load("sci_xw", data_dir / "sci_xw", where={"source": list(BOOKS[:5])})
    second = load("sci_jl", data_dir / "sci_xw", where={"source": list(BOOKS[5:])})
    assert overlap(first, second) == 1  # one question stands in a book of either half
    assert len(first.problems) + len(second.problems) == 685 + 1
    assert {p.task["category"] for p in first.problems} == set(BOOKS[:5])
    assert {p.task["workload"] for p in second.problems} == {"sci_jl"}


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_share_of_gsm8k_is_held_out(share: float, data_dir: Path) -> None:
    workload = load("gsm8k", data_dir / "gsm8k", holdout=share)
    assert len(workload.problems) + workload.num_held_out == 1319
    assert abs(workload.num_held_out - 1319 * share) < 4 * (1319 * share * (1 - share)) ** 0.5


def test_gsm8k_and_math_golds_are_the_files_own(data_dir: Path) -> None:
    golds = [p.task["gold"] for p in load("gsm8k", data_dir / "gsm8k").problems]
    lines = (data_dir / "gsm8k" / "test.jsonl").read_text().splitlines()
    assert golds == [json.loads(line)["answer"].split("#### ")[1].replace(",", "") for line in lines]
    rows = json.loads((data_dir / "math500" / "math500_test.json").read_text())
    problems = load("math500", data_dir / "math500").problems
    assert [p.task["gold"] for p in problems] == [row["answer"] for row in rows]
    assert {p.task["category"] for p in problems} == {f"{row['subject']}, level {row['level']}" for row in rows}


def test_olympiad_rows_with_several_answers_and_units(data_dir: Path) -> None:
    problems = load("olyphys", data_dir / "olyphys" / "OE_TO_maths_en_COMP.subset.jsonl").problems
    rows = [json.loads(line) for line in (data_dir / "olyphys" / "OE_TO_maths_en_COMP.subset.jsonl").read_text().splitlines()]
    assert sum(isinstance(p.task["gold"], list) for p in problems) <= sum(row["is_multiple_answer"] for row in rows)
    for problem, row in zip(problems, rows, strict=True):
        gold = problem.task["gold"]
        pieces = gold if isinstance(gold, list) else [gold]
        assert not any("$" in piece for piece in pieces)
        assert re.sub(r"[\s$,.]", "", "".join(row["final_answer"])) == re.sub(r"[\s,.]", "", "".join(pieces))
        assert ("unit" in problem.task) == (row["unit"] is not None) == ("outside the box" in problem.prompt)
    assert [p.task["tolerance"] for p in problems if "tolerance" in p.task] == [0.1]
