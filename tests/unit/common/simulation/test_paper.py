"""The paper's settings: near its figures, the same each time, and fitted on nothing but what is said."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from common import cli
from common.errors import ConfigError
from common.metrics import RoundMetrics, collect_rounds
from common.report.rundir import run_events
from common.simulation import paper_fit
from common.simulation.off_policy import one_step_off
from common.simulation.paper import FITTED, ORDER_SPREAD, PaperSettings, expected_length, paper_scenario
from common.simulation.paper_figures import COMPUTE_S, R2T_END_S
from common.simulation.paper_marks import further_figures, marks
from common.simulation.paper_table import Row, finder, first_group_share, gap_s, order_rows, paper_rows
from common.simulation.run import simulate

QUICK = PaperSettings(rounds=4)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return paper_rows(QUICK, ("serial", "cgp", "fgd", "fgd-strict"))[0]


def test_what_was_fitted_and_what_was_predicted_is_near_the_paper(rows: Sequence[Row]) -> None:
    find = finder(rows)
    for key, seconds in R2T_END_S.items():
        assert find(*key)["r2t_end_s"] == pytest.approx(seconds, rel=0.03), key
    assert find("lsat_ar", 32, "fgd")["reduction_vs_serial"] == pytest.approx(0.309, abs=0.015)
    assert find("lsat_ar", 96, "fgd")["reduction_vs_serial"] == pytest.approx(0.411, abs=0.015)
    for workload, groups_per_round in COMPUTE_S:
        compute = find(workload, groups_per_round, "fgd")["trainer_compute_s"]
        assert compute == pytest.approx(COMPUTE_S[workload, groups_per_round][2], rel=0.03)


def test_every_mark_is_met(rows: Sequence[Row]) -> None:
    assert [mark for mark in marks(rows) if not mark.is_met] == []


@pytest.mark.parametrize(("schedule", "figure", "factor"), [("fgd", "r2t_end_s", 1.05), ("cgp", "first_dispatch_s", 2.0)])
def test_a_mark_can_be_missed(rows: Sequence[Row], schedule: str, figure: str, factor: float) -> None:
    other = [{**row, figure: row[figure] * factor} if row["schedule"] == schedule else row for row in rows]
    assert [mark.name for mark in marks(other) if not mark.is_met]


def test_the_paper_s_waiting_ratios_are_met_by_neither_definition_and_by_a_longer_window(rows: Sequence[Row]) -> None:
    found = {mark.name: mark.is_met for mark in further_figures(rows)}
    assert not found["waiting of fgd, R=96, wait / (wait + compute)"]
    assert found["waiting of fgd, R=96, and 36 s of gap"]
    assert finder(rows)("lsat_ar", 96, "fgd")["waiting_ratio_first"] < 0.142 - 0.03
    wait, total = R2T_END_S["lsat_ar", 96, "fgd"] - 586.4, R2T_END_S["lsat_ar", 96, "fgd"]
    assert (wait + gap_s()) / (total + gap_s()) == pytest.approx(0.142)


def test_the_literal_reading_starts_too_early_and_ends_too_late(rows: Sequence[Row]) -> None:
    strict, serial = (finder(rows)("lsat_ar", 96, schedule) for schedule in ("fgd-strict", "serial"))
    assert strict["first_dispatch_s"] < 52
    assert strict["r2t_end_s"] > serial["r2t_end_s"] > 647


def test_fgd_does_not_depend_on_the_order_of_arrival_and_cgp_does(rows: Sequence[Row]) -> None:
    some = {row["order_spread"] if row["request_order"] == "grouped" else row["request_order"]: row for row in _sci_xw_orders()}
    fgd = finder(rows)("sci_xw", 96, "fgd")
    assert some[0.0]["r2t_end_s"] == pytest.approx(fgd["r2t_end_s"])
    totals = [some[order]["r2t_end_s"] for order in (0.0, 8.0, 16.0, 32.0, "shuffled", "interleaved")]
    assert totals == sorted(totals)
    assert some["shuffled"]["first_dispatch_s"] > 2 * 90


def _sci_xw_orders() -> list[Row]:
    return [row for row in order_rows(QUICK) if row["workload"] == "sci_xw"]


def test_no_order_that_gives_the_paper_s_trace_gives_its_first_dispatch() -> None:
    grouped, shuffled = (first_group_share(replace(QUICK, rounds=1), order) for order in ("grouped", "shuffled"))
    assert grouped < 0.2
    assert 0.4 < shuffled < 0.7


def test_the_setting_is_the_paper_s() -> None:
    scenario = paper_scenario("sci_jl", 64, "fgd")
    assert (scenario.groups_per_round, scenario.responses_per_group, scenario.groups_per_update, scenario.width) == (64, 8, 2, 2)
    assert scenario.trainer.starts_at == "last"


def test_expected_compute_is_the_table_s_and_lengths_follow_it() -> None:
    for workload, groups_per_round in COMPUTE_S:
        scenario = paper_scenario(workload, groups_per_round, "fgd")
        compute = scenario.trainer.token_s * expected_length(scenario.lengths) * groups_per_round * 8  # type: ignore[arg-type]
        assert compute == pytest.approx(sum(COMPUTE_S[workload, groups_per_round]) / 3)
    longer, base = (paper_scenario(name, 96, "fgd").lengths for name in ("olyphys", "lsat_ar"))
    ratio = expected_length(longer) / expected_length(base)  # type: ignore[arg-type]
    assert ratio == pytest.approx(1276.9 / 1172.3, abs=0.002)  # sums over R of the mean compute
    assert paper_scenario("olyphys", 96, "fgd").engine == paper_scenario("lsat_ar", 32, "serial").engine


def test_the_fit_finds_a_known_minimum() -> None:
    fit, error = paper_fit.fit_model(
        lambda one: math.hypot((one.capacity - 61) / 60, one.group_s - 4.8, 3 * (one.cap_ratio - 0.8))
    )
    assert (fit.capacity, error < 0.03) == (61, True)
    assert (fit.group_s, fit.cap_ratio) == (pytest.approx(4.8, abs=0.03), pytest.approx(0.8, abs=0.03))


def test_the_stored_constants_are_where_the_fit_ends() -> None:
    fit, error = paper_fit.fit_model(paper_fit.fit_error, FITTED, paper_fit.Steps(capacity=2, group_s=0.02, cap_ratio=0.02))
    assert fit == FITTED
    assert error < 0.005


def test_the_stored_order_spread_gives_the_total_that_it_is_fitted_on() -> None:
    settings = PaperSettings(rounds=12, seed=1)
    found = {
        spread: paper_fit.total_s(paper_fit.SPREAD_TARGET, replace(settings, order_spread=spread), FITTED)
        for spread in (0.5 * ORDER_SPREAD, ORDER_SPREAD, 1.5 * ORDER_SPREAD)
    }
    assert min(found, key=lambda spread: abs(found[spread] - 659)) == ORDER_SPREAD
    assert found[ORDER_SPREAD] == pytest.approx(659, rel=0.01)


def test_the_fit_knows_no_other_workload() -> None:
    assert {key[:2] for key in paper_fit.TARGETS} == {("lsat_ar", 32), ("lsat_ar", 96)}


@pytest.mark.parametrize(("rollout", "training", "period"), [(5.0, 3.0, 5.0), (3.0, 7.0, 7.0), (4.0, 4.0, 4.0)])
def test_a_round_of_asynchronous_training_takes_the_longer_side(rollout: float, training: float, period: float) -> None:
    rounds = one_step_off([rollout] * 6, [training] * 6)
    assert rounds.period_s == pytest.approx(period)
    assert rounds.train_starts[0] == rollout


def test_asynchronous_training_is_never_more_than_one_round_off() -> None:
    rollouts, trainings = [3.0, 9.0, 1.0, 1.0, 4.0], [5.0, 2.0, 8.0, 1.0, 6.0]
    rounds = one_step_off(rollouts, trainings, publish_s=0.5)
    assert rounds.rollout_starts == [0.0, 3.0, 12.0, 14.5, 22.5]
    assert rounds.train_starts == [3.0, 12.0, 14.0, 22.0, 26.5]
    assert one_step_off([2.0], [3.0]).period_s == 5.0


# The arithmetic of the rows, done again from the rounds themselves.

GAP_S = (0.142 * 647.0 - (647.0 - 586.4)) / (1 - 0.142)  # the paper's ratio, total and compute of LSAT-AR, R = 96


def mean_of(rounds: Sequence[RoundMetrics], name: str) -> float:
    return sum(getattr(one, name) for one in rounds) / len(rounds)


def test_rows_are_what_their_rounds_say() -> None:
    settings = PaperSettings(rounds=2)
    rows, off_policy = paper_rows(settings, ("fgd",))
    assert pytest.approx(36.45, abs=0.005) == GAP_S
    for row, other in zip(rows, off_policy, strict=True):
        place = (row["workload"], row["groups_per_round"])
        serial, fgd = (simulate(paper_scenario(*place, schedule, settings)).rounds for schedule in ("serial", "fgd"))
        serial_s, fgd_s, ratio = mean_of(serial, "r2t_end_s"), mean_of(fgd, "r2t_end_s"), mean_of(fgd, "waiting_ratio")
        assert row["r2t_end_s"] == pytest.approx(fgd_s)
        assert row["reduction_vs_serial"] == pytest.approx((serial_s - fgd_s) / serial_s)
        assert row["waiting_ratio_with_gap"] == pytest.approx((ratio * fgd_s + GAP_S) / (fgd_s + GAP_S))
        # Rollout 1 runs beside training 0; training 1 waits for the later of the two.
        (sampled, trained), (sampled_1, trained_1) = ((one.rollout_s or 0.0, one.trainer_compute_s) for one in serial)
        period_s = max(sampled + sampled_1, sampled + trained) + trained_1 - (sampled + trained)
        assert other["period_s"] == pytest.approx(period_s)
        assert other["reduction_vs_serial"] == pytest.approx((serial_s - period_s) / serial_s)
        assert (other["workload"], other["groups_per_round"]) == place


def test_a_share_of_the_saving_is_what_its_rounds_say() -> None:
    settings = PaperSettings(rounds=1)
    for row in order_rows(settings):
        place = (row["workload"], row["groups_per_round"])
        order = replace(settings, request_order=row["request_order"], order_spread=row["order_spread"])
        serial, fgd, cgp = (
            simulate(paper_scenario(*place, schedule, one)).rounds[0].r2t_end_s or 0.0
            for schedule, one in (("serial", settings), ("fgd", settings), ("cgp", order))
        )
        assert row["r2t_end_s"] == pytest.approx(cgp)
        assert row["cgp_share"] == pytest.approx((serial - cgp) / (serial - fgd))


def test_the_command_writes_every_setting_and_keeps_off_policy_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "paper", "rounds=1", "--schedules", "fgd,adaptive", "--out", str(tmp_path / "out")]
    assert cli.run([*words, "--json", str(tmp_path / "one.json")]) == 0
    data = json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))
    assert len(data["settings"]) == 24
    assert set(data["settings"][0]) >= {
        "workload",
        "groups_per_round",
        "schedule",
        "r2t_end_s",
        "first_dispatch_s",
        "waiting_ratio",
        "waiting_ratio_first",
        "trainer_compute_s",
        "reduction_vs_serial",
    }
    assert {row["schedule"] for row in data["settings"]} == {"fgd", "adaptive"}
    assert len(data["off_policy"]) == 12
    assert all(row["is_off_policy"] for row in data["off_policy"])
    [recorded] = collect_rounds(run_events(tmp_path / "out" / "lsat_ar-32" / "fgd"))
    assert recorded.r2t_end_s == data["settings"][0]["r2t_end_s"]
    assert cli.run(["simulate", "paper", "rounds=1", "--schedules", "fgd,adaptive", "--json", str(tmp_path / "two.json")]) == 0
    assert json.loads((tmp_path / "two.json").read_text(encoding="utf-8")) == data
    text = capsys.readouterr().out
    assert text.count("OFF-POLICY") == 2 * 13
    assert "reading used: fgd: work-conserving" in text
    assert "fitted, not predicted" in text


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["papers"], ["SOURCE", "paper", "'papers'"]),
        (["paper", "rounds=0"], ["rounds", "1 to 10,000", "0"]),
        (["paper", "rounds=1.5"], ["rounds", "whole number", "1.5"]),
        (["paper", "rounds=many"], ["rounds", "number", "'many'"]),
        (["paper", "seed=nan"], ["seed", "whole number"]),
        (["paper", "seed=-1"], ["seed", "0 or more", "-1"]),
        (["paper", "rounds=1e300"], ["rounds", "1 to 10,000"]),
        (["paper", "rounds=true"], ["rounds", "number", "'true'"]),
        (["paper", "--schedules", ""], ["--schedules", "once", "''"]),
        (["paper", "order_spread=-1"], ["order_spread", "0 to", "-1"]),
        (["paper", "order_spread=inf"], ["order_spread", "inf"]),
        (["paper", "request_order=sorted"], ["request_order", "grouped", "'sorted'"]),
        (["paper", "lr=1"], ["lr=1", "rounds", "order_spread"]),
        (["paper", "rounds"], ["KEY=VALUE"]),
        (["paper", "--schedules", "fifo"], ["--schedules", "serial,cgp,fgd,fgd-strict,adaptive", "'fifo'"]),
        (["paper", "--schedules", "fgd,fgd"], ["--schedules", "once"]),
        (["paper", "--schedules", ","], ["--schedules", "once"]),
    ],
)
def test_bad_input_is_one_line_and_exit_2(words: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["simulate", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for part in parts:
        assert part in error


def test_a_directory_that_is_used_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    assert cli.run(["simulate", "paper", "--out", str(tmp_path)]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_comparison_takes_no_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["rounds=2"], ["--schedules", "fgd"], ["--out", str(tmp_path / "new")]):
        assert cli.run(["simulate", str(tmp_path), *words]) == 2
        assert "leave it out" in capsys.readouterr().err


def test_settings_are_refused_in_code_too() -> None:
    with pytest.raises(ConfigError):
        PaperSettings(rounds=-1)
    with pytest.raises(ConfigError):
        PaperSettings(request_order="random")  # type: ignore[arg-type]
