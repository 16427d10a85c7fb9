"""The pages: whole offline, safe with hostile text, bounded, and there for a killed run too."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic

from common.errors import DataError
from common.report import samples
from common.report.compare import write_compare_report
from common.report.gantt import MAX_BARS, chart, chosen_rounds, evenly, in_flight, round_spans
from common.report.groups import GroupWriter, read_groups, round_path
from common.report.html import script_json, write_report
from common.report.spans import Span

HOSTILE = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">\u2028& <!--"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return synthetic.write_run(tmp_path_factory.mktemp("runs") / "run", synthetic.Plan(rounds=4, dropped=((1, 2),)))


def page_data(path: Path) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)[1])


def without_plotly(text: str) -> str:
    longest = max(re.findall(r"<script>.*?</script>", text, re.S), key=len)
    return text.replace(longest, "")


def test_page_refers_to_nothing_outside_itself(run) -> None:
    text = write_report(run).read_text()
    assert re.search(r"http-equiv=\"Content-Security-Policy\"\s+content=\"default-src 'none'", text)
    ours = without_plotly(text)
    assert len(ours) < 1_000_000 < len(text)
    assert not re.search(r"https?://", ours)
    assert set(re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]+)""", ours)) <= {"data:,"}
    assert not re.search(r"@import|url\(", ours)


def test_page_tells_the_run(run) -> None:
    path = write_report(run)
    text, data = path.read_text(), page_data(path)
    for words in ("synthetic", "reasoning_gym:chain_sum", "r1/g2: failed", "✓ balanced", "finished", "4 rounds"):
        assert words in text
    assert "unbalanced" not in text
    assert [row["round"] for row in data["rounds"]] == [0, 1, 2, 3]
    assert [entry["round"] for entry in data["charts"]] == [0, 1, 2, 3]
    assert data["gap_limit"] == 0.05
    assert [label for _, label in data["charts"][0]["markers"]] == [
        "first group",
        "first dispatch",
        "rollout done",
        "last update",
    ]
    bars = [bar for engine in data["charts"][0]["engines"] for bar in engine["bars"]]
    assert len(bars) >= 64
    assert data["samples"]["shown"] == data["samples"]["total"] == 63  # 4 x 16 less the dropped one


def hostile_run(directory: Path) -> Path:
    run = synthetic.write_run(directory, synthetic.Plan(rounds=1))
    group = next(read_groups(round_path(run / "groups", 0))).group
    bad = tuple(replace(sample, text=HOSTILE, reason=HOSTILE) for sample in group.samples)
    round_path(run / "groups", 0).unlink()
    with GroupWriter(run / "groups") as writer:
        writer.write(0, replace(group, samples=bad), prompt=HOSTILE)
    with (run / "timeline.jsonl").open("a") as file:
        file.write(json.dumps({"t": 999.0, "kind": "stall", "message": HOSTILE}) + "\n")
    (run / "config.yaml").write_text(json.dumps({"name": HOSTILE, "model": {"path": HOSTILE}}))
    return run


def test_hostile_text_stays_text(tmp_path) -> None:
    path = write_report(hostile_run(tmp_path / "run"))
    text = path.read_text()
    assert "<script>document" not in text
    assert "<img" not in without_plotly(text)
    assert page_data(path)["samples"]["rounds"][0]["groups"][0]["samples"][0]["text"] == HOSTILE


def test_script_json_is_plain_json_without_markup() -> None:
    text = script_json({"a": [float("nan"), float("inf"), 1.5, "<&>"], "b": (None,)})
    assert text == '{"a":[null,null,1.5,"\\u003c\\u0026\\u003e"],"b":[null]}'


@pytest.mark.parametrize("kill_at", [1.0, 13.0, 30.0, 60.0])
def test_a_killed_run_reports_what_is_there(tmp_path, kill_at) -> None:
    run = synthetic.write_run(tmp_path / "run", synthetic.Plan(kill_at_s=kill_at))
    (run / "config.yaml").unlink()
    text = write_report(run).read_text()
    assert "interrupted" in text
    assert "has no end" in text


