"""Local files: lines or a list, one or a directory of them; whatever is broken is named in one line."""

import json
from pathlib import Path

import pytest

from common.errors import DataError
from common.workloads.files import read_files

GOOD = b'{"question": "a", "answer": "1"}\n'


def places(path: Path) -> list[str]:
    return [place.removeprefix(f"{path.parent}/") for place, _ in read_files(path)]


def refused(content: bytes, folder: Path) -> str:
    path = folder / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(read_files(path))
    message = str(caught.value)
    assert "; " in message  # the remedy
    assert "\n" not in message
    assert len(message) < 600
    return message


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"question": "a", "answer": NaN}', "NaN is not JSON"),
        (b'{"question": "a", "answer": "1"', "Expecting"),
        (b'{"question": "a", "question": "b"}', "the key question stands twice"),
        (b'{"a": {"b": 1, "b": 2}}', "the key b stands twice"),
        (b'{"question": "a", "answer": 1e999}', "1e999 is too large for a number"),
        (b'{"a": {"b": [-1.5e400]}}', "-1.5e400 is too large for a number"),
        (b'["a", "1"]', "write {...} with its fields"),
        (b"\xff\xfe{}", "is not UTF-8"),
        (b"[" * 100_000, "recursion"),
        (b'{"a": ' + b"1" * 5000 + b"}", "digits"),
        (b"\x1f\x8b\x08\x00", "is not UTF-8"),  # gzip
    ],
)
def test_a_broken_line_is_named(line: bytes, fault: str, tmp_path: Path) -> None:
    message = refused(GOOD + b"\n" + line + b"\n", tmp_path)
    assert f"{tmp_path}/rows.jsonl:3: must be one JSON object, got " in message
    assert fault in message


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b'[{"a": 1}, 2]', r"rows.jsonl[1]: must be one JSON object, got '2'"),
        (b'[{"a": 1},\n{"a": 1', "rows.jsonl: must be one JSON list, got "),
        (b'[{"a": "x"},\n{"a": "\xff"}]', "line 2 is not UTF-8"),
        (b'[{"a": 1}]\n[{"a": 2}]', "Extra data: line 2"),
        (b"[]", "workload.path: must hold at least one row"),
        (b"", "workload.path: must hold at least one row"),
        (b"\n \n", "workload.path: must hold at least one row"),
    ],
)
def test_a_broken_list_and_an_empty_file_are_named(content: bytes, fault: str, tmp_path: Path) -> None:
    assert fault in refused(content, tmp_path)


def test_lines_and_lists_are_told_apart_by_content_and_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    for name, content, expected in (
        ("a.json", b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": 2}', ["a.json:1", "a.json:3"]),
        ("b.jsonl", b'  \n[{"a": 1}, {"a": 2}]', ["b.jsonl[0]", "b.jsonl[1]"]),
    ):
        (tmp_path / name).write_bytes(content)
        assert places(tmp_path / name) == expected
        assert [values for _, values in read_files(tmp_path / name)] == [{"a": 1}, {"a": 2}]


def test_a_directory_is_read_whole_and_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "deeper.json").mkdir(parents=True)
    for name, content in (("b.jsonl", '{"a": 2}'), ("a.json", '[{"a": 1}]'), ("c.txt", "no JSON"), ("README.md", "x")):
        (folder / name).write_text(content)
    assert places(folder) == ["data/a.json[0]", "data/b.jsonl:1"]


def test_a_directory_without_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^workload\.path: must hold \.json or \.jsonl files, got "):
        list(read_files(tmp_path))
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(DataError, match=r"^workload\.path: must hold at least one row, got "):
        list(read_files(tmp_path))


@pytest.mark.parametrize("name", ["none.jsonl", "a\x00b"])
def test_a_missing_file_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^workload\.path: must be a readable file, got "):
        list(read_files(tmp_path / name))


def test_an_empty_file_beside_a_full_one_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    (tmp_path / "b.jsonl").write_text(json.dumps({"a": 1}))
    assert len(list(read_files(tmp_path))) == 1
