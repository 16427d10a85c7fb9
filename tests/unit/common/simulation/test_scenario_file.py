"""Scenario files: every field reaches its part, every fault is one line with the field as typed; runs side by side."""

import io
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
import yaml
from rich.console import Console

from common.commands.report import report
from common.errors import ConfigError, DataError
from common.metrics import collect_rounds
from common.report.rundir import run_events
from common.simulation import schedules
from common.simulation.lengths import EmpiricalLengths, LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel, VerifierModel
from common.simulation.run import simulate
from common.simulation.scenario_file import describe, load_scenario
from common.simulation.schedules import simulate_scenario

ROOT = Path(__file__).resolve().parents[4]


def load(tmp_path: Path, text: str, *overrides: str) -> Scenario:
    file = tmp_path / "scenario.yaml"
    file.write_text(text or "{}")
    return load_scenario(file, list(overrides))


def quiet() -> Console:
    return Console(record=True, width=120, file=io.StringIO())


def test_an_empty_file_is_the_default_scenario(tmp_path: Path) -> None:
    assert load(tmp_path, "") == Scenario()


def test_every_field_reaches_its_part(tmp_path: Path) -> None:
    """A scenario in which each field differs from its default survives the way through a file."""
    scenario = Scenario(
        name="all",
        schedule="cgp",
        rounds=2,
        groups_per_round=11,
        responses_per_group=3,
        groups_per_update=4,
        frontier_width=5,
        request_order="shuffled",
        order_spread=1.5,
        group_order="submission",
        prompt_tokens=7,
        engine=EngineModel(
            replicas=2, capacity=3, step_s=0.5, step_per_request_s=0.25, prefill_s_per_token=0.125, kv_tokens=1000
        ),
        lengths=LogNormalLengths(median=10.0, prompt_sigma=0.1, member_sigma=0.2, cap=99, loop_share=0.5),
        verifier=VerifierModel(seconds=1.0, sigma=0.5),
        trainer=TrainerModel(token_s=1.0, group_s=2.0, update_s=3.0, starts_at="last"),
        publish_s=4.0,
        contention=2.0,
        predictor_error=0.5,
        seed=8,
    )
    default = Scenario()
    assert all(getattr(scenario, spec.name) != getattr(default, spec.name) for spec in fields(scenario))
    assert load(tmp_path, yaml.safe_dump(describe(scenario))) == scenario


def test_overrides_reach_sections_that_the_file_lacks(tmp_path: Path) -> None:
    scenario = load(tmp_path, "rounds: 2", "engine.capacity=128", "trainer.token_s=1e-4", "schedule=serial", "frontier_width=3")
    assert scenario.engine == EngineModel(capacity=128) and scenario.trainer == TrainerModel(token_s=1e-4)
    assert (scenario.rounds, scenario.schedule, scenario.frontier_width) == (2, "serial", 3)


FAULTS = [
    ("engine: {capcity: 3}", "engine.capcity: is no known setting, got 3; did you mean engine.capacity?"),
    ("group_per_round: 3", "group_per_round: is no known setting, got 3; did you mean groups_per_round?"),
    ("engine: {capacity: 0}", "engine.capacity: must be a whole number of 1 to 1,000,000, got 0; change it"),
    ("engine: {capacity: 1.5}", "engine.capacity: must be a valid integer, got 1.5; "),
    ("engine: {step_s: -1}", "engine.step_s: must be a number above 0 and at most 1,000,000,000, got -1.0; change it"),
    ("engine: {step_s: 0}", "engine.step_s: must be a number above 0 and at most 1,000,000,000, got 0.0; change it"),
    ("engine: {step_s: .inf}", "engine.step_s: must be a finite number, got inf; "),
    ("engine: {step_s: fast}", "engine.step_s: must be a valid number, unable to parse string as a number, got 'fast'; "),
    ("engine: 3", "engine: must be a section: settings in lines below it, got 3; "),
    ("trainer: {token_s: -1.0e-3}", "trainer.token_s: must be a number of 0 to 1,000,000,000, got -0.001; change it"),
    ("trainer: {starts_at: middle}", "trainer.starts_at: must be first or last, got 'middle'; use first"),
    ("verifier: {sigma: -1}", "verifier.sigma: must be a number of 0 to 10, got -1.0; change it"),
    ("lengths: {median: 0}", "lengths.median: must be above 0 and at most 2,147,483,648, got 0.0; change it"),
    ("lengths: {loop_share: 2}", "lengths.loop_share: must be between 0 and 1, got 2.0; change it"),
    ("frontier_width: 0", "frontier_width: must be a whole number of 1 to 10,000,000, got 0; change it"),
    ("schedule: fast", "schedule: must be one of serial, cgp, fgd, fgd-strict, adaptive, got 'fast'; choose one"),
    ("request_order: any", "request_order: must be 'grouped', 'interleaved' or 'shuffled', got 'any'; "),
    ("groups_per_round: 4\ngroups_per_update: 5", "groups_per_update: must be at most groups_per_round (4), got 5; lower it"),
    ("contention: 0.5", "contention: must be a number of 1 to 1,000,000,000, got 0.5; change it"),
    ("rounds: 1\nrounds: 2", "CONFIG: must be valid YAML, got "),
    ("lengths: {from_run: no/such/run}", "lengths.from_run: must be a run directory with recorded groups/, got 'no/such/run'; "),
    (
        "lengths: {from_run: a, median: 3}",
        "lengths.from_run: must stand alone: recorded lengths have no parameters, got 'a'; remove it, or remove median",
    ),
]


