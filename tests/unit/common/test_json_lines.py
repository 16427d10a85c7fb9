"""Damaged figures do not keep a run from going on, and a trace that fails leaves no draft."""

import logging
from pathlib import Path

import pytest

from common.commands.train import _last_event_s
from common.errors import DataError, DiskError
from common.evaluation.training import read_evals
from common.json_lines import read_lines
from common.metrics_file import read_metrics
from common.report import trace
from common.rundir import RunDir
from common.trainer_save import read_trainer_state

BROKEN = [b"\0\0\0\n", b"\xff\xfe\n", b'{"round": 1, "ver\n', b'{"unknown": 1}\n', b"[1]\n", b"7\n"]
BROKEN += [
    b'{"t":%s,"kind":"a","version":3}\n' % time for time in (b"Infinity", b"NaN", b"1" + 400 * b"0", b"1e300", b"-1", b'"9"')
]


@pytest.mark.parametrize("broken", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_line_is_left_out_and_told_once(broken: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.evals.write_bytes(b'{"version":1,"round":1}\n' + broken + b'{"version":2,"round":2}\n{"ver')
    run_dir.timeline.write_bytes(b'{"t":1.0,"kind":"a"}\n' + broken + b'{"t":2.5,"kind":"a"}\n')
    run_dir.metrics.write_bytes(broken)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert [line["version"] for line in read_evals(run_dir)] == [1, 2]
            assert _last_event_s(run_dir) == 2.5
            assert read_metrics(run_dir.metrics) == []
    assert len(caplog.records) == 3 and caplog.messages[0].endswith("eval.jsonl: lines that cannot be read, and are left out: 1")


def test_a_number_that_no_float_holds_breaks_its_line_alone(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text('{"t":1' + 400 * "0" + '}\n{"t":2}\n')
    assert list(read_lines(tmp_path / "lines.jsonl", lambda line: float(line["t"]))) == [2.0]


def test_a_trace_that_cannot_be_written_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(events: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace, "run_events", lambda run_dir: [])
    monkeypatch.setattr(trace, "trace_records", full)
    with pytest.raises(DiskError):
        trace.write_trace(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_trainer_state_says_which_directory_to_move_away(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"move {tmp_path / 'round-3'} away, then resume again"):
        read_trainer_state(tmp_path / "round-3" / "trainer")
