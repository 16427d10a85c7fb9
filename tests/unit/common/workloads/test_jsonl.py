"""Your own rows: fields by name, and broken ones named with their line."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.config_workload import WorkloadConfig
from common.errors import DataError
from common.workloads import jsonl
from common.workloads.records import BadGold, Record
from common.workloads.rows import Row
from common.workloads.source import read_rows
from tests.workload_lab import write_lines

GOOD = {"question": "a", "answer": "1"}


def rows_of(rows: list[dict[str, Any]], folder: Path, **settings: Any) -> list[Row]:
    path = write_lines(folder / "rows.jsonl", rows)
    return read_rows(WorkloadConfig(name="jsonl", path=str(path), **settings)).rows


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        (
            {"question": "a"},
            "must have the field answer, got ['question']; add it, or name the right one in workload.answer_field",
        ),
        (
            {"answer": "1"},
            "must have the field question, got ['answer']; add it, or name the right one in workload.question_field",
        ),
        ({"question": "a", "answer": None}, "answer must be text or a number, got None"),
        ({"question": "a", "answer": ""}, "answer must be text or a number, got ''"),
        ({"question": " ", "answer": "1"}, "question must be text or a number, got ' '"),
        ({"question": "a", "answer": "worked out\n####"}, "answer must hold an answer, got 'worked out\\n####'"),
        ({"question": "a", "answer": ["1"]}, "answer must be text or a number, got ['1']"),
        ({"question": "a", "answer": True}, "answer must be text or a number, got True"),
        ({"question": "a\ud800", "answer": "1"}, "question must be Unicode text"),
        ({"question": ["x" * 9999], "answer": "1"}, "question must be text or a number"),
        ({"question": "a", "answer": "1\ud800"}, "answer must be Unicode text"),
        ({"question": "a", "answer": "1", "more": [{"b": "\ud800"}]}, "must be plain JSON, got "),
        ({"question": "a", "answer": "1", "\udc00": 1}, "must be plain JSON, got "),
    ],
)
def test_a_broken_row_names_its_line_and_its_field(row: dict[str, Any], rule: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        rows_of([GOOD, row], tmp_path)
    message = str(caught.value)
    assert f"rows.jsonl:2: {rule}" in message
    assert "; " in message  # the remedy
    assert "\n" not in message
    assert len(message) < 600


def test_numbers_are_answers_and_the_gold_stands_after_the_last_mark(tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": 7}, {"question": "b", "answer": "#### 1\n#### 1,234 "}, GOOD]
    assert [row.gold for row in rows_of(rows, tmp_path)] == ["7", "1,234", "1"]


def test_other_fields_can_be_named(tmp_path: Path) -> None:
    settings = {"question_field": "problem", "answer_field": "solution"}
    (row,) = rows_of([{"problem": "a", "solution": "1"}], tmp_path, **settings)
    assert (row.question, row.gold) == ("a", "1")
    with pytest.raises(DataError, match=r"must have the field solution, .* name the right one in workload\.answer_field"):
        rows_of([{"problem": "a"}], tmp_path, **settings)


def test_the_kind_of_answer_travels_with_the_task_and_numbers_are_the_default(tmp_path: Path) -> None:
    assert "answer_kind" not in rows_of([GOOD], tmp_path)[0].task
    assert rows_of([GOOD], tmp_path, answer_kind="math")[0].task["answer_kind"] == "math"


def test_an_infinite_number_of_a_data_set_is_refused_wherever_it_stands_in_the_row() -> None:
    for value in (math.inf, math.nan):
        record = Record(place="data[3]", values={**GOOD, "more": {"a": [value]}}, config=WorkloadConfig(name="jsonl", path="x"))
        with pytest.raises(DataError, match=r"^data\[3\]: must be plain JSON, got .*; repair the row "):
            jsonl.SCHEMA.read(record)
        with pytest.raises(BadGold, match=r"^data\[3\]: answer must be text or a number"):
            jsonl.SCHEMA.read(replace(record, values={"question": "a", "answer": value}))
