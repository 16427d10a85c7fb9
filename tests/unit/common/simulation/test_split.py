"""Splits of a device budget against rounds worked out by hand, and what `plan` refuses."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from sim_lab import record

from common import cli
from common.config_errors import validate
from common.metrics import collect_rounds
from common.report.rundir import run_events
from common.simulation.lengths import LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel
from common.simulation.split import SplitConfig, best, splits

ROOT = Path(__file__).parents[4]
LENGTH = 100

# Every response has LENGTH tokens and a replica holds one group, so groups complete in waves of one a replica.
EVEN: dict[str, Any] = {
    "devices": 8,
    "rounds": 1,
    "groups_per_round": 48,
    "responses_per_group": 4,
    "groups_per_update": 1,
    "rollout": {"devices": 2, "capacity": 4, "tokens_per_s": 80.0},  # 10 tokens a second each of 4 requests: a wave takes 10 s
    "training": {"devices": 2, "tokens_per_s": 80.0},  # 5 s a group of 400 tokens on two devices, 10 s on one
    "lengths": {"median": LENGTH, "prompt_sigma": 0, "member_sigma": 0},
}


def round_by_hand(num_groups: int, replicas: int, wave_s: float, group_s: float) -> float:
    """Groups complete in waves; the trainer takes them one after the other."""
    now_s = 0.0
    for group in range(num_groups):
        now_s = max(now_s, wave_s * (group // replicas + 1)) + group_s
    return now_s


def settings(**changes: Any) -> SplitConfig:
    return validate(SplitConfig, {**EVEN, **changes})


def test_every_split_is_as_worked_out_by_hand() -> None:
    rng = random.Random(5)
    for _ in range(12):
        devices, num_groups = rng.randint(2, 9), rng.randint(5, 40)
        sampled, trained = rng.uniform(20, 300), rng.uniform(20, 300)
        found = splits(
            settings(
                devices=devices,
                groups_per_round=num_groups,
                rollout={"devices": 3, "capacity": 4, "tokens_per_s": sampled},
                training={"devices": 5, "tokens_per_s": trained},
            )
        )
        assert [(one.rollout_devices, one.training_devices) for one in found] == [(d, devices - d) for d in range(1, devices)]
        expected = []
        for one in found:
            wave_s = 4 * LENGTH / (sampled / 3)
            group_s = 4 * LENGTH / (trained / 5 * one.training_devices)
            expected.append(round_by_hand(num_groups, one.rollout_devices, wave_s, group_s))
            assert one.r2t_end_s == pytest.approx(expected[-1], rel=1e-4)
            assert one.rollout_s == pytest.approx(wave_s * -(-num_groups // one.rollout_devices), rel=1e-4)
            assert one.trainer_compute_s == pytest.approx(group_s * num_groups, rel=1e-4)
            assert one.waiting_ratio == pytest.approx(1 - one.trainer_compute_s / one.r2t_end_s, abs=1e-3)
            assert one.bottleneck == ("rollout" if one.rollout_s > one.trainer_compute_s else "training")
        assert found[expected.index(min(expected))] is best(found)


def test_equal_rates_are_split_in_halves() -> None:
    chosen = best(splits(settings()))
    assert (chosen.rollout_devices, chosen.training_devices) == (4, 4)
    assert chosen.r2t_end_s == pytest.approx(10.0 * 12 + 10.0, rel=1e-4)  # 12 waves, then the 4 groups of the last at 2.5 s each


def test_a_trainer_three_times_as_fast_gets_a_quarter() -> None:
    chosen = best(splits(settings(training={"devices": 2, "tokens_per_s": 240.0})))
    assert (chosen.rollout_devices, chosen.training_devices) == (6, 2)


def test_replicas_and_training_groups_are_whole_and_the_rest_lies_idle() -> None:
    found = splits(
        settings(
            devices=11,
            rollout={**EVEN["rollout"], "devices": 4, "devices_per_replica": 2},
            training={**EVEN["training"], "devices_multiple": 4},
        )
    )
    assert [(one.rollout_devices, one.training_devices, one.idle_devices) for one in found] == [(2, 8, 1), (4, 4, 3), (6, 4, 1)]
    wave_s = 4 * LENGTH / 40.0  # 80 tokens a second of the two replicas measured
    assert [one.rollout_s for one in found] == pytest.approx([48 * wave_s, 24 * wave_s, 16 * wave_s])


def test_training_that_scales_badly_gets_slower_by_its_exponent() -> None:
    found = splits(settings(training={**EVEN["training"], "scaling_exponent": 0.5}))
    assert [one.trainer_compute_s for one in found] == pytest.approx(
        [48 * 5.0 * (2 / one.training_devices) ** 0.5 for one in found], rel=1e-4
    )


def test_the_split_of_a_recorded_run_is_predicted_as_it_was(tmp_path: Path) -> None:
    scenario = Scenario(
        rounds=3,
        groups_per_round=24,
        responses_per_group=4,
        prompt_tokens=20,
        engine=EngineModel(replicas=2, capacity=8, step_s=0.02, step_per_request_s=0.002, prefill_s_per_token=0.0002),
        lengths=LogNormalLengths(median=100, cap=800),
        trainer=TrainerModel(token_s=0.001, group_s=0.2, update_s=0.1),
        seed=3,
    )
    record(tmp_path / "run", scenario)
    result = plan_of(tmp_path, str(tmp_path / "run"))
    assert result["devices"] == 3
    measured = sorted(one.r2t_end_s or 0.0 for one in collect_rounds(run_events(tmp_path / "run")))[1]
    split = next(one for one in result["splits"] if one["rollout_devices"] == 2)
    assert split["r2t_end_s"] == pytest.approx(measured, rel=0.01)
    # Another size of round draws from the recorded groups; a serial run plans for fgd.
    record(tmp_path / "alone", replace(scenario, schedule="serial"))
    result = plan_of(tmp_path, str(tmp_path / "alone"), "groups_per_round=48", "--devices", "6")
    assert (result["schedule"], len(result["splits"])) == ("fgd", 5)
    alone = {one["rollout_devices"]: one["rollout_s"] for one in result["splits"]}
    assert alone[1] > 1.5 * alone[2] > 2 * alone[4]


def plan_of(folder: Path, *arguments: str) -> dict[str, Any]:
    assert cli.run(["plan", *arguments, "--json", str(folder / "plan.json")]) == 0
    return dict(json.loads((folder / "plan.json").read_text()))


def test_the_worked_example_finds_the_split_of_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = plan_of(tmp_path, str(ROOT / "configs" / "plan.yaml"))
    assert (result["best"]["rollout_devices"], result["best"]["training_devices"]) == (2, 8)
    assert [one["is_best"] for one in result["splits"]] == [True, False, False]
    assert result["best"]["rollout_s"] == pytest.approx(511, rel=0.01)  # paper: 1098 s serial less 587 s of training
    assert result["best"]["trainer_compute_s"] == pytest.approx(587, rel=0.01)
    printed = capsys.readouterr().out
    assert "* 2 + 8" in printed and "assumed: a replica is as fast as measured" in printed
    assert "…" not in printed


BAD = {
    "a budget of one": (["--devices", "1"], "devices: must be at least 2"),
    "a budget of none": (["devices=0"], "devices: must be at least 2"),
    "a budget below one replica and one trainer": (
        ["--devices", "4", "rollout.devices_per_replica=2", "training.devices_multiple=4"],
        "devices: must be at least 6",
    ),
    "a rate of zero": (["rollout.tokens_per_s=0"], "rollout.tokens_per_s: must be greater than 0, got 0"),
    "a negative rate": (["training.tokens_per_s=-3"], "training.tokens_per_s: must be greater than 0, got -3"),
    "no rate": (["rollout.tokens_per_s=null"], "rollout: exactly one of tokens_per_s and step_s must be set"),
    "two rates": (["training.token_s=1"], "training: exactly one of tokens_per_s and token_s must be set"),
    "no time at all": (["training.token_s=0", "training.tokens_per_s=null"], "training: must take some time"),
    "an unknown key": (["rollout.speed=3"], "rollout.speed: is no known setting, got 3"),
    "a misspelt key": (["rollout.capcity=3"], "did you mean rollout.capacity?"),
    "an unknown schedule": (["schedule=fastest"], "schedule: must be one of serial, cgp"),
    "a frontier of none": (["frontier_width=0"], "frontier_width: must be greater than or equal to 1"),
    "no lengths": (["lengths=null"], "lengths: must be set"),
    "a replica of more devices than measured": (["rollout.devices_per_replica=3"], "must divide rollout.devices (2)"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_one_line_and_exit_2(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rates.yaml"
    file.write_text(yaml.safe_dump(EVEN))
    arguments, message = BAD[name]
    assert cli.run(["plan", str(file), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "; " in error


def test_a_source_that_is_no_run_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source, message in ((tmp_path, "must hold timeline.jsonl"), (tmp_path / "nowhere", "must be a readable YAML file")):
        assert cli.run(["plan", str(source)]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