@pytest.mark.parametrize(("text", "line"), FAULTS, ids=[text.replace("\n", ", ") for text, _ in FAULTS])
def test_a_fault_is_one_line_with_the_field_as_typed(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CONFIG: must be a readable YAML file"):
        load_scenario(tmp_path / "none.yaml")


# Recorded lengths.


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write_run(tmp_path_factory.mktemp("runs") / "run", synthetic.Plan(rounds=2))


def test_lengths_come_from_a_run(tmp_path: Path, recorded: Path) -> None:
    """Every drawn group is one of the run's, member by member."""
    lines = [line for path in sorted((recorded / "groups").iterdir()) for line in path.read_text().splitlines()]
    groups = {tuple(sorted(len(sample["token_ids"]) for sample in json.loads(line)["samples"])) for line in lines}
    (num_members,) = {len(group) for group in groups}
    model = load(tmp_path, f"lengths: {{from_run: {recorded}}}").lengths
    assert isinstance(model, EmpiricalLengths) and model.num_groups == len(lines)
    drawn = {tuple(sorted(row)) for row in model.draw(np.random.default_rng(0), 500, num_members).tolist()}
    assert drawn == groups


def test_lengths_of_a_run_replace_those_of_the_file_when_given_as_an_override(tmp_path: Path, recorded: Path) -> None:
    scenario = load(tmp_path, "lengths: {median: 30, cap: 99}", f"lengths.from_run={recorded}")
    assert isinstance(scenario.lengths, EmpiricalLengths)
    assert "recorded groups" in str(describe(scenario)["lengths"])


def test_a_run_without_groups_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run" / "groups").mkdir(parents=True)
    with pytest.raises(DataError, match=r"lengths\.from_run: must be a run directory with recorded groups/"):
        load(tmp_path, "", f"lengths.from_run={tmp_path / 'run'}")


# Schedules side by side.


SMALL = Scenario(
    name="small",
    rounds=3,
    groups_per_round=8,
    responses_per_group=4,
    request_order="interleaved",
    engine=EngineModel(replicas=2, capacity=4, step_s=0.01),
    verifier=VerifierModel(seconds=0.4, sigma=0.5),
    trainer=TrainerModel(token_s=5e-4, update_s=0.2),
    publish_s=1.0,
)


def test_each_schedule_is_the_simulation_of_its_own(tmp_path: Path) -> None:
    console = quiet()
    data = simulate_scenario(SMALL, ["serial", "cgp", "fgd"], None, console)
    assert [row["schedule"] for row in data["schedules"]] == ["serial", "cgp", "fgd"]
    for row in data["schedules"]:
        rounds = simulate(replace(SMALL, schedule=row["schedule"])).rounds
        assert [one["r2t_end_s"] for one in row["rounds"]] == [metrics.r2t_end_s for metrics in rounds]
        assert row["median"]["r2t_end_s"] == sorted(metrics.r2t_end_s for metrics in rounds)[1]
        assert row["median"]["waiting_ratio"] == sorted(metrics.waiting_ratio for metrics in rounds)[1]
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    text = console.export_text()
    ratio = data["schedules"][2]["median"]["r2t_end_s"] / data["schedules"][0]["median"]["r2t_end_s"]
    assert "simulated" in text and f"{ratio:.3f}" in text and "1.000" in text
    assert not list(tmp_path.iterdir())


def test_with_a_directory_each_schedule_leaves_a_run_that_report_reads(tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = simulate_scenario(SMALL, ["serial", "fgd"], out, quiet())
    assert json.loads((out / "compare.json").read_text()) == data
    for row in data["schedules"]:
        result = report(out / row["schedule"], quiet())
        assert result["median"]["r2t_end_s"] == row["median"]["r2t_end_s"]
        assert [one["r2t_end_s"] for one in result["rounds"]] == [one["r2t_end_s"] for one in row["rounds"]]
        assert [m.to_json() for m in collect_rounds(run_events(out / row["schedule"]))] == result["rounds"]
        trace = json.loads(Path(result["trace"]).read_text())
        bars = [one for one in trace["traceEvents"] if str(one.get("cat")).startswith("engine-") and one["ph"] == "X"]
        assert (
            sum(one["name"].startswith("r0/g") and "/m" in one["name"] and one["cat"].startswith("engine-") for one in bars) == 32
        )
        config = yaml.safe_load((out / row["schedule"] / "config.yaml").read_text())
        assert config.pop("simulated") is True
        assert load(tmp_path, yaml.safe_dump(config)) == replace(SMALL, schedule=row["schedule"])
    assert report(out, quiet()) == {"report": str(out / "report.html")}


def page_data(text: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(text.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])
    return data


def test_the_page_of_a_simulated_run_says_so_and_has_no_empty_sections(tmp_path: Path) -> None:
    simulate_scenario(SMALL, ["fgd"], tmp_path / "out", quiet())
    report(tmp_path / "out" / "fgd", quiet())
    text = (tmp_path / "out" / "fgd" / "report.html").read_text()
    body = text.partition("<body>")[2].partition('<script type="application/json"')[0]
    assert 'chip-simulated">simulated<' in body and "policy, queue and placement are the shipped ones" in body
    for absent in ("Reward", 'id="samples"', 'id="gap"', "Log-prob gap", "Grad norm"):
        assert absent not in body, absent
    for present in ("Slots an engine", "Trainer waiting ratio", "Response length", "✓ balanced", "Tokens/s out"):
        assert present in body, present
    (chart, *_) = page_data(text)["charts"]
    assert sum(len(engine["bars"]) for engine in chart["engines"]) == len(chart["verifier"]) == 32
    compared = (tmp_path / "out" / "report.html").read_text()
    assert "Simulated: the same response lengths under 1 schedules" in compared and "Reward, mean" not in compared


def test_the_page_of_a_real_run_has_all_its_sections(recorded: Path) -> None:
    report(recorded, quiet())
    body = (recorded / "report.html").read_text().partition("<body>")[2].partition('<script type="application/json"')[0]
    assert "simulated" not in body
    assert all(words in body for words in ("Reward", 'id="samples"', 'id="gap"', "Log-prob gap", "Grad norm"))


def test_a_large_run_leaves_out_single_requests_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "MAX_DETAIL", 95)  # of 96 requests
    console = quiet()
    simulate_scenario(SMALL, ["fgd"], tmp_path / "out", console)
    assert "fgd: 96 requests, more than 95: the timeline has no events of single ones" in console.export_text()
    assert "response" not in {event["kind"] for event in run_events(tmp_path / "out" / "fgd")}
    report(tmp_path / "out" / "fgd", quiet())
    text = (tmp_path / "out" / "fgd" / "report.html").read_text()
    assert "engines and verifier are not drawn" in text
    assert all(row["rollout_tokens_per_s"] is None for row in page_data(text)["rounds"]), "not known is not 0"


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["serial", "fast"], "--schedules: must be some of serial,cgp,fgd,fgd-strict,adaptive, got 'fast'; "),
        (["cgp", "cgp"], "--schedules: must name each schedule once, got 'cgp,cgp'; "),
        ([], "--schedules: must name each schedule once, got ''; "),
    ],
)
def test_schedules_that_are_none_are_refused_before_anything_is_made(tmp_path: Path, names: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        simulate_scenario(SMALL, names, tmp_path / "out", quiet())
    assert str(caught.value).startswith(line)
    assert not (tmp_path / "out").exists()


def test_a_directory_with_files_is_refused(tmp_path: Path) -> None:
    """A second simulation must not be appended to the first one's timeline."""
    simulate_scenario(SMALL, ["fgd"], tmp_path / "out", quiet())
    before = (tmp_path / "out" / "fgd" / "timeline.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="--out: must be a new or an empty directory"):
        simulate_scenario(SMALL, ["fgd"], tmp_path / "out", quiet())
    assert (tmp_path / "out" / "fgd" / "timeline.jsonl").read_bytes() == before


def test_the_shipped_scenario_loads_and_shows_what_its_comment_says() -> None:
    """Rollout and training take about equally long; cgp saves, and fgd more, as requests arrive interleaved."""
    scenario = load_scenario(ROOT / "configs" / "simulate.yaml", ["rounds=1"])
    rows = {
        row["schedule"]: row["median"]
        for row in simulate_scenario(scenario, ["serial", "cgp", "fgd"], None, quiet())["schedules"]
    }
    serial = rows["serial"]
    assert 0.8 < serial["rollout_s"] / serial["trainer_compute_s"] < 1.25
    assert rows["fgd"]["r2t_end_s"] < rows["cgp"]["r2t_end_s"] < 0.8 * serial["r2t_end_s"]
