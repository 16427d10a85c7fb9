"""The timeline: written as events come, readable after a crash."""

import json
from pathlib import Path

from common.timeline import Timeline, group_number, read_timeline


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_times_count_from_the_start_of_the_run(tmp_path: Path) -> None:
    """`t` is monotonic seconds since the timeline was made, the clock an argument."""
    clock = Clock()
    with Timeline(tmp_path / "t.jsonl", clock) as timeline:
        clock.now_s = 101.25
        timeline.emit("wait", round=0, on="group")
    assert list(read_timeline(tmp_path / "t.jsonl")) == [{"t": 1.25, "kind": "wait", "round": 0, "on": "group"}]


def test_a_torn_last_line_is_skipped(tmp_path: Path) -> None:
    """A run that was killed in the middle of a write: all whole events are there."""
    path = tmp_path / "t.jsonl"
    with Timeline(path, Clock()) as timeline:
        timeline.emit("update", update=0)
        timeline.emit("update", update=1)
    whole = path.read_bytes()
    for cut in range(1, 20):
        path.write_bytes(whole[:-cut])
        assert [event["update"] for event in read_timeline(path)] == [0]


def test_a_resumed_run_writes_no_event_onto_a_torn_line(tmp_path: Path) -> None:
    """Rule 10: the torn line is cut off first, so that every line is an event."""
    path = tmp_path / "t.jsonl"
    for torn in ('{"t": 2, "ki', ""):
        path.write_text('{"t": 1, "kind": "update"}\n' + torn)
        with Timeline(path, Clock(), offset_s=2.0) as timeline:
            timeline.emit("round_start", round=1)
        assert [event["t"] for event in read_timeline(path)] == [1, 2.0]
        assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_file_of_one_torn_line_starts_anew(tmp_path: Path) -> None:
    """Killed within its first event."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"t": 0, "kin')
    with Timeline(path, Clock()) as timeline:
        timeline.emit("run_start")
    assert [event["kind"] for event in read_timeline(path)] == ["run_start"]


def test_what_a_person_needs_after_a_crash_is_written_at_once(tmp_path: Path) -> None:
    """Updates and drops are flushed with all that stands before them; the rest may wait in the buffer."""
    path = tmp_path / "t.jsonl"
    timeline = Timeline(path, Clock())
    timeline.emit("dispatch", request="r0/g0/m0")
    timeline.emit("group_drop", group="r0/g0", reason="failed")
    assert [event["kind"] for event in read_timeline(path)] == ["dispatch", "group_drop"]
    timeline.close()


def test_listeners_hear_every_event_in_order_until_they_leave() -> None:
    """Also without a file, and after closing."""
    timeline, first, second = Timeline(None, Clock()), [], []  # type: ignore[var-annotated]
    leave = timeline.listen(lambda event: first.append(event["kind"]))
    timeline.listen(lambda event: second.append(event["kind"]))
    timeline.emit("a")
    leave()
    timeline.close()
    timeline.close()
    timeline.emit("b")
    assert (first, second) == (["a"], ["a", "b"])


def test_the_order_of_a_group_is_in_its_name() -> None:
    """`r3/g17` is group 17."""
    assert [group_number(name) for name in ("r3/g17", "r0/g0", "other")] == [17, 0, 0]
