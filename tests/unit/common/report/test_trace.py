"""The Perfetto trace: valid JSON, no overlap within a track, an arrow for each trained group."""

import json
import time
from collections import defaultdict
from itertools import pairwise

import pytest
import synthetic

from common.errors import DataError
from common.report.spans import Lanes, Slots, SpanBuilder
from common.report.trace import trace_records, write_trace
from common.timeline import group_number


@pytest.fixture(params=["serial", "cgp", "fgd"])
def run(request, tmp_path):
    return synthetic.write_run(tmp_path / "run", synthetic.Plan(schedule=request.param, dropped=((1, 2),), retry_share=0.05))


def records(run) -> list[dict]:
    return json.loads(write_trace(run).read_text())["traceEvents"]


def test_bars_of_a_track_never_overlap(run) -> None:
    tracks = defaultdict(list)
    for record in records(run):
        if record["ph"] == "X":
            tracks[record["pid"], record["tid"]].append((record["ts"], record["ts"] + record["dur"], record["name"]))
    assert len(tracks) > 16 + 3  # a track per slot of two engines, trainer, verifier, publish
    for bars in tracks.values():
        bars.sort()
        for (_, end, name), (start, _, other) in pairwise(bars):
            assert start >= end - 0.2, (name, other)  # times are rounded to 0.1 microseconds


def test_each_trained_group_has_one_arrow_between_two_bars(run) -> None:
    found = records(run)
    trained = [r for r in found if r["ph"] == "X" and r["name"] == "accumulate"]
    starts = {r["id"]: r for r in found if r["ph"] == "s"}
    ends = {r["id"]: r for r in found if r["ph"] == "f"}
    assert len(starts) == len(ends) == len(trained) > 0
    assert starts.keys() == ends.keys()
    bars = defaultdict(list)
    for record in (r for r in found if r["ph"] == "X"):
        bars[record["pid"], record["tid"]].append((record["ts"], record["ts"] + record["dur"]))
    for arrow in (*starts.values(), *ends.values()):
        assert any(start <= arrow["ts"] <= end for start, end in bars[arrow["pid"], arrow["tid"]])
    assert all(starts[key]["ts"] <= ends[key]["ts"] for key in starts)


def test_counters_end_at_zero_and_never_fall_below(run) -> None:
    counters = defaultdict(list)
    for record in records(run):
        if record["ph"] == "C":
            counters[record["pid"], record["name"]].append((record["ts"], *record["args"].values()))
    assert {name for _, name in counters} == {"in flight", "waiting"}
    for values in counters.values():
        assert values[-1][1] == 0
        assert min(value for _, value in values) == 0
        assert values == sorted(values, key=lambda value: value[0])


def test_a_killed_run_closes_its_open_bars(tmp_path) -> None:
    run = synthetic.write_run(tmp_path / "run", synthetic.Plan(kill_at_s=20.0))
    with (run / "timeline.jsonl").open("a") as file:
        file.write('{"t": 20.1, "kind": "resp')  # torn
    found = records(run)
    assert max(r["ts"] + r["dur"] for r in found if r["ph"] == "X") <= 20.0e6
    assert any(r["ph"] == "X" and r.get("args", {}).get("ended_by") == "round_end" for r in found)


def test_a_hundred_thousand_events_take_seconds() -> None:
    plan = synthetic.Plan(rounds=7, groups=512, members=8, capacity=64, replicas=2, tokens_per_s=500, accumulate_s=0.05)
    events = synthetic.simulate(plan)
    begin = time.process_time()
    count = sum(1 for _ in trace_records(events))
    assert len(events) > 90_000
    assert count > len(events)
    assert time.process_time() - begin < 10


@pytest.mark.parametrize("content", [None, "", '{"t": 1'])
def test_a_directory_without_events_is_refused_in_one_line(tmp_path, content) -> None:
    if content is not None:
        (tmp_path / "timeline.jsonl").write_text(content)
    with pytest.raises(DataError, match=r"^RUN_DIR: must hold .*timeline\.jsonl.*; .+") as error:
        write_trace(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "trace.json").exists()


def test_a_missing_directory_and_one_without_an_event_are_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="RUN_DIR: must be a run directory, got "):
        write_trace(tmp_path / "nowhere")
    for broken in (
        "no json",
        '{"t": 1}',
        "[]",
        '{"t": NaN, "kind": "wait"}',
        '{"t": "1", "kind": "wait"}',
        '{"t": 1, "kind": 2}',
    ):
        (tmp_path / "timeline.jsonl").write_text(f"{broken}\n{broken}\n")
        with pytest.raises(DataError, match=r"RUN_DIR: must hold a timeline\.jsonl with at least one whole event"):
            write_trace(tmp_path)
        assert not (tmp_path / "trace.json").exists()


def test_slots_are_reused_lowest_first_and_lanes_by_time() -> None:
    slots = Slots()
    assert [slots.take(), slots.take(), slots.take()] == [0, 1, 2]
    slots.give(2)
    slots.give(0)
    assert [slots.take(), slots.take(), slots.take()] == [0, 2, 3]
    lanes = Lanes()
    assert [lanes.take(0, 2), lanes.take(1, 3), lanes.take(2, 4), lanes.take(2.5, 5)] == [0, 1, 0, 2]


def test_a_request_dispatched_again_after_a_silent_loss_gets_two_bars() -> None:
    builder = SpanBuilder()
    sent = {"kind": "dispatch", "round": 0, "request": "r0/g1/m0", "group": "r0/g1", "replica": "engine-0"}
    ended = [*builder.add({"t": 1.0, **sent}), *builder.add({"t": 3.0, **sent}), *builder.close(4.0)]
    assert [(span.start_s, span.end_s, span.lane) for span in ended] == [(1.0, 3.0, 0), (3.0, 4.0, 0)]


def test_group_numbers_come_from_names() -> None:
    assert [group_number(name) for name in ("r3/g17", "r0/g0", "other")] == [17, 0, 0]
