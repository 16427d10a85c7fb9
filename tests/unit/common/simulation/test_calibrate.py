"""Calibration on recorded comparisons: made by the simulator from known numbers, which must come out again."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from sim_lab import record, record_compare

from common.errors import DataError
from common.simulation.calibrate import predict_compare
from common.simulation.lengths import LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel, VerifierModel

BASE = Scenario(
    name="known",
    rounds=2,
    groups_per_round=24,
    responses_per_group=6,
    prompt_tokens=40,
    engine=EngineModel(replicas=2, capacity=8, step_s=0.02, step_per_request_s=0.003, prefill_s_per_token=0.0004),
    lengths=LogNormalLengths(median=150, prompt_sigma=0.7, member_sigma=0.3, cap=1000),
    verifier=VerifierModel(seconds=0.3),
    trainer=TrainerModel(token_s=0.001, group_s=0.4, update_s=0.25),
    publish_s=1.5,
    contention=1.3,
    seed=7,
)
OTHERS = {
    "as it is": BASE,
    "interleaved": replace(BASE, request_order="interleaved", rounds=3, groups_per_round=32),
    "submission": replace(BASE, group_order="submission"),
    "shuffled, strict width 3": replace(BASE, request_order="shuffled", frontier_width=3),
    "nothing contended": replace(BASE, contention=1.0),
    "heavily contended": replace(BASE, contention=2.0),
    "steps that only grow with what runs": replace(
        BASE, engine=EngineModel(replicas=1, capacity=16, step_s=0.0005, step_per_request_s=0.004)
    ),
    "steps that take as long whatever runs": replace(BASE, engine=EngineModel(replicas=1, capacity=16, step_s=0.05)),
    "one update a round": replace(BASE, groups_per_update=24),
    "an engine of one request": replace(BASE, engine=EngineModel(replicas=1, capacity=1, step_s=0.004)),
}


def predict(directory: Path) -> dict[str, Any]:
    return predict_compare(directory, Console(quiet=True))


@pytest.mark.parametrize("name", OTHERS)
def test_known_numbers_come_out_again_and_the_other_schedules_as_they_were(name: str, tmp_path: Path) -> None:
    scenario = OTHERS[name]
    result = predict(record_compare(tmp_path, scenario, ("serial", "cgp", "fgd", "fgd-strict", "adaptive")))
    found, engine, trainer = result["calibration"], scenario.engine, scenario.trainer
    for running in (1, engine.capacity):
        step_s = found["engine"]["step_s"] + found["engine"]["step_per_request_s"] * running
        assert step_s == pytest.approx(engine.step_s + engine.step_per_request_s * running, rel=0.02)
    prompt_s = found["engine"]["prefill_s_per_token"] * found["prompt_tokens"]
    assert prompt_s == pytest.approx(engine.prefill_s_per_token * scenario.prompt_tokens, abs=0.1 * engine.step_s)
    for part in ("token_s", "group_s", "update_s"):
        assert found["trainer"][part] == pytest.approx(getattr(trainer, part), rel=0.01)
    assert found["verifier"]["seconds"] == pytest.approx(0.3, rel=0.01)
    assert found["publish_s"] == pytest.approx(1.5, rel=0.01)
    assert found["contention"] == pytest.approx(scenario.contention, rel=0.03)
    assert [(row["name"], row["is_fitted"]) for row in result["schedules"]] == [
        ("serial", True),
        ("cgp", True),
        ("fgd", False),
        ("fgd-strict", False),
        ("adaptive", False),
    ]
    assert all(abs(row["error"]) < 0.02 for row in result["schedules"])
    assert result["largest_error"] == max(abs(row["error"]) for row in result["schedules"][2:])


def test_a_machine_that_was_slower_under_cgp_is_not_taken_for_contention(tmp_path: Path) -> None:
    """The round time alone could not tell them apart."""
    record_compare(tmp_path, replace(BASE, rounds=4), ("serial", "fgd"))
    slower = replace(
        BASE,
        rounds=4,
        schedule="cgp",
        request_order="interleaved",
        engine=replace(BASE.engine, step_s=0.024, step_per_request_s=0.0036, prefill_s_per_token=0.00048),
        trainer=TrainerModel(token_s=0.0012, group_s=0.48, update_s=0.3),
    )
    record(tmp_path / "cgp", slower)
    assert predict(tmp_path)["calibration"]["contention"] == pytest.approx(1.3, rel=0.04)


def test_the_error_of_a_schedule_is_that_of_its_median_round(tmp_path: Path) -> None:
    """fgd was recorded with contention 1.6, cgp with 1.3: its prediction must be too short, and say by how much."""
    record_compare(tmp_path, BASE, ("serial", "cgp"))
    record(tmp_path / "fgd", replace(BASE, schedule="fgd", contention=1.6))
    row = predict(tmp_path)["schedules"][2]
    measured, predicted = ([one[f"{kind}_r2t_end_s"] for one in row["rounds"]] for kind in ("measured", "predicted"))
    assert row["measured_r2t_end_s"] == pytest.approx(sum(measured) / 2)
    assert row["predicted_r2t_end_s"] == pytest.approx(sum(predicted) / 2)
    assert row["error"] == pytest.approx(sum(predicted) / sum(measured) - 1)
    assert row["error"] < -0.03


def test_a_round_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    record_compare(tmp_path, BASE, ("serial", "cgp", "fgd"))
    timeline = tmp_path / "fgd" / "timeline.jsonl"
    lines = timeline.read_text().splitlines(keepends=True)
    cut = next(place for place, line in enumerate(lines) if '"kind":"update","round":1' in line)
    timeline.write_text("".join(lines[:cut]))
    result = predict(tmp_path)
    assert result["calibration"]["rounds"] == [0, 1]
    assert [one["round"] for one in result["schedules"][2]["rounds"]] == [0]


def drop_round_end(directory: Path) -> None:
    timeline = directory / "timeline.jsonl"
    kept = [line for line in timeline.read_text().splitlines(keepends=True) if json.loads(line)["kind"] != "round_end"]
    timeline.write_text("".join(kept))


def write_books(directory: Path, *changes: tuple[str, str]) -> None:
    text = (directory / "timeline.jsonl").read_text()
    for old, new in changes:
        text = text.replace(old, new)
    (directory / "timeline.jsonl").write_text(text)


def another_size(directory: Path) -> None:
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "groups_per_update": 3}))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no serial part": (lambda root: shutil.rmtree(root / "serial"), r"needs a serial part \(serial/timeline\.jsonl\)"),
    "no cgp part": (lambda root: shutil.rmtree(root / "cgp"), r"needs a cgp part \(cgp/timeline\.jsonl\)"),
    "no timeline": (lambda root: (root / "serial" / "timeline.jsonl").unlink(), "needs a serial part"),
    "an empty timeline": (lambda root: (root / "cgp" / "timeline.jsonl").write_text(""), "at least one whole event"),
    "no configuration": (lambda root: (root / "serial" / "config.yaml").unlink(), "needs config.yaml in serial"),
    "no groups": (lambda root: shutil.rmtree(root / "serial" / "groups"), "needs groups in serial"),
    "a round without groups": (
        lambda root: (root / "cgp" / "groups" / "round-00001.jsonl").unlink(),
        r"needs every group of round 1 in groups/round-00001.jsonl \(24 of 24 are missing\)",
    ),
    "no whole round": (lambda root: drop_round_end(root / "serial"), "needs at least one round of serial that ended"),
    "dropped groups": (lambda root: write_books(root / "serial", ('"trained":24', '"trained":23')), "all its groups trained"),
    "refilled groups": (
        lambda root: write_books(root / "serial", ('"refilled":0', '"refilled":1'), ('"filtered":0', '"filtered":1')),
        "all its groups trained",
    ),
    "two comparisons": (lambda root: another_size(root / "cgp"), "must have the same groups_per_update in its parts"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_too_little_data_is_refused_with_what_is_missing(name: str, tmp_path: Path) -> None:
    record_compare(tmp_path, BASE, ("serial", "cgp"))
    spoil, message = BROKEN[name]
    spoil(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        predict(tmp_path)
    assert "\n" not in str(caught.value) and "; " in str(caught.value)


SMALL: dict[str, tuple[dict[str, Any], str]] = {
    "one response": ({"rounds": 1, "groups_per_round": 1, "responses_per_group": 2}, "needs at least 16 responses, got 2"),
    "two groups": ({"rounds": 1, "groups_per_round": 2, "responses_per_group": 16}, "needs at least 4 trained groups, got 2"),
    "no overlap": ({"rounds": 1, "groups_per_round": 4, "responses_per_group": 6}, "that ran beside each other"),
}


@pytest.mark.parametrize("name", SMALL)
def test_too_few_events_are_refused_with_their_number(name: str, tmp_path: Path) -> None:
    changes, message = SMALL[name]
    record_compare(tmp_path, replace(BASE, **{"groups_per_update": 1, **changes}), ("serial", "cgp"))
    with pytest.raises(DataError, match=message):
        predict(tmp_path)


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="COMPARE_DIR: needs a serial part"):
        predict(tmp_path / "nowhere")


def test_a_real_run_publishes_version_0_before_its_first_round(tmp_path: Path) -> None:
    record_compare(tmp_path, BASE, ["serial", "cgp", "fgd"])
    without = predict_compare(tmp_path, Console(quiet=True))
    for schedule in ("serial", "cgp", "fgd"):
        path = tmp_path / schedule / "timeline.jsonl"
        first, *others = path.read_text().splitlines()
        publish = {"t": 0.0, "kind": "publish", "start": 0.0, "phase": "transfer", "version": 0}
        path.write_text("\n".join([first, json.dumps(publish), *others]) + "\n")
    assert predict_compare(tmp_path, Console(quiet=True)) == without
