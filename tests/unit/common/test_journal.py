"""The journal on its own: what was written comes back, and nothing else is believed."""

import json
import os
import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import DataError, DiskError
from common.journal import Journal, Recorded
from common.journal_lines import Complete, Drop, Head, read_line, seal
from common.journal_reader import read_journal
from common.materialize import make_sample, materialize
from common.protocols import Score
from common.records import FinishReason, Group, Reason, Response, Times, Verdict
from common.report.groups import read_groups
from common.requests import group_requests
from common.testing import make_problems

HEAD = Head(round=3, version=5, weights="a" * 64, problems="b" * 16, num_groups=4)
PROBLEMS = make_problems(6)


def group_of(order: int, *, head: Head = HEAD) -> Group:
    problem = PROBLEMS[order]
    requests = group_requests(head.round, order, problem.prompt_ids, 2, seed=1)
    samples = [
        make_sample(
            request,
            Response(
                request_id=request.request_id,
                token_ids=(7, 8 + request.member),
                logprobs=(-0.1, -1 / 3),
                finish_reason=FinishReason.STOP,
                version_start=head.version,
                version_end=head.version,
            ),
            Score(reward=float(request.member), status=Verdict.OK),
            "text “with” \u2028 separators",
            Times(admitted_s=0.1),
        )
        for request in requests
    ]
    return materialize(f"r{head.round}/g{order}", order, head.version, samples, std="group", keep_flat=True)


def opened(directory: Path, head: Head = HEAD, notes: list[str] | None = None, **settings: Any) -> tuple[Journal, Recorded]:
    journal = Journal(directory, (notes if notes is not None else []).append)
    return journal, journal.open(head, num_members=2, **settings)


def write(directory: Path, *orders: int, end: bool = False) -> Path:
    journal, _ = opened(directory)
    for order in orders:
        journal.group(group_of(order), PROBLEMS[order])
    if end:
        journal.end()
    journal.close()
    return directory / "round-00003.jsonl"


def test_what_was_written_comes_back_in_order_with_its_drops(tmp_path: Path) -> None:
    journal, recorded = opened(tmp_path)
    assert recorded == Recorded()
    journal.group(group_of(2), PROBLEMS[2])
    journal.drop("r3/g0", 0, Reason.TIMED_OUT, "waited\nfor m1")
    journal.group(group_of(1), PROBLEMS[1])
    journal.close()
    _, again = opened(tmp_path)
    assert again.entries == (
        Complete(group_of(2), "prompt 2", "p2"),
        Drop("r3/g0", 0, Reason.TIMED_OUT, "waited\nfor m1"),
        Complete(group_of(1), "prompt 1", "p1"),
    )
    assert not again.is_whole
    assert [stored.group for stored in read_groups(tmp_path / "round-00003.jsonl")] == [group_of(2), group_of(1)]


def test_each_line_is_written_when_the_call_returns_and_synced_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen through another handle; the round's end waits for the disk."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda handle: synced.append(os.fstat(handle).st_size))
    journal, _ = opened(tmp_path)
    path = tmp_path / "round-00003.jsonl"
    for order in range(3):
        journal.group(group_of(order), PROBLEMS[order])
        assert path.read_bytes().count(b"\n") == order + 2
        deadline = time.monotonic() + 30
        while not synced or synced[-1] < path.stat().st_size:
            assert time.monotonic() < deadline, "never synced"
            time.sleep(0.001)
    journal.end()
    assert synced[-1] == path.stat().st_size


def test_a_whole_round_is_known_by_its_end(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, 2)
    journal, recorded = opened(tmp_path)
    assert not recorded.is_whole and not journal.has_all(HEAD, num_members=2)
    journal.drop("r3/g3", 3, Reason.FAILED, "")
    journal.end()
    assert journal.has_all(HEAD, num_members=2)
    again, recorded = opened(tmp_path)
    assert recorded.is_whole and len(recorded.entries) == 4
    before = (tmp_path / "round-00003.jsonl").read_bytes()
    again.end()  # a replay reports its end too
    assert (tmp_path / "round-00003.jsonl").read_bytes() == before


