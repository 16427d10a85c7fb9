"""Broken rows are errors that name file and line."""

from pathlib import Path

import pytest

from common.config import WorkloadConfig
from common.errors import DataError
from common.workloads.jsonl import read_rows
from common.workloads.rows import Row

GOOD = b'{"question": "a", "answer": "1"}\n'


def rows_of(content: bytes, folder: Path) -> list[Row]:
    path = folder / "rows.jsonl"
    path.write_bytes(content)
    return list(read_rows(WorkloadConfig(name="jsonl", path=str(path)), needs_gold=True))


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (b'{"question": "a"}', "must have the field answer"),
        (b'{"answer": "1"}', "must have the field question"),
        (b'{"question": "a", "answer": null}', "answer must be text or a number"),
        (b'{"question": "a", "answer": ""}', "answer must be text or a number"),
        (b'{"question": " ", "answer": "1"}', "question must be text or a number"),
        (b'{"question": "a", "answer": "worked out\\n####"}', "answer must hold an answer"),
        (b'{"question": "a", "answer": ["1"]}', "answer must be text or a number"),
        (b'{"question": "a", "answer": true}', "answer must be text or a number"),
        (b'{"question": "a", "answer": NaN}', "must be one JSON object"),
        (b'{"question": "a", "answer": "1"', "must be one JSON object"),
        (b'["a", "1"]', "must be one JSON object"),
        (b"\xff\xfe{}", "must be one JSON object"),
        (b"[" * 100_000, "must be one JSON object"),
    ],
)
def test_a_broken_row_names_its_line(line: bytes, rule: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        rows_of(GOOD + b"\n" + line + b"\n", tmp_path)
    message = str(caught.value)
    assert f"rows.jsonl:3: {rule}, got " in message
    assert "; " in message  # the remedy
    assert "\n" not in message
    assert len(message) < 600


def test_numbers_are_answers_and_the_gold_stands_after_the_last_mark(tmp_path: Path) -> None:
    lines = [b'{"question": "a", "answer": 7}', b'{"question": "b", "answer": "#### 1\\n#### 1,234 "}', GOOD.strip()]
    assert [row.gold for row in rows_of(b"\n".join(lines), tmp_path)] == ["7", "1,234", "1"]


def test_other_fields_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "a", "solution": "1"}\n')
    config = WorkloadConfig(name="jsonl", path=str(path), question_field="problem", answer_field="solution")
    (row,) = read_rows(config, needs_gold=True)
    assert (row.question, row.gold) == ("a", "1")


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_an_error(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"workload\.path: must hold at least one row, got '.*rows\.jsonl'"):
        rows_of(content, tmp_path)


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        config = WorkloadConfig(name="jsonl", path=str(path))
        with pytest.raises(DataError, match=r"workload\.path: must be a readable file"):
            list(read_rows(config, needs_gold=True))
