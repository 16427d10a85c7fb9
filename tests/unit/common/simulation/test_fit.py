"""Least squares without negative coefficients, and what of a recorded run is used."""

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sim_lab import config_of, record

from common.records import Request
from common.simulation.agenda import Agenda
from common.simulation.engine import Job, Replica
from common.simulation.fit import Steps, fit_engine, fit_trainer, least_squares
from common.simulation.lengths import LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel
from common.simulation.recording import RecordedRound, Served, read_recording
from common.simulation.run import lengths_of

SERIAL = Scenario(
    schedule="serial",
    rounds=2,
    groups_per_round=12,
    responses_per_group=4,
    engine=EngineModel(replicas=1, capacity=8, step_s=0.02, step_per_request_s=0.002),
    lengths=LogNormalLengths(median=100, cap=800),
    trainer=TrainerModel(token_s=0.001, group_s=0.2, update_s=0.1),
    seed=3,
)


def test_least_squares_is_the_best_of_all_that_leave_columns_out() -> None:
    """Against trying every subset of the columns: the best one whose coefficients are not negative."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        columns, truth = rng.uniform(0, 1, (30, 3)), rng.uniform(-0.5, 1, 3)
        values = columns @ truth + rng.normal(0, 0.1, 30)
        fit = least_squares(columns, values)
        assert fit.coefficients.min() >= 0
        best = np.inf
        for kept in itertools.chain.from_iterable(itertools.combinations(range(3), size) for size in range(4)):
            some = np.linalg.lstsq(columns[:, kept], values, rcond=None)[0]
            if some.min(initial=0.0) >= 0:
                best = min(best, float(((values - columns[:, kept] @ some) ** 2).sum()))
        left = float(((values - columns @ fit.coefficients) ** 2).sum())
        assert left == pytest.approx(best)


def test_what_did_not_vary_goes_to_the_first_column() -> None:
    column = np.arange(1.0, 9.0)
    fit = least_squares(np.stack([column, 3 * column, np.zeros(8)], axis=1), 2 * column)
    assert fit.coefficients == pytest.approx([2.0, 0.0, 0.0])
    assert fit.explained == pytest.approx(1.0)


def test_running_requests_are_summed_over_the_steps_of_a_response() -> None:
    """Two requests from 0 s: the short one of 10 steps, the long one of 20; a step takes 1 s + 1 s for each running.

    Both run for 10 steps of 3 s, then the long one alone for 10 steps of 2 s: 10 * 2 = 20 and 10 * 2 + 10 * 1 = 30.
    """
    tokens = np.array([10, 20])
    served = Served(start_s=np.zeros(2), end_s=np.array([30.0, 50.0]), tokens=tokens, prompt_tokens=np.array([5, 7]))
    steps = Steps(served)
    assert steps.running(1.0, 1.0) == pytest.approx([20.0, 30.0])
    assert steps.prompts == pytest.approx([12.0, 12.0])
    assert steps.alone_s(EngineModel(step_s=1.0, step_per_request_s=1.0)) == pytest.approx([30.0, 50.0])


def seconds_on_a_replica(model: EngineModel, starts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Of each response, by `Replica`."""
    agenda, ended = Agenda(), np.zeros(len(starts))

    def done(replica: Replica, job: Job) -> None:
        ended[job.request.order] = agenda.now_s

    def enter(order: int) -> None:
        replica.add(Job(Request(request_id=order, group_id=order, order=order), int(tokens[order])))
        replica.plan()

    replica = Replica(model, agenda, done, 0)
    for order, start_s in enumerate(starts):
        agenda.at(start_s, partial(enter, order))
    agenda.run()
    return ended - starts


def test_the_model_agrees_with_the_replica_whatever_runs_beside_a_response() -> None:
    model = EngineModel(capacity=99, step_s=0.02, step_per_request_s=0.004)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        starts, tokens = np.sort(rng.uniform(0, 5, 12)), rng.integers(5, 80, 12)
        seconds = seconds_on_a_replica(model, starts, tokens)
        steps = Steps(Served(start_s=starts, end_s=starts + seconds, tokens=tokens, prompt_tokens=np.zeros(12, np.int64)))
        assert steps.alone_s(model) == pytest.approx(seconds, rel=1e-6)


def slowed(one: RecordedRound, factor: float) -> RecordedRound:
    """The same round on a machine that takes `factor` times as long for everything."""
    served = [replace(part, start_s=part.start_s * factor, end_s=part.end_s * factor) for part in one.served]
    return replace(one, served=served, accumulations=one.accumulations * factor, between_s=one.between_s * factor)


def test_one_slow_round_of_three_does_not_move_the_fit(tmp_path: Path) -> None:
    record(tmp_path / "run", replace(SERIAL, rounds=3))
    recording = read_recording(tmp_path / "run", "SOURCE")
    rounds = [slowed(recording.rounds[0], 2.0), *recording.rounds[1:]]
    engine, _ = fit_engine(rounds, recording.config.rollout, "SOURCE")
    trainer, _ = fit_trainer(rounds, "SOURCE")
    assert engine.step_s + 8 * engine.step_per_request_s == pytest.approx(0.036, rel=0.03)
    assert (trainer.token_s * 500 + trainer.group_s) == pytest.approx(0.7, rel=0.05)
    assert trainer.update_s == pytest.approx(0.1, rel=0.01)


def test_of_a_round_that_a_resumed_run_repeats_the_last_try_counts(tmp_path: Path) -> None:
    record(tmp_path / "run", SERIAL)
    timeline = tmp_path / "run" / "timeline.jsonl"
    lines = timeline.read_text().splitlines(keepends=True)
    events = [json.loads(line) for line in lines]
    start = next(place for place, event in enumerate(events) if event["kind"] == "round_start" and event["round"] == 1)
    stop = next(place for place, event in enumerate(events) if event["kind"] == "update" and event["round"] == 1)
    again = read_recording(tmp_path / "run", "SOURCE").rounds
    timeline.write_text("".join([*lines[: stop + 1], *lines[start:]]))
    rounds = read_recording(tmp_path / "run", "SOURCE").rounds
    assert [one.index for one in rounds] == [0, 1]
    assert [len(one.served[0].tokens) for one in rounds] == [48, 48]
    assert rounds[1].between_s == pytest.approx(again[1].between_s)
    assert (rounds[1].lengths == again[1].lengths).all()


def test_recorded_lengths_and_prompts_are_those_of_the_groups(tmp_path: Path) -> None:
    scenario = replace(SERIAL, prompt_tokens=17)
    record(tmp_path / "run", scenario)
    recording = read_recording(tmp_path / "run", "SOURCE")
    assert recording.config == config_of(scenario)
    for index, one in enumerate(recording.rounds):
        assert (one.lengths == lengths_of(scenario, index)).all()
        assert one.prompt_tokens == 17.0