def test_a_missing_run_is_one_line(tmp_path) -> None:
    with pytest.raises(DataError, match=r"^RUN_DIR: must be a run directory, got .*; give the directory"):
        write_report(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_samples_are_bounded_and_say_so(run, monkeypatch) -> None:
    monkeypatch.setattr(samples, "MAX_BYTES", 20_000)
    monkeypatch.setattr(samples, "MAX_TEXT", 10)
    data = page_data(write_report(run))["samples"]
    assert 0 < data["shown"] < data["total"] == 63
    assert len(json.dumps(data["rounds"])) < 20_000 + 200
    assert "more characters in groups/" in data["rounds"][0]["groups"][0]["samples"][0]["text"]


def test_large_rounds_become_occupancy_and_long_runs_keep_first_and_last() -> None:
    events = synthetic.simulate(synthetic.Plan(rounds=1, groups=128, capacity=400, replicas=1))
    spans = round_spans(events)
    from common.metrics import collect_rounds

    (engine,) = chart(spans[0], collect_rounds(events)[0])["engines"]
    assert "bars" not in engine
    assert max(count for _, count in engine["steps"]) == 400
    many = {number: _SizedSpans(number, MAX_BARS // 4) for number in range(9)}
    assert [entry.number for entry in chosen_rounds(many)] == [0, 3, 5, 8]


class _SizedSpans:
    def __init__(self, number: int, size: int) -> None:
        self.number, self.num_requests = number, size


def test_in_flight_counts_requests_and_evenly_keeps_both_ends() -> None:
    bars = [Span(place="e", lane=0, name="", start_s=start, end_s=end, round=0) for start, end in ((0, 2), (1, 3))]
    assert in_flight(bars, 0.0) == [[0, 1], [1, 2], [2, 1], [3, 0]]
    assert evenly(list(range(10)), 4) == [0, 3, 6, 9]
    assert evenly([1, 2], 1) == [2]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("compare")
    for schedule in ("fgd", "serial", "cgp"):
        synthetic.write_run(directory / schedule, synthetic.Plan(schedule=schedule))
    return directory


def test_comparison_puts_schedules_side_by_side_from_serial_on(comparison) -> None:
    path = write_compare_report(comparison)
    text = path.read_text()
    assert [entry["title"] for entry in page_data(path)["charts"]] == ["serial", "cgp", "fgd"]
    assert not re.search(r"https?://", without_plotly(text))
    assert re.search(r"−\d+\.\d % against serial", text)


def test_two_runs_of_one_schedule_are_told_apart_by_directory(tmp_path) -> None:
    for name in ("a", "b"):
        synthetic.write_run(tmp_path / name, synthetic.Plan(rounds=1))
    titles = [entry["title"] for entry in page_data(write_compare_report(tmp_path))["charts"]]
    assert titles == ["a", "b"]


def test_an_empty_comparison_is_one_line(tmp_path) -> None:
    with pytest.raises(DataError, match="COMPARE_DIR: must be a directory with one run directory per schedule"):
        write_compare_report(tmp_path)


def rendered(page: Path, profile: Path) -> str:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium")
    quiet = (
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--disable-quic",
    )
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", *quiet, f"--user-data-dir={profile}"]
    command += ["--virtual-time-budget=8000", "--window-size=1280,2000", "--dump-dom", page.resolve().as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_a_browser_draws_every_chart_and_runs_no_hostile_script(tmp_path) -> None:
    dom = rendered(write_report(hostile_run(tmp_path / "run")), tmp_path / "profile")
    title = re.search(r"<title>(.*?)</title>", dom)[1]
    assert "synthetic" in title
    for name in ("gantt", "reward", "waiting", "gap", "lengths"):
        assert re.search(rf'id="{name}" class="plot[^"]*js-plotly-plot', dom), name
    assert dom.count('<article class="sample">') == 4
    assert "&lt;img src=x" in dom


def test_a_browser_draws_the_comparison(comparison, tmp_path) -> None:
    dom = rendered(write_compare_report(comparison), tmp_path / "profile")
    assert re.search(r'id="gantt" class="plot[^"]*js-plotly-plot', dom)


def test_importing_the_report_package_pulls_in_nothing_heavy() -> None:
    code = (
        "import sys, common, common.report; print([m for m in ('plotly', 'jinja2', 'tensorboardX', 'rich') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
