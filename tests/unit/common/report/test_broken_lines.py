"""A timeline with broken lines is reported without them, whichever events they were; how many there are is told once."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import synthetic
from rich.console import Console

from common.commands.report import report
from common.metrics import collect_rounds
from common.report.html import page_data
from common.report.rundir import run_events, run_info
from common.report.trace import write_trace

BROKEN = (b"\0\0\0", b"\xff\xfe", b'{"t": 1, "ki', b"[1]", b"7", b'{"kind": "wait"}', b'{"t": Infinity, "kind": "wait"}')


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = synthetic.Plan(rounds=2, dropped=((1, 2),))
    return synthetic.write_run(tmp_path_factory.mktemp("runs") / "run", plan)


def spoilt(whole: Path, target: Path, *places: int) -> list[dict]:
    """The run with these lines broken; the events that are left."""
    shutil.copytree(whole, target, dirs_exist_ok=True)
    lines = (whole / "timeline.jsonl").read_bytes().splitlines()
    left = [json.loads(line) for place, line in enumerate(lines) if place not in places]
    for number, place in enumerate(places):
        lines[place] = BROKEN[number % len(BROKEN)]
    (target / "timeline.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return left


def test_all_other_events_are_reported(whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left = spoilt(whole, tmp_path, *range(20, 27))
    with caplog.at_level(logging.WARNING):
        result = report(tmp_path, Console(quiet=True))
    assert list(run_events(tmp_path)) == left
    assert caplog.messages == [f"{tmp_path / 'timeline.jsonl'}: lines that cannot be read, and are left out: 7"]
    assert len(result["rounds"]) == 2 and (tmp_path / "report.html").is_file() and (tmp_path / "trace.json").is_file()


def test_any_one_event_may_be_missing(whole: Path, tmp_path: Path) -> None:
    """One of each kind: the figures may lack it, the reports come."""
    kinds = [json.loads(line)["kind"] for line in (whole / "timeline.jsonl").read_bytes().splitlines()]
    for kind in dict.fromkeys(kinds):
        events = spoilt(whole, tmp_path, kinds.index(kind))
        write_trace(tmp_path)
        rounds = collect_rounds(events)
        data = page_data(run_info(tmp_path, events), rounds, events)
        assert len(data["charts"]) == len(rounds) >= 1, kind
