"""A timeline with broken lines is reported without them, whichever events they were; how many there are is told once."""

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import synthetic
from event_lab import eventful_run
from rich.console import Console

from common.commands.report import report
from common.event_fields import FIELDS, broken_field, rules_of
from common.metrics import collect_rounds, summarize
from common.report import summary
from common.report.evals import COLUMNS, evaluations
from common.report.html import page_data, script_json
from common.report.rundir import run_events, run_info
from common.report.trace import trace_records, write_trace
from common.timeline import Event

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


# Lines of JSON that are no whole event.


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Event]:
    """One event of each kind, as rounds emit them, all of one request and round; of an accumulate, for it has a group."""
    same = {"round": 0, "group": "r0/g0", "request": "r0/g0/m0", "update": 0}
    return {
        event["kind"]: {name: same.get(name, value) for name, value in event.items()}
        for event in eventful_run(tmp_path_factory.mktemp("lab"))
        if event.get("phase") != "finish"
    }


WRONG: tuple[Any, ...] = (
    *(None, True, [], {}, [1], ["a"], {"a": "b"}, {"a": None}, "", "text", "r0/g²", "r0/g" + 30 * "9"),
    *(-1, 0, 7, 1.5, 2**60, 10**400, -(10**400), 1e99, 1e300, math.inf, -math.inf, math.nan),
)


def everything(run_dir: Path, events: list[Event]) -> None:
    """All that reads events; raises where one of them cannot."""
    info, rounds = run_info(run_dir, events), collect_rounds(events)
    script_json([page_data(info, rounds, events), summarize(rounds), [entry.to_json() for entry in rounds]])
    json.dumps(list(trace_records(events)), allow_nan=False)
    summary.tiles(info, rounds), summary.books_rows(rounds), summary.incidents(events)
    assert all(show(row) for row in rounds for *_, show in summary.columns(info))
    assert all(show(event) for event in evaluations(events) for *_, show in COLUMNS)


def is_whole(event: Event) -> bool:
    return broken_field(json.loads(json.dumps(event))) is None


@pytest.mark.parametrize("kind", FIELDS)
def test_an_event_that_lacks_what_its_kind_has_is_left_out_and_told(
    kind: str, whole: Path, samples: dict[str, Event], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["t", *(name for name, rule in rules_of(samples[kind]).items() if rule.is_needed and name != "t")]
    broken = [{name: value for name, value in samples[kind].items() if name != left_out} for left_out in names]
    broken += [{"t": 1, "kind": kind, "round": 0}] if len(set(names) - {"t", "round"}) else []
    left = spoilt(whole, tmp_path)
    with (tmp_path / "timeline.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in broken)
    with caplog.at_level(logging.WARNING):
        assert list(run_events(tmp_path)) == left
    assert caplog.messages == [f"{tmp_path / 'timeline.jsonl'}: lines that cannot be read, and are left out: {len(broken)}"]


@pytest.mark.parametrize("kind", FIELDS)
def test_an_event_of_wrong_values_is_left_out_or_does_no_harm(kind: str, samples: dict[str, Event], tmp_path: Path) -> None:
    """Each field in turn, and left out, in a round that goes on; then all that is kept in one round. By all readers."""
    sample = samples[kind]
    names = sorted({*sample, *FIELDS[kind], "start", "round"} - {"kind"})
    spoilt = [{**sample, name: value} for name in names for value in WRONG]
    spoilt += [{name: value for name, value in sample.items() if name != left_out} for left_out in names]
    kept = [event for event in spoilt if is_whole(event)]
    ends = [samples["round_end"], samples["run_end"]]
    before = [*(event for event in samples.values() if event not in ends), samples["dispatch"], samples["eval_dispatch"]]
    for some in (*([event] for event in kept), kept):
        everything(tmp_path, [*before, *some, *ends])


def test_a_report_of_many_broken_events_is_made(whole: Path, samples: dict[str, Event], tmp_path: Path) -> None:
    """The command's own way, with the lines that were found to end it."""
    left = spoilt(whole, tmp_path)
    lines = ['{"t":120.0,"kind":"compute","round":5}', '{"t":1,"kind":"round_start","round":[],"version":0}']
    lines += ['{"t":1,"kind":"round_start","round":{},"version":0}', '{"t":1' + 400 * "0" + ',"kind":"phase","name":"a"}']
    lines += ['{"t":2,"kind":"wait","round":0,"start":1' + 400 * "0" + "}"]
    with (tmp_path / "timeline.jsonl").open("a") as file:
        file.write("\n".join(lines) + "\n")
    assert len(report(tmp_path, Console(quiet=True))["rounds"]) == 2 and list(run_events(tmp_path)) == left
