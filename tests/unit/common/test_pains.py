"""`docs/pains.md`: every test that it names is there. And rows with the inputs that they give."""

import ast
import asyncio
import re
from pathlib import Path

import pytest
from round_lab import run_round
from run_lab import run_run

from common.errors import PublishError
from common.spool import SpoolWriter, TensorLayout, check_spool
from common.testing import FakeEngine, Fault, make_problems

ROOT = Path(__file__).resolve().parents[3]
DOC = (ROOT / "docs" / "pains.md").read_text(encoding="utf-8")


def test_every_row_names_a_test_and_every_test_is_there() -> None:
    rows = [line for line in DOC.splitlines() if line.startswith("|") and "tests |" not in line and "---" not in line]
    assert [int(row.split("|")[1]) for row in rows[:22]] == list(range(1, 23)) and len(rows) == 26
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"no test: {row}"
        for file, name in named:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{name} is not there"


def test_pain_4_nothing_is_asked_before_the_next_version_is_live_and_every_row_says_its_version(tmp_path: Path) -> None:
    """Pain 4: at version 7 a pool that is faster than the trainer, with problems left."""
    lab = run_run(tmp_path, rounds=9, seconds=lambda request: 0.01)
    assert lab.error is None
    (live,) = lab.of("publish", phase="probe", version=8)
    assert [event for event in lab.of("dispatch", round=8) if event["t"] < live["t"]] == []
    assert len(lab.of("dispatch", round=7)) == 16
    rows = [sample for group in lab.trainer.groups if str(group.group_id).startswith("r7/") for sample in group.samples]
    assert len(rows) == 16 and {(row.response.version_start, row.response.version_end) for row in rows} == {(7, 7)}


def spool(root: Path, version: int, tensors: dict[str, bytes]) -> Path:
    with SpoolWriter(root, version) as writer:
        for name, data in tensors.items():
            writer.add(name, "float32", (2,), data)
    return root


def test_pain_6_four_faults_of_a_publish_are_four_errors(tmp_path: Path) -> None:
    """Pain 6: a tensor dropped, one renamed, one value flipped, version 3 on an engine that serves 5."""
    whole = {"a": b"12345678", "b": b"abcdefgh"}
    expected = {name: TensorLayout((2,), "float32") for name in whole}
    check_spool(spool(tmp_path / "good", 1, whole), 1, expected)
    flipped = spool(tmp_path / "flipped", 1, whole)
    (shard,) = flipped.glob("*.safetensors")
    shard.write_bytes(shard.read_bytes().replace(b"abcdefgh", b"abcdefgx"))
    cases = {
        "tensor b: expected by the engines, missing": spool(tmp_path / "dropped", 1, {"a": whole["a"]}),
        "it has c, which they do not expect": spool(tmp_path / "renamed", 1, {"a": whole["a"], "c": whole["b"]}),
        "tensor b: checksum": flipped,
    }
    for message, directory in cases.items():
        with pytest.raises(PublishError, match=message):
            check_spool(directory, 1, expected)
    engine = FakeEngine()
    engine._version = 5
    with pytest.raises(PublishError, match="serves version 5; version 3 is not newer"):
        asyncio.run(engine.publish(3, tmp_path))


def test_pain_20_a_stopped_pool_is_told_within_its_limit() -> None:
    """Pain 20: the fake pool stops; within 30 s of the last event a line has round, groups, oldest in flight, engine states."""
    faults = {f"r0/g{group}/m{member}": [Fault.HANG] for group in range(4) for member in range(4)}
    lab = run_round(engine=FakeEngine(faults=faults), problems=make_problems(4), limits={"group_timeout_s": 100})  # type: ignore[arg-type]
    first = lab.of("stall")[0]
    assert first["t"] <= 31
    for part in ("round 0: 0 of 4 groups complete", "requests in flight: ", "r0/g0/m0", "engine 0 alive, 16 running, version 0"):
        assert part in first["message"]
