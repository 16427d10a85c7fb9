"""Whole rounds: schedules against each other, several rounds, publish, determinism, and what the timeline's readers need."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulation_lab import Lab, fixed, run, varied

from common.metrics import collect_rounds
from common.requests import arrange, group_requests
from common.simulation.lengths import EmpiricalLengths, LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel, VerifierModel
from common.simulation.run import lengths_of, simulate, spread
from common.timeline import Event, read_timeline

SEEDS = range(25)


def with_schedule(lab: Scenario, schedule: str) -> Lab:
    return run(replace(lab, schedule=schedule))


def without_names(events: Sequence[Event]) -> list[Event]:
    return [{key: value for key, value in event.items() if key != "schedule"} for event in events]


# Schedules.


@pytest.mark.parametrize("seed", SEEDS)
def test_serial_is_rollout_and_then_training(seed: int) -> None:
    """Exactly: no overlap, no gap, and every group and update at its price."""
    lab = run(varied(seed, schedule="serial", rounds=2))
    trainer, num_groups = lab.scenario.trainer, lab.scenario.groups_per_round
    num_updates = -(-num_groups // lab.scenario.groups_per_update)
    for metrics in lab.rounds:
        tokens_s = trainer.token_s * metrics.tokens
        training_s = num_groups * trainer.group_s + tokens_s + num_updates * trainer.update_s
        assert metrics.r2t_end_s == pytest.approx(metrics.rollout_s + training_s, abs=1e-3)
        assert metrics.trainer_compute_s == pytest.approx(training_s, abs=1e-3)
        assert metrics.first_group_s == pytest.approx(metrics.rollout_s, abs=1e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_pipelining_never_takes_longer_than_serial(seed: int) -> None:
    """Same admissions, so the same rollout, and a trainer that starts earlier: `cgp` <= `serial` in every scenario."""
    scenario = varied(seed)
    serial, cgp = with_schedule(scenario, "serial"), with_schedule(scenario, "cgp")
    assert cgp.rounds[0].rollout_s == serial.rounds[0].rollout_s
    assert cgp.moments("response") == serial.moments("response")
    assert cgp.rounds[0].r2t_end_s <= serial.rounds[0].r2t_end_s + 1e-6
    assert cgp.rounds[0].first_dispatch_s <= serial.rounds[0].first_dispatch_s + 1e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_grouped_requests_make_cgp_and_fgd_the_same(seed: int) -> None:
    """First come first served and lowest group first are then one order: event for event."""
    scenario = varied(seed, request_order="grouped")
    assert without_names(with_schedule(scenario, "cgp").events) == without_names(with_schedule(scenario, "fgd").events)


def test_fgd_brings_the_first_groups_of_interleaved_requests_earlier() -> None:
    """Capacity 4 of 4 x 4 requests of 10 s. cgp: the last members come last, all groups at 40 s. fgd: 10, 20, 30, 40 s."""
    scenario = fixed(*[(10,) * 4] * 4, engine=EngineModel(capacity=4, step_s=1.0), request_order="interleaved")
    cgp, fgd = with_schedule(scenario, "cgp"), with_schedule(scenario, "fgd")
    assert list(cgp.moments("group_complete").values()) == [40, 40, 40, 40]
    assert list(fgd.moments("group_complete").values()) == [10, 20, 30, 40]


def test_a_strict_frontier_leaves_slots_free() -> None:
    """Room for all 8 requests; width 1 of 4 groups of 2 of 10 s: one group at a time, 40 s; all at once otherwise."""
    scenario = fixed(*[(10, 10)] * 4, frontier_width=1)
    assert with_schedule(scenario, "fgd-strict").rounds[0].rollout_s == 40
    assert with_schedule(scenario, "fgd").rounds[0].rollout_s == 10
    assert with_schedule(replace(scenario, frontier_width=2), "fgd-strict").rounds[0].rollout_s == 20


# The trainer.


def test_an_update_that_starts_with_its_first_group_ends_earlier() -> None:
    """Groups at 10 and 100 s, one update, 20 s a group and 5 s a step. First: 10-30, 100-120, 125. Last: 100-120-140, 145."""
    trainer = TrainerModel(group_s=20.0, update_s=5.0)
    scenario = fixed((10,), (100,), groups_per_update=2, trainer=trainer)
    first, last = run(scenario), run(replace(scenario, trainer=replace(trainer, starts_at="last")))
    assert [(event["start"], event["t"]) for event in first.of("compute")] == [(10, 30), (100, 120), (120, 125)]
    assert [(event["start"], event["t"]) for event in last.of("compute")] == [(100, 120), (120, 140), (140, 145)]
    assert (first.rounds[0].first_group_s, first.rounds[0].first_dispatch_s) == (10, 100)
    assert (last.rounds[0].first_group_s, last.rounds[0].first_dispatch_s) == (100, 100)
    assert (first.rounds[0].trainer_wait_s, last.rounds[0].trainer_wait_s) == (80, 100)


@pytest.mark.parametrize("seed", SEEDS)
def test_starting_at_the_first_group_is_never_slower(seed: int) -> None:
    scenario = varied(seed)
    times = {
        starts_at: run(replace(scenario, trainer=replace(scenario.trainer, starts_at=starts_at))).rounds[0].r2t_end_s
        for starts_at in ("first", "last")
    }
    assert times["first"] <= times["last"] + 1e-6


def test_the_last_update_of_a_round_may_be_short() -> None:
    """R=5, U=2: updates of 2, 2 and 1 groups; the last says so."""
    lab = run(fixed(*[(order + 1,) for order in range(5)], groups_per_update=2))
    assert [(event["groups"], event["is_short"]) for event in lab.of("update")] == [(2, False), (2, False), (1, True)]


def test_submission_order_waits_for_the_lowest_group() -> None:
    """Group 0 takes 50 s: under `submission` nothing is trained before it."""
    scenario = fixed((50,), (10,), (20,))
    orders = {}
    for group_order in ("arrival", "submission"):
        lab = run(replace(scenario, group_order=group_order))
        orders[group_order] = [event["group"] for event in lab.of("compute") if event["group"]]
    assert orders == {"arrival": ["r0/g1", "r0/g2", "r0/g0"], "submission": ["r0/g0", "r0/g1", "r0/g2"]}


def test_a_verifier_holds_its_group_up_and_no_slot() -> None:
    """One slot, 10 s a request, 100 s to score: the next request enters at 10 s, the first group is there at 110 s."""
    scenario = fixed((10,), (10,), engine=EngineModel(capacity=1, step_s=1.0), verifier=VerifierModel(seconds=100.0))
    lab = run(scenario)
    assert lab.moments("dispatch") == {"r0/g0/m0": 0, "r0/g1/m0": 10}
    assert lab.moments("group_complete") == {"r0/g0": 110, "r0/g1": 120}
    assert lab.rounds[0].rollout_s == 120


def test_verifier_times_are_log_normal_about_their_median() -> None:
    """5,000 calls: median 2 s, sigma of the logarithm 0.5, to the 3 % that such a sample is good for."""
    engine = EngineModel(capacity=5000)
    lab = run(
        Scenario(groups_per_round=500, responses_per_group=10, engine=engine, verifier=VerifierModel(seconds=2.0, sigma=0.5))
    )
    logs = np.log([event["t"] - event["start"] for event in lab.of("verify")])
    assert np.median(logs) == pytest.approx(np.log(2.0), abs=0.03) and logs.std() == pytest.approx(0.5, abs=0.015)


# Rounds.


def test_rounds_follow_each_other_with_a_publish_between() -> None:
    """10 s of rollout, 5 of training, 7 of publish, three times; versions and steps go on."""
    scenario = fixed((10,), rounds=3, publish_s=7.0, trainer=TrainerModel(group_s=4.0, update_s=1.0))
    lab = run(scenario)
    starts = [event["t"] for event in lab.events if event["kind"] == "round_start"]
    assert starts == [0, 22, 44] and lab.events[-1]["t"] == 66
    assert [metrics.publish_s for metrics in lab.rounds] == [7, 7, 7]
    assert [metrics.r2t_end_s for metrics in lab.rounds] == [15, 15, 15]
    assert [metrics.version for metrics in lab.rounds] == [0, 1, 2]
    assert [metrics.optimizer_step for metrics in lab.rounds] == [1, 2, 3]
    assert [(one["start"], one["version"]) for one in lab.of("publish", 1)] == [(37, 2)]


def test_every_round_has_lengths_of_its_own_and_all_schedules_the_same() -> None:
    """Common random numbers: what a schedule gains is not luck. Verifier times too."""
    scenario = Scenario(rounds=3, verifier=VerifierModel(seconds=1.0, sigma=1.0), request_order="shuffled")
    tokens, verifier = {}, {}
    for schedule in ("serial", "cgp", "fgd", "fgd-strict"):
        lab = with_schedule(scenario, schedule)
        tokens[schedule] = [sorted((one["request"], one["tokens"]) for one in lab.of("response", index)) for index in range(3)]
        verifier[schedule] = sorted(
            (one["group"], one["member"], round(one["t"] - one["start"], 4))
            for index in range(3)
            for one in lab.of("verify", index)
        )
    assert all(tokens[schedule] == tokens["serial"] for schedule in tokens)
    assert [len(one) for one in tokens["serial"]] == [256] * 3
    assert len({str([count for _, count in one]) for one in tokens["serial"]}) == 3
    for schedule in verifier:
        for one, other in zip(verifier[schedule], verifier["serial"], strict=True):
            assert one[:2] == other[:2] and one[2] == pytest.approx(other[2], abs=2e-4)
    first = {(int(name.split("/g")[1].split("/")[0]), int(name.split("/m")[1])): count for name, count in tokens["fgd"][0]}
    assert all(lengths_of(scenario)[place] == count for place, count in first.items())


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(tmp_path: Path) -> None:
    scenario = varied(3, lengths=LogNormalLengths(), rounds=2, schedule="fgd", request_order="shuffled")
    paths = [tmp_path / name for name in ("one", "same", "other")]
    for path, seed in zip(paths, (3, 3, 4), strict=True):
        simulate(replace(scenario, seed=seed), path=path, has_detail=True)
    one, same, other = (path.read_bytes() for path in paths)
    assert one == same != other and len(one) > 1000


# Lengths and orders.


def test_log_normal_lengths_have_the_spread_that_is_asked_for() -> None:
    """Prompt part 0.5, member part 0.3: between group means and within groups, over 4,000 groups of 16."""
    model = LogNormalLengths(median=1000, prompt_sigma=0.5, member_sigma=0.3, cap=10**9)
    logs = np.log(model.draw(np.random.default_rng(0), 4000, 16))
    assert np.median(logs) == pytest.approx(np.log(1000), abs=0.03)
    assert logs.std(axis=1, ddof=1).mean() == pytest.approx(0.3, abs=0.01)
    assert logs.mean(axis=1).std() == pytest.approx((0.5**2 + 0.3**2 / 16) ** 0.5, abs=0.02)


def test_some_responses_loop_to_the_cap_and_none_goes_beyond_it() -> None:
    lengths = LogNormalLengths(median=20, cap=300, loop_share=0.1).draw(np.random.default_rng(0), 1000, 8)
    assert lengths.max() == 300 and lengths.min() >= 1
    assert (lengths == 300).mean() == pytest.approx(0.1, abs=0.01)
    lab = run(Scenario(lengths=LogNormalLengths(median=20, cap=300, loop_share=1.0), groups_per_round=2))
    assert lab.rounds[0].cut_off_share == 1.0 and lab.rounds[0].length_max == 300


def test_recorded_lengths_keep_their_groups() -> None:
    """Each drawn group holds one recorded group's lengths, all of them where K fits."""
    recorded = [(1, 2, 3), (10, 20, 30), (100, 200, 300)]
    lengths = EmpiricalLengths(recorded).draw(np.random.default_rng(0), 50, 3)
    assert {tuple(sorted(row)) for row in lengths.tolist()} == set(recorded)
    fewer = EmpiricalLengths(recorded).draw(np.random.default_rng(0), 50, 5)
    assert all(any(set(row) <= set(one) for one in recorded) for row in fewer.tolist())


