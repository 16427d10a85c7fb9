"""Figures of a round, computed by hand."""

import json
import math

import pytest
import synthetic

from common.metrics import RoundCollector, collect_rounds, percentile, summarize
from common.metrics_file import append_metrics
from common.timeline import Event, read_timeline


def one_round() -> list[Event]:
    """Two updates of one group each; a wait before the round and one after the last update must not count."""
    at = {"round": 0}
    return [
        {"t": 0.0, "kind": "run_start", "name": "tiny", "schedule": "cgp"},
        {"t": 10.0, "kind": "round_start", "version": 4, "num_groups": 3, **at},
        {"t": 12.0, "kind": "response", "start": 10.0, "request": "r0/g0/m0", "tokens": 10, "finish_reason": "stop", **at},
        {"t": 13.0, "kind": "response", "start": 10.0, "request": "r0/g0/m1", "tokens": 20, "finish_reason": "length", **at},
        {"t": 13.0, "kind": "response", "start": 10.0, "request": "r0/g1/m0", "tokens": 5, "finish_reason": "abort", **at},
        {"t": 13.1, "kind": "retry", "request": "r0/g1/m0", "group": "r0/g1", "reason": "version", **at},
        {"t": 13.5, "kind": "verify", "start": 13.0, "group": "r0/g0", "member": 0, "status": "ok", "reward": 1.0, **at},
        {"t": 13.5, "kind": "verify", "start": 13.0, "group": "r0/g0", "member": 1, "status": "error", "reward": None, **at},
        {
            "t": 14.0,
            "kind": "group_complete",
            "group": "r0/g0",
            "order": 0,
            "reward_mean": 0.5,
            "tokens": 30,
            "filtered": None,
            **at,
        },
        {"t": 14.0, "kind": "wait", "start": 9.0, "on": "group", **at},
        {"t": 16.0, "kind": "compute", "start": 14.0, "phase": "accumulate", "update": 0, "group": "r0/g0", **at},
        {"t": 17.0, "kind": "compute", "start": 16.0, "phase": "finish", "update": 0, "group": None, **at},
        _update(17.0, 0, 7, 0.5, 1.0, 0.02),
        {"t": 18.0, "kind": "response", "start": 10.0, "request": "r0/g1/m0", "tokens": 40, "finish_reason": "stop", **at},
        {"t": 18.5, "kind": "verify", "start": 18.0, "group": "r0/g1", "member": 0, "status": "wrong", "reward": 0.0, **at},
        {
            "t": 19.0,
            "kind": "group_complete",
            "group": "r0/g1",
            "order": 1,
            "reward_mean": 0.0,
            "tokens": 40,
            "filtered": None,
            **at,
        },
        {"t": 19.0, "kind": "wait", "start": 17.0, "on": "group", **at},
        {"t": 19.5, "kind": "group_drop", "group": "r0/g2", "reason": "failed", "detail": "lost", **at},
        {"t": 20.0, "kind": "rollout_done", **at},
        {"t": 22.0, "kind": "compute", "start": 19.0, "phase": "accumulate", "update": 1, "group": "r0/g1", **at},
        {"t": 22.5, "kind": "compute", "start": 22.0, "phase": "finish", "update": 1, "group": None, **at},
        _update(22.5, 1, 8, 0.1, 3.0, 0.9),
        {"t": 30.0, "kind": "wait", "start": 22.5, "on": "round", **at},
        {"t": 31.0, "kind": "publish", "start": 30.0, "phase": "export", "version": 5, **at},
        {"t": 31.5, "kind": "publish", "start": 31.0, "phase": "probe", "version": 5, **at},
        {"t": 32.0, "kind": "round_end", "books": {"groups": 3, "trained": 2, "filtered": 0, "dropped": 1}, **at},
    ]


def _update(t: float, update: int, step: int, loss: float, norm: float, gap: float) -> Event:
    metrics = {"logprob_gap_max": gap}
    fields = {"update": update, "optimizer_step": step, "loss": loss, "grad_norm": norm, "metrics": metrics}
    return {"t": t, "kind": "update", "round": 0, **fields}


def test_every_figure_of_a_round_is_what_the_events_say() -> None:
    (metrics,) = collect_rounds(one_round())
    assert (metrics.round, metrics.version, metrics.schedule, metrics.is_finished) == (0, 4, "cgp", True)
    assert metrics.r2t_end_s == 12.5  # 22.5 - 10
    assert metrics.rollout_s == 10.0  # 20 - 10
    assert metrics.first_group_s == metrics.first_dispatch_s == 4.0  # 14 - 10: update 0 has one group
    assert metrics.trainer_wait_s == 6.0  # (10, 14) of (9, 14), and (17, 19); the wait after the last update is out
    assert metrics.trainer_compute_s == 6.5  # 2 + 1 + 3 + 0.5
    assert metrics.waiting_ratio == 6.0 / 12.5
    assert metrics.waiting_ratio_first == 4.0 / 12.5
    assert metrics.publish_s == 1.5
    assert (metrics.tokens, metrics.tokens_generated) == (70, 75)  # 30 + 40; with the aborted 5
    assert metrics.rollout_tokens_per_s == 7.5  # 75 / 10
    assert metrics.train_tokens_per_s == 70 / 6.5
    assert metrics.reward_mean == 0.5  # (1 + 0) / 2: a verifier's error is no reward
    assert (metrics.reward_trained_p25, metrics.reward_trained_p75) == (0.125, 0.375)  # of group means 0 and 0.5
    assert (metrics.groups_trained, metrics.groups_filtered, metrics.groups_dropped) == (2, 0, 1)
    assert metrics.length_mean == pytest.approx(70 / 3)  # 10, 20, 40; the aborted one is no response
    assert (metrics.length_median, metrics.length_p90, metrics.length_max) == (20, 36, 40)  # 20 + 0.8 x (40 - 20)
    assert metrics.cut_off_share == pytest.approx(1 / 3)
    assert metrics.retries == 1
    assert metrics.logprob_gap_max == 0.02  # of the first update only
    assert metrics.loss_mean == pytest.approx(0.3)
    assert metrics.grad_norm_mean == 2.0
    assert (metrics.updates, metrics.optimizer_step) == (2, 8)


