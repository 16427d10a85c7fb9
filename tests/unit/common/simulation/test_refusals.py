"""What `simulate` and `plan` refuse, and what they leave behind: one line and exit 2, nothing half-written."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sim_lab import record_compare

from common import cli
from common.commands.json_file import write_json
from common.commands.schedules import parse_schedules
from common.errors import ConfigError
from common.simulation import schedules
from common.simulation.lengths import LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel, VerifierModel
from common.simulation.run import simulate

ROOT = Path(__file__).parents[4]
SCENARIO = ["simulate", str(ROOT / "configs" / "simulate.yaml")]
QUICK = [*SCENARIO, "rounds=1", "groups_per_round=8", "groups_per_update=2"]
PLAN = ["plan", str(ROOT / "configs" / "plan.yaml")]


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = cli.run(words)
    error = capsys.readouterr().err
    assert code == 2 and error.count("\n") == 1 and "; " in error, error
    return error.removeprefix("rolloutpipe: ")


TOO_MUCH = [
    (
        [*SCENARIO, "groups_per_round=100000000000"],
        "groups_per_round: must be a whole number of 1 to 10,000,000, got 100",
    ),
    (
        [*SCENARIO, "groups_per_round=1250001"],
        "groups_per_round: times responses_per_group (8) must be at most 10,000,000",
    ),
    ([*SCENARIO, "prompt_tokens=10000000000"], "prompt_tokens: must be a whole number of 0 to 10,000,000, got"),
    ([*SCENARIO, "engine.replicas=1000000000"], "engine.replicas: must be a whole number of 1 to 100,000, got"),
    ([*SCENARIO, "rounds=10001"], "rounds: must be a whole number of 1 to 10,000, got 10001"),
    ([*SCENARIO, "rounds=1e300"], "rounds: "),
    ([*SCENARIO, "publish_s=1e10"], "publish_s: must be a number of 0 to 1,000,000,000, got"),
    ([*SCENARIO, "engine.step_s=1e10"], "engine.step_s: must be a number above 0 and at most 1,000,000,000, got"),
    ([*SCENARIO, "verifier.sigma=11"], "verifier.sigma: must be a number of 0 to 10, got 11.0"),
    ([*SCENARIO, "lengths.cap=2147483649"], "lengths.cap: must be 1 to 2,147,483,648, got 2147483649"),
    ([*SCENARIO, "lengths.median=1e300"], "lengths.median: must be above 0 and at most 2,147,483,648, got 1e+300"),
    ([*SCENARIO, "lengths.member_sigma=11"], "lengths.member_sigma: must be a number of 0 to 10, got 11.0"),
    ([*PLAN, "--devices", "100000000"], "devices: must be less than or equal to 10000, got 100000000"),
]
UNCLEAR = [
    ([*SCENARIO, "lengths.from_run="], "lengths.from_run: must be a run directory with recorded groups/, got None"),
    ([*SCENARIO, "seed=-1"], "seed: must be 0 or more, got -1"),
    ([*SCENARIO, "rounds=true"], "rounds: must be a number, got True"),
    ([*SCENARIO, "engine.step_s=true"], "engine.step_s: must be a number, got True"),
    ([*SCENARIO, "engine.kv_tokens=false"], "engine.kv_tokens: must be a number, got False"),
    ([*SCENARIO, "--schedules", ""], "--schedules: must name each schedule once, got ''"),
    ([*SCENARIO, "schedule=fgd", "--schedules", "cgp"], "schedule: does not go with --schedules, got 'cgp'"),
    ([*PLAN, "rollout.step_per_request_s=0.1"], "rollout.step_per_request_s: goes with rollout.step_s"),
    ([*PLAN, "training.devices=true"], "training.devices: must be a number, got True"),
]


@pytest.mark.parametrize(("words", "said"), TOO_MUCH + UNCLEAR, ids=[" ".join(words[2:]) for words, _ in TOO_MUCH + UNCLEAR])
def test_what_no_machine_has_and_what_is_not_clear_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(words, capsys).startswith(said)


def test_the_requests_of_a_round_are_limited_together() -> None:
    """Not simulated: where the limit is broken it would take the machine's memory."""
    rule = r"groups_per_round: times responses_per_group \(8\) must be at most 10,000,000 requests, got 1250001; "
    with pytest.raises(ConfigError, match=rule):
        Scenario(groups_per_round=1_250_001, responses_per_group=8)
    assert Scenario(groups_per_round=1_250_000, responses_per_group=8).groups_per_round == 1_250_000