@pytest.mark.parametrize("field", ["weights", "problems", "version", "num_groups", "round"])
def test_a_round_of_another_head_is_set_aside_whole(tmp_path: Path, field: str) -> None:
    path = write(tmp_path, 0, 1, 2, 3, end=True)
    values: dict[str, Any] = {"weights": "c" * 64, "problems": "d" * 16, "version": 6, "num_groups": 5, "round": 4}
    other = Head(**{**{name: getattr(HEAD, name) for name in HEAD.__slots__}, field: values[field]})
    if field == "round":
        path.rename(tmp_path / "round-00004.jsonl")
    notes: list[str] = []
    _, recorded = opened(tmp_path, other, notes)
    assert recorded == Recorded() and len(notes) == 1 and "its groups are sampled again" in notes[0]
    assert (tmp_path / "rejected.txt").read_bytes().count(b'"samples"') == 4


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_cut_anywhere_only_whole_lines_count(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Torn at each byte: the whole lines before it come back, and the next line does not stand on the torn one."""
    directory = tmp_path_factory.mktemp("torn")
    path = write(directory, 0, 1, 2)
    text = path.read_bytes()
    cut = data.draw(st.integers(0, len(text)))
    path.write_bytes(text[:cut])
    whole = text[:cut].count(b"\n")
    journal, recorded = opened(directory)
    assert len(recorded.entries) == max(whole - 1, 0)
    journal.group(group_of(3), PROBLEMS[3])
    journal.close()
    _, again = opened(directory)
    assert len(again.entries) == len(recorded.entries) + 1 and again.entries[-1].group_id == "r3/g3"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, place: int, by: int) -> None:
    """Edited, or rotten: a group comes back as it was written, or not at all."""
    directory = tmp_path_factory.mktemp("edited")
    path = write(directory, 0, 1, 2)
    text = bytearray(path.read_bytes())
    text[place % len(text)] = (text[place % len(text)] + by) % 256
    path.write_bytes(bytes(text))
    found = read_journal(path, HEAD, 2)
    assert {entry.group_id: entry.group for entry, _ in found.entries if isinstance(entry, Complete)}.items() <= {
        f"r3/g{order}": group_of(order) for order in range(3)
    }.items()
    assert len(found.entries) <= 2 and found.notes


@given(st.permutations(range(4)))
def test_lines_that_were_moved_are_told_and_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, places: list[int]
) -> None:
    """The order is that of arrival, so the order of training: another one would end at other weights."""
    directory = tmp_path_factory.mktemp("moved")
    path = write(directory, 2, 0, 1, end=True)
    whole = path.read_bytes()
    head, *lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([head, *(lines[place] for place in places)]))
    notes: list[str] = []
    journal, recorded = opened(directory, notes=notes)
    assert [entry.group_id for entry in recorded.entries] == ["r3/g2", "r3/g0", "r3/g1"]
    is_moved = places != sorted(places)
    assert notes == ["round-00003.jsonl: its lines were moved; they are read in the order in which they were written"] * is_moved
    assert recorded.is_whole != is_moved
    journal.end()
    assert path.read_bytes() == whole
    assert not (directory / "rejected.txt").exists()


GONE = {(0,): "2", (1,): "3", (2,): "4", (0, 1): "2 to 3", (0, 2): "2, 4", (1, 2): "3 to 4", (0, 1, 2): "2 to 4"}
NOISE: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "nothing": lambda lines: [],
    "a blank line": lambda lines: [b"\n"],
    "a line twice": lambda lines: [lines[3]],
    "a second end": lambda lines: [lines[4]],
    "a second head": lambda lines: [seal(json.loads(lines[0]), 1)],
    "an edited line": lambda lines: [lines[3].replace(b"prompt", b"Prompt", 1)],
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("gone", GONE)
def test_lines_that_were_taken_out_are_told_by_number_whatever_else_was_done(
    tmp_path: Path, gone: tuple[int, ...], noise: str
) -> None:
    path = write(tmp_path, 2, 0, 1, 3, end=True)
    lines = path.read_bytes().splitlines(keepends=True)
    left = [line for place, line in enumerate(lines) if place - 1 not in gone]
    added = NOISE[noise]([lines[0], *lines[2:4], *lines[4:]])
    path.write_bytes(b"".join([*left, *added]))
    notes: list[str] = []
    journal, recorded = opened(tmp_path, notes=notes)
    assert f"round-00003.jsonl: lines {GONE[gone]} were taken out; their groups are sampled again" in notes
    assert len(notes) == 1 + len(added)
    assert not recorded.is_whole and len(recorded.entries) == 4 - len(gone)
    journal.drop("r3/g0", 0, Reason.FAILED, "") if 1 in gone else journal.end()
    journal.close()
    _, again = opened(tmp_path, notes=notes)
    assert len(again.entries) == 4 - len(gone) + (1 in gone) and len(notes) == 1 + len(added), "numbered anew"


def test_a_line_that_lost_its_end_takes_the_next_one_with_it_and_both_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, 0, 1, 2)
    head, first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([head, first.rstrip(), second, third]))
    notes: list[str] = []
    _, recorded = opened(tmp_path, notes=notes)
    assert [entry.group_id for entry in recorded.entries] == ["r3/g2"]
    (note,) = notes
    assert "line 2 (r3/g0, r3/g1) does not match its checksum" in note and "sampled again: r3/g0, r3/g1" in note


def test_a_huge_line_number_costs_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, 0)
    head, first = path.read_bytes().splitlines(keepends=True)
    row = json.loads(first)
    path.write_bytes(head + seal({name: value for name, value in row.items() if name not in ("line", "crc32")}, 10**15))
    notes: list[str] = []
    _, recorded = opened(tmp_path, notes=notes)
    assert len(recorded.entries) == 1 and len(notes) == 1 and f"lines 2 to {10**15 - 1} were taken out" in notes[0]


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_no_file_makes_the_reader_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "round-00003.jsonl"
    path.write_bytes(data)
    assert read_journal(path, HEAD, 2).entries == []


def crafted() -> dict[str, Any]:
    """Lines with a right seal that hold what no run writes."""
    good = json.loads(seal_of(group_of(0)))
    samples = good["samples"]

    def changed(**fields: Any) -> dict[str, Any]:
        return {**good, "samples": [{**samples[0], **fields}, samples[1]]}

    return {
        "a token that is text": changed(token_ids=["7", 8]),
        "a huge token": changed(token_ids=[7, 2**70]),
        "a negative token": changed(token_ids=[7, -1]),
        "a true token": changed(token_ids=[7, True]),
        "a log-prob less": changed(logprobs=[-0.1]),
        "a log-prob that is null": changed(logprobs=[None, -0.1]),
        "an infinite log-prob": changed(logprobs=["-inf", -0.1]),
        "a reward that is text": changed(reward="1.0"),
        "a reward that is infinite": changed(reward="inf"),
        "an advantage that is null": changed(advantage=None),
        "text that is none": changed(text=7),
        "members missing": {**good, "samples": samples[:1]},
        "members repeated": {**good, "samples": [samples[0], samples[0]]},
        "another version inside": changed(versions=[5, 6]),
        "a group of another round": {**good, "group": "r4/g0"},
        "a group id that is a list": {**good, "group": ["r3/g0"]},
        "an order that is none": {**good, "order": "0"},
        "an unknown kind": {**good, "kind": "pickle"},
        "samples that are a number": {**good, "samples": 10**9},
        "no object": [1, 2],
        "deep nesting": {**good, "prompt_extra": nested(300)},
    }


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def seal_of(group: Group) -> str:
    from common.report.groups import group_to_json

    return json.dumps({**group_to_json(group, "prompt 0"), "problem": "p0"})


@pytest.mark.parametrize("what", [name for name in crafted() if name not in ("no object", "deep nesting")])
def test_a_sealed_line_of_wrong_values_is_not_believed(tmp_path: Path, what: str) -> None:
    path = write(tmp_path)
    with path.open("ab") as file:
        file.write(seal(crafted()[what], 2))
    notes: list[str] = []
    _, recorded = opened(tmp_path, notes=notes)
    assert recorded.entries == () and len(notes) == 1 and "line 2" in notes[0]


@pytest.mark.parametrize(
    "body", [b"[1,2]", b"[" * 200_000 + b"]" * 200_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"9" * 5000, b"{}"]
)
def test_sealed_nonsense_is_told_in_one_line(body: bytes) -> None:
    line = body[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(body[:-1] + b"}")
    found = read_line(line)
    assert isinstance(found, str) and "\n" not in found and len(found) < 200


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.journal_reader.MAX_LINE_BYTES", 1000)
    path = tmp_path / "round-00003.jsonl"
    path.write_bytes(b"x" * 10_000)
    found = read_journal(path, HEAD, 2)
    assert found.entries == [] and "is torn" in found.notes[0]


def test_a_full_disk_is_told_and_what_was_written_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _ = opened(tmp_path)
    journal.group(group_of(0), PROBLEMS[0])

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(DiskError, match=r"round-00003.jsonl cannot be written: No space left"):
            journal.group(group_of(1), PROBLEMS[1])  # where the thread is quick; else the end tells it
            journal.end()
        with pytest.raises(DiskError):
            journal.group(group_of(2), PROBLEMS[2])
    journal.close()
    _, recorded = opened(tmp_path)
    assert [entry.group_id for entry in recorded.entries][:1] == ["r3/g0"]


def test_a_rejected_entry_leaves_the_others_where_they_are(tmp_path: Path) -> None:
    write(tmp_path, 2, 0, 1, end=True)
    notes: list[str] = []
    journal, recorded = opened(tmp_path, notes=notes)
    journal.reject(recorded.entries[1], "does not fit")
    journal.group(group_of(0), PROBLEMS[0])
    journal.close()
    assert notes == ["round-00003.jsonl: r3/g0 does not fit; it is sampled again"]
    assert [entry.group_id for entry in opened(tmp_path)[1].entries] == ["r3/g2", "r3/g1", "r3/g0"]


def test_random_files_of_many_rounds(tmp_path: Path) -> None:
    """Rounds are apart: what is spoilt in one does not reach another."""
    rng = random.Random(1)
    for number in range(5):
        head = Head(round=number, version=number, weights="a" * 64, problems="b" * 16, num_groups=4)
        journal = Journal(tmp_path)
        journal.open(head, num_members=2)
        for order in rng.sample(range(4), rng.randrange(1, 5)):
            journal.group(group_of(order, head=head), PROBLEMS[order])
        journal.close()
    (tmp_path / "round-00002.jsonl").write_bytes(b"\x00")
    for number in (0, 1, 3, 4):
        head = Head(round=number, version=number, weights="a" * 64, problems="b" * 16, num_groups=4)
        assert read_journal(tmp_path / f"round-{number:05d}.jsonl", head, 2).rejected == []


def test_an_empty_journal_and_a_directory_are_told(tmp_path: Path) -> None:
    path = tmp_path / "round.jsonl"
    path.touch()
    assert "it is empty" in read_journal(path, HEAD, 2).notes[0]
    with pytest.raises(DataError, match="must hold regular files"):
        read_journal(tmp_path, HEAD, 2)