def test_first_dispatch_is_when_the_last_group_of_the_first_update_is_handed_over() -> None:
    events = one_round()
    events[19]["update"] = 0  # the accumulate that starts at 19 s
    (metrics,) = collect_rounds(events)
    assert (metrics.first_group_s, metrics.first_dispatch_s) == (4.0, 9.0)


def test_books_win_over_counted_events_and_filtered_groups_are_not_dropped() -> None:
    events = one_round()
    events[-1]["books"] = {"trained": 2, "filtered": 1, "dropped": 0}
    assert collect_rounds(events)[0].groups_filtered == 1
    events[17]["reason"] = "filtered"
    assert collect_rounds(events[:-1])[0].groups_dropped == 0


def test_a_killed_round_reports_what_is_there_and_none_for_the_rest() -> None:
    (metrics,) = collect_rounds(one_round()[:11])
    assert not metrics.is_finished
    assert (metrics.r2t_end_s, metrics.rollout_s, metrics.optimizer_step) == (None, None, None)
    assert (metrics.groups_trained, metrics.tokens, metrics.trainer_compute_s) == (1, 30, 2.0)


def test_a_round_without_events_has_no_figures_and_does_not_divide_by_zero() -> None:
    (metrics,) = collect_rounds([{"t": 0.0, "kind": "round_start", "round": 0, "version": 0, "num_groups": 1}])
    assert metrics.waiting_ratio is metrics.reward_mean is metrics.length_mean is metrics.rollout_tokens_per_s is None


def test_a_round_started_again_after_a_kill_counts_once() -> None:
    events = one_round()
    assert len(collect_rounds([*events[:8], *events[1:]])) == 1
    assert len(collect_rounds([*events, *events[1:]])) == 1


@pytest.mark.parametrize("schedule", ["serial", "cgp", "fgd"])
def test_collector_and_recorded_timeline_agree_and_books_balance(tmp_path, schedule) -> None:
    collected: list = []
    collector = RoundCollector(collected.append)
    plan = synthetic.Plan(schedule=schedule, rounds=3, dropped=((1, 2),))
    synthetic.Simulation(plan, tmp_path / "timeline.jsonl", (collector.listen,)).run()
    rounds = collect_rounds(read_timeline(tmp_path / "timeline.jsonl"))
    assert collected == collector.rounds == rounds
    for metrics in rounds:
        books = metrics.books
        assert books["groups"] == books["trained"] + books["filtered"] + books["dropped"]
        assert books["requests"] == books["finished"] + books["failed"] + books["cancelled"]
        assert metrics.trainer_wait_s + metrics.trainer_compute_s == pytest.approx(metrics.r2t_end_s, abs=1e-3)


def test_serial_waits_longest_and_frontier_dispatch_shortest() -> None:
    waits = [
        summarize(collect_rounds(synthetic.simulate(synthetic.Plan(schedule=name))))["waiting_ratio"]
        for name in ("serial", "cgp", "fgd")
    ]
    assert waits == sorted(waits, reverse=True)


def test_json_lines_hold_no_nan(tmp_path) -> None:
    events = one_round()
    events[12]["loss"] = math.nan
    append_metrics(tmp_path / "metrics.jsonl", collect_rounds(events)[0])
    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert row["loss_mean"] is None
    assert row["books"]["trained"] == 2


def test_summary_takes_medians_of_finished_rounds_only() -> None:
    rounds = collect_rounds(synthetic.simulate(synthetic.Plan(rounds=3)))
    unfinished = collect_rounds(one_round()[:11])
    medians = summarize([*rounds, *unfinished])
    assert medians["r2t_end_s"] == sorted(metrics.r2t_end_s for metrics in rounds)[1]
    assert "books" not in medians
    assert summarize([])["r2t_end_s"] is None


def test_percentile_is_linear_between_neighbours() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3], 0.9) == 3
    assert percentile([0, 10], 0.25) == 2.5


def test_the_figures_of_the_verifier_count_verdicts_and_time_calls() -> None:
    at = {"round": 0, "group": "r0/g0"}
    verdicts = [("ok", 0.25), ("no_answer", 0.0), ("timeout", 1.5), ("timeout", 1.5), ("error", 0.75), ("wrong", None)]
    events = [{"t": 0.0, "kind": "round_start", "version": 0, "num_groups": 1, "round": 0}]
    for member, (status, seconds) in enumerate(verdicts):
        event = {"t": 9.0, "kind": "verify", "start": 1.0, "member": member, "status": status, "reward": None, **at}
        events.append(event if seconds is None else {**event, "seconds": seconds})  # the last is of an older version
    (found,) = collect_rounds(events)
    assert (found.verify_s_mean, found.verify_s_max) == (0.8, 1.5)
    assert (found.no_answer_share, found.verifier_timeouts, found.verifier_errors) == (1 / 6, 2, 1)


def test_an_older_timeline_has_no_times_of_verifier_calls() -> None:
    (found,) = collect_rounds(one_round())
    assert (found.verify_s_mean, found.verify_s_max) == (None, None)