@pytest.mark.parametrize("by", [0.0, 1.0, 6.0, 40.0])
def test_spread_moves_no_request_by_more_than_it_says(by: float) -> None:
    """Whoever passes a request started at most `by` places behind it; with 0 nothing moves."""
    requests = [request for order in range(30) for request in group_requests(0, order, (), 4, 0)]
    moved = spread(requests, by, seed=1)
    assert sorted(moved, key=requests.index) == requests
    displaced = [abs(place - moved.index(request)) for place, request in enumerate(requests)]
    assert max(displaced) <= by
    assert (moved == requests) == (by <= 1)
    assert by < 6 or max(displaced) > by / 3


def test_order_spread_is_counted_in_groups() -> None:
    """Requests of one slot enter in their order of arrival: group by group, at most 2 groups of 4 out of place."""
    scenario = fixed(*[(1,) * 4] * 20, engine=EngineModel(capacity=1, step_s=1.0), order_spread=2.0)
    entered = [event["request"] for event in run(scenario).of("dispatch")]
    sorted_ = [one.request_id for one in arrange([group_requests(0, order, (), 4, 0) for order in range(20)], "grouped", 0)]
    displaced = [abs(place - entered.index(name)) for place, name in enumerate(sorted_)]
    assert 2 < max(displaced) <= 8