@pytest.mark.parametrize("key", ["? [1, 2]\n: 3", "? {a: 1}\n: 3", "3: 4", "~: 4", "true: 2", "2020-01-01: 3", "1.5: 3"])
@pytest.mark.parametrize("command", ["simulate", "plan", "train"])
def test_keys_that_are_no_names_are_refused(command: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file.yaml").write_text(f"name: x\n{key}\n")
    refused([command, str(tmp_path / "file.yaml")], capsys)


@pytest.mark.parametrize("words", [[*PLAN, "rounds=1"], QUICK], ids=["plan", "simulate"])
@pytest.mark.parametrize("name", ["[/x]", "[bold]hi"])
def test_names_are_printed_as_they_were_typed(
    words: list[str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / name)] if words is QUICK else []
    assert cli.run([*words, f"name='{name}'", *out]) == 0
    assert name in capsys.readouterr().out
    assert words is not QUICK or (tmp_path / name / "report.html").is_file()


def test_the_schedule_of_a_file_or_an_override_is_run_alone(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("rounds: 1\nschedule: cgp\n")
    cases = {(): ["cgp"], ("schedule=fgd",): ["fgd"], ("--schedules", "serial,fgd"): ["serial", "fgd"]}
    for words, names in cases.items():
        assert cli.run(["simulate", str(file), *words, "--json", str(tmp_path / "out.json")]) == 0
        assert [row["schedule"] for row in json.loads((tmp_path / "out.json").read_text())["schedules"]] == names
    assert "adaptive" in parse_schedules(None)


# What is left behind.


@pytest.mark.parametrize("source", [QUICK, ["simulate", "paper", "rounds=1"]], ids=["a file", "paper"])
@pytest.mark.parametrize("is_there", [True, False])
def test_an_interrupted_simulation_leaves_nothing(
    source: list[str], is_there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "deep" / "out"
    if is_there:
        out.mkdir(parents=True)

    def interrupt(_: Scenario, path: Path | None = None, **__: Any) -> None:
        if path is not None:
            assert path.parent.is_dir()
            path.write_text("half")
            raise KeyboardInterrupt

    monkeypatch.setattr(schedules, "simulate", interrupt)
    if source[1] == "paper":
        from common.simulation import paper_table

        real = paper_table.simulate
        monkeypatch.setattr(paper_table, "simulate", lambda one, **more: interrupt(one, **more) if more else real(one))
    assert cli.run([*source, "--out", str(out)]) == 130
    assert capsys.readouterr().err == "rolloutpipe: interrupted; nothing was kept\n"
    assert list(tmp_path.rglob("*")) == ([tmp_path / "deep", out] if is_there else [])


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", "interrupted; what was recorded is in the run directory"),
        ("compare", "interrupted; what was recorded is in the run directory"),
        ("plan", "interrupted; nothing was kept"),
    ],
)
def test_an_interrupted_command_says_where_its_records_are_if_it_has_any(
    command: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupt)
    assert cli.run([command]) == 130
    assert capsys.readouterr().err == f"rolloutpipe: {words}\n"


@pytest.mark.parametrize("source", [SCENARIO, ["simulate", "paper"]], ids=["a file", "paper"])
def test_a_directory_that_cannot_be_made_is_refused_before_the_work(
    source: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(schedules, "simulate", None)
    monkeypatch.setattr("common.simulation.paper_table.simulate", None)
    said = refused([*source, "--out", str(tmp_path / "file" / "out")], capsys)
    assert said.startswith("--out: must be a directory that can be made and written to")
    assert refused([*source, "--out", str(tmp_path)], capsys).startswith("--out: must be a new or an empty directory")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_json_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.json"
    write_json(path, {"round": 1})

    def fail(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="no space"):
            write_json(path, {"round": 2})
    assert json.loads(path.read_text()) == {"round": 1}
    (tmp_path / "link.json").symlink_to(path)
    write_json(tmp_path / "link.json", {"round": 3})
    assert json.loads(path.read_text()) == {"round": 3} and (tmp_path / "link.json").is_symlink()
    write_json(Path("/dev/null"), {})
    assert not Path("/dev/null").is_file()


# Timelines of which something is missing or wrong.

BASE = Scenario(
    rounds=1,
    groups_per_round=16,
    responses_per_group=4,
    prompt_tokens=4,
    engine=EngineModel(replicas=2, capacity=8, step_s=0.02, step_per_request_s=0.003),
    lengths=LogNormalLengths(median=80, cap=500),
    verifier=VerifierModel(seconds=0.3),
    trainer=TrainerModel(token_s=0.001, group_s=0.2, update_s=0.25),
    publish_s=1.0,
    contention=1.3,
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_compare(tmp_path_factory.mktemp("compared"), BASE, ("serial", "cgp"))


Event = dict[str, Any]


def without(kind: str, **fields: Any) -> Callable[[Event], Event | None]:
    return lambda event: None if event["kind"] == kind and all(event.get(name) == fields[name] for name in fields) else event


def changed(kind: str, **fields: Any) -> Callable[[Event], Event | None]:
    return lambda event: {**event, **fields} if event["kind"] == kind else event


def lacking(kind: str, name: str) -> Callable[[Event], Event | None]:
    return lambda event: {key: event[key] for key in event if key != name} if event["kind"] == kind else event


SPOILT: dict[str, tuple[Callable[[Event], Event | None], str]] = {
    "no compute": (without("compute"), "needs the accumulate of each of its 16 groups in the timeline of round 0"),
    "one accumulate missing": (without("compute", group="r0/g3"), "needs the accumulate of each of its 16 groups"),
    "no rollout_done": (without("rollout_done"), "needs rollout_done events in the timeline of round 0"),
    "no response": (without("response"), "needs response events in the timeline of round 0"),
    "no group_complete": (without("group_complete"), "needs group_complete events"),
    "one group_complete missing": (without("group_complete", group="r0/g3"), "needs the group_complete of each of its 16 groups"),
    "a start of text": (changed("wait", start="a"), "needs start of the wait (event "),
    "a start of nothing": (lacking("compute", "start"), "needs start of the compute (event "),
    "a time of text": (changed("dispatch", t="a"), "needs t of the dispatch (event "),
    "a time of NaN": (changed("rollout_done", t=math.nan), "to be a finite number of seconds, 0 to ten years, got nan"),
    "negative tokens": (changed("response", tokens=-3), "to be a whole number of 0 or more, got -3"),
    "broken tokens": (changed("group_complete", tokens=1.5), "to be a whole number of 0 or more, got 1.5"),
    "tokens of text": (changed("response", tokens="many"), "to be a whole number of 0 or more, got 'many'"),
    "a group of another size of round": (changed("response", group="r0/g99"), "needs responses of its 16 groups alone"),
    "a group that is a number": (changed("response", group=3), "to be the name of a group"),
    "a replica that is a list": (changed("response", replica=[1]), "to be text or a number, got [1]"),
    "a loss of text": (changed("update", loss="low"), "to be a number, got 'low'"),
    "books of text": (changed("round_end", books="balanced"), "to be whole numbers by name, got 'balanced'"),
    "a kind that is a list": (
        lambda event: {**event, "kind": []} if event["kind"] == "dispatch" else event,
        "to be text, got []",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_timeline_is_told(name: str, compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, message = SPOILT[name]
    shutil.copytree(compared, tmp_path / "compared")
    timeline = tmp_path / "compared" / "serial" / "timeline.jsonl"
    events = [spoil(json.loads(line)) for line in timeline.read_text().splitlines()]
    timeline.write_text("".join(json.dumps(event) + "\n" for event in events if event is not None))
    for words, field in ((["simulate", str(timeline.parents[1])], "COMPARE_DIR: "), (["plan", str(timeline.parent)], "SOURCE: ")):
        said = refused(words, capsys)
        assert said.startswith(field) and message in said


def test_what_was_not_spoilt_is_taken(compared: Path) -> None:
    assert cli.run(["plan", str(compared / "serial")]) == 0
    assert cli.run(["simulate", str(compared)]) == 0


def test_the_largest_numbers_give_finite_rounds() -> None:
    lengths = LogNormalLengths(cap=2**31, median=2.0**31, prompt_sigma=10, member_sigma=10)
    large = replace(BASE, lengths=lengths, verifier=VerifierModel(seconds=1e9, sigma=10), publish_s=1e9)
    [one] = simulate(large).rounds
    assert one.tokens > 0 and math.isfinite(one.r2t_end_s or math.inf)