# What readers of the timeline expect.


@pytest.mark.parametrize("has_detail", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_the_figures_are_those_that_the_file_gives(tmp_path: Path, seed: int, has_detail: bool) -> None:
    path = tmp_path / "timeline.jsonl"
    result = simulate(varied(seed, rounds=3, publish_s=2.0), path=path, has_detail=has_detail)
    assert collect_rounds(read_timeline(path)) == result.rounds
    assert all(metrics.is_finished for metrics in result.rounds) and len(result.rounds) == 3


def test_detail_adds_events_and_changes_no_figure() -> None:
    scenario = varied(7)
    kept: dict[bool, list[Event]] = {True: [], False: []}
    for has_detail, events in kept.items():
        simulate(scenario, has_detail=has_detail, listen=events.append)
    extra = ("dispatch", "response", "verify")
    assert [event for event in kept[True] if event["kind"] not in extra] == kept[False]


def test_events_stand_in_order_and_hold_what_the_timeline_documents() -> None:
    """The table of `common.timeline`: every kind with all its fields; times never go back; intervals end at `t`."""
    lab = run(varied(2, rounds=2, publish_s=1.0, verifier=VerifierModel(seconds=1.0)))
    fields: dict[str, set[str]] = {
        "run_start": {"name", "schedule", "rounds", "groups_per_round", "responses_per_group", "groups_per_update"},
        "run_end": {"status", "detail"},
        "round_start": {"version", "num_groups", "schedule"},
        "dispatch": {"request", "group", "member", "replica"},
        "response": {"start", "request", "group", "member", "replica", "tokens", "finish_reason", "version"},
        "verify": {"start", "group", "member", "status", "reward", "seconds"},
        "group_complete": {"group", "order", "reward_mean", "reward_std", "tokens", "filtered"},
        "rollout_done": set(),
        "wait": {"start", "on"},
        "compute": {"start", "phase", "update", "group"},
        "update": {"update", "optimizer_step", "loss", "grad_norm", "groups", "is_short", "tokens", "metrics"},
        "publish": {"start", "phase", "version"},
        "round_end": {"books"},
    }
    assert {event["kind"] for event in lab.events} == set(fields)
    assert [event["t"] for event in lab.events] == sorted(event["t"] for event in lab.events)
    for event in lab.events:
        assert fields[event["kind"]] <= set(event), event
        assert event.get("start", 0.0) <= event["t"]
        json.dumps(event, allow_nan=False)


@pytest.mark.parametrize(
    ("part", "fault", "words"),
    [
        (EngineModel, {"capacity": 0}, "engine.capacity: must be a whole number of 1 to 1,000,000, got 0"),
        (EngineModel, {"capacity": 2.5}, "engine.capacity: must be a whole number of 1 to 1,000,000, got 2.5"),
        (EngineModel, {"replicas": -1}, "engine.replicas: must be a whole number of 1 to 100,000, got -1"),
        (EngineModel, {"step_s": 0.0}, "engine.step_s: must be a number above 0 and at most 1,000,000,000, got 0.0"),
        (EngineModel, {"step_s": float("nan")}, "engine.step_s: must be a number above 0 and at most 1,000,000,000, got nan"),
        (
            EngineModel,
            {"step_per_request_s": -0.1},
            "engine.step_per_request_s: must be a number of 0 to 1,000,000,000, got -0.1",
        ),
        (EngineModel, {"kv_tokens": 0}, "engine.kv_tokens: must be a number above 0 and at most 1,000,000,000, got 0"),
        (VerifierModel, {"seconds": -1.0}, "verifier.seconds: must be a number of 0 to 1,000,000,000, got -1.0"),
        (TrainerModel, {"token_s": float("inf")}, "trainer.token_s: must be a number of 0 to 1,000,000,000, got inf"),
        (TrainerModel, {"starts_at": "middle"}, "trainer.starts_at: must be first or last, got 'middle'"),
        (LogNormalLengths, {"median": 0}, "lengths.median: must be above 0 and at most 2,147,483,648, got 0"),
        (LogNormalLengths, {"member_sigma": -1}, "lengths.member_sigma: must be a number of 0 to 10, got -1"),
        (LogNormalLengths, {"median": float("nan")}, "lengths.median: must be above 0 and at most 2,147,483,648, got nan"),
        (Scenario, {"schedule": "fast"}, "schedule: must be one of serial, cgp, fgd, fgd-strict, adaptive, got 'fast'"),
        (Scenario, {"frontier_width": 0}, "frontier_width: must be a whole number of 1 to 10,000,000, got 0"),
        (Scenario, {"rounds": 0}, "rounds: must be a whole number of 1 to 10,000, got 0"),
        (Scenario, {"groups_per_update": 33}, "groups_per_update: must be at most groups_per_round (32), got 33"),
        (Scenario, {"contention": 0.5}, "contention: must be a number of 1 to 1,000,000,000, got 0.5"),
        (Scenario, {"prompt_tokens": -1}, "prompt_tokens: must be a whole number of 0 to 10,000,000, got -1"),
        (Scenario, {"publish_s": -1.0}, "publish_s: must be a number of 0 to 1,000,000,000, got -1.0"),
        (Scenario, {"request_order": "random"}, "request_order: must be one of grouped, interleaved, shuffled, got 'random'"),
        (Scenario, {"group_order": "any"}, "group_order: must be one of arrival, submission, got 'any'"),
    ],
)
def test_a_number_that_no_machine_has_is_refused(part: Any, fault: dict[str, Any], words: str) -> None:
    """The field as a scenario file names it, the rule, the value."""
    with pytest.raises(ValueError) as caught:
        part(**fault)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
