"""The simulator against the shipped asyncio `Round`: the same fixed durations, and every event must come at the same moment.

The real round runs in virtual time with fakes whose times are given: each request takes its tokens times the step, each
verifier call and each accumulate what the simulator draws for it. Compared are all kinds of events that both write, with
the ids that they carry, and the figures of the round. Text, rewards and weights are the fakes' own.
"""

import asyncio
import random
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import round_lab
from simulation_lab import Lab, run

from common.metrics import RoundMetrics, collect_rounds
from common.pool import Pool
from common.protocols import Score
from common.records import Group, Request
from common.requests import derive_seed
from common.simulation.lengths import Lengths, LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel, VerifierModel
from common.testing import FakeEngine, FakeVerifier
from common.testing.fakes import VOCAB_SIZE
from common.timeline import Event

IDS = ("request", "group", "member", "replica", "order", "phase", "update", "optimizer_step", "groups", "is_short", "on")
KINDS = ("round_start", "dispatch", "response", "verify", "group_complete", "rollout_done", "wait", "compute", "update")
SIZES = ("groups_per_round", "responses_per_group", "groups_per_update", "frontier_width")
SHARED = ("schedule", "request_order", "group_order", "seed", *SIZES)  # settings of a scenario and of a run
STEP_S = 1e-6
NUM_FAKE_TOKENS = 12  # of each response of the fake: enough to tell all of them apart


class LabPool(Pool):
    """Several fakes; what `round_lab` looks at."""

    @property
    def started(self) -> list[Hashable]:
        return [request for engine in self.engines for request in engine.started]  # type: ignore[attr-defined]

    @property
    def max_running(self) -> int:
        assert all(engine.max_running <= engine.capacity for engine in self.engines)  # type: ignore[attr-defined]
        return self.capacity


class TimedVerifier(FakeVerifier):
    """Takes as long as is written for each text."""

    def __init__(self, seconds: dict[str, float]) -> None:
        super().__init__(seconds=0.0)
        self._of = seconds

    async def score(self, task: dict[str, Any], response: str) -> Score:
        if self._of[response] > 0:
            await asyncio.sleep(self._of[response])
        return await super().score(task, response)


def scenario_of(seed: int, **settings: Any) -> Scenario:
    """R=10, K=3; lengths of eight digits, so that no two things happen in one moment by chance."""
    base: dict[str, Any] = {
        "groups_per_round": 10,
        "responses_per_group": 3,
        "groups_per_update": 3,
        "engine": EngineModel(capacity=5, step_s=STEP_S),
        "lengths": LogNormalLengths(median=2e7, prompt_sigma=0.6, member_sigma=0.5, cap=10**9),
        "verifier": VerifierModel(seconds=4.3, sigma=0.8),
        "trainer": TrainerModel(token_s=1e-7, group_s=0.7, update_s=2.1),
        "seed": seed,
    }
    return Scenario(**{**base, **settings})


def drawn(scenario: Scenario, index: int) -> tuple[Lengths, np.ndarray]:
    """Lengths and verifier seconds of a round."""
    rng = np.random.default_rng([scenario.seed, index])
    lengths = scenario.lengths.draw(rng, scenario.groups_per_round, scenario.responses_per_group)
    noise = rng.normal(0.0, 1.0, lengths.shape)
    return lengths, scenario.verifier.seconds * np.exp(noise * scenario.verifier.sigma)


def fake_text(seed: int) -> str:
    """What a FakeEngine answers to a request of this seed."""
    rng = random.Random(seed)
    return str(tuple(rng.randrange(VOCAB_SIZE) for _ in range(NUM_FAKE_TOKENS)))


def real_round(scenario: Scenario, index: int = 0) -> round_lab.Lab:
    """The shipped round with the scenario's durations."""
    assert scenario.engine.step_per_request_s == scenario.engine.prefill_s_per_token == scenario.publish_s == 0
    assert scenario.trainer.starts_at == "first"
    lengths, verify_s = drawn(scenario, index)

    def seconds(request: Request) -> float:
        return float(lengths[request.order, request.member]) * scenario.engine.step_s

    def train_s(group: Group) -> float:
        return scenario.trainer.group_s + scenario.trainer.token_s * int(lengths[group.order].sum())

    engines = [
        FakeEngine(scenario.engine.capacity, seconds=seconds, length=lambda request: NUM_FAKE_TOKENS, name=f"engine {replica}")
        for replica in range(scenario.engine.replicas)
    ]
    texts = {
        fake_text(derive_seed(scenario.seed, index, order, member)): float(verify_s[order, member])
        for order in range(scenario.groups_per_round)
        for member in range(scenario.responses_per_group)
    }
    assert len(texts) == lengths.size, "responses of the fakes must differ"
    lab = round_lab.run_round(
        engine=LabPool(engines),  # type: ignore[arg-type]
        trainer=round_lab.RecordingTrainer(seconds=train_s, finish_s=scenario.trainer.update_s),
        verifier=TimedVerifier(texts),
        index=index,
        version=index,
        limits=dict.fromkeys(("group_timeout_s", "request_timeout_s", "update_timeout_s", "stall_s"), 1000000.0),
        **{name: getattr(scenario, name) for name in SHARED},
    )
    if lab.error is not None:
        raise lab.error
    return lab


def told(events: list[Event], kind: str, start_s: float) -> Iterator[tuple[Any, ...]]:
    """Ids of each event of a kind, and its interval from the start of the round."""
    for event in events:
        if event["kind"] == kind:
            ids = tuple(event.get(name) for name in IDS)
            yield *ids, round(event.get("start", event["t"]) - start_s, 6), round(event["t"] - start_s, 6)


def check_same(lab: Lab, real: round_lab.Lab, index: int = 0) -> None:
    """Event for event and figure for figure."""
    simulated = [event for event in lab.events if event.get("round") == index]
    start_s = simulated[0]["t"]
    for kind in KINDS:
        ours, theirs = list(told(simulated, kind, start_s)), list(told(real.events, kind, 0.0))
        assert len(ours) == len(theirs) > 0, kind
        for one, other in zip(ours, theirs, strict=True):
            assert one[:-2] == other[:-2], f"{kind}: {one} is {other}"
            assert one[-2:] == pytest.approx(other[-2:], abs=1e-5), f"{kind}: {one} is {other}"
    assert same_figures(lab.rounds[index]) == pytest.approx(same_figures(collect_rounds(real.events)[0]), abs=1e-5, nan_ok=False)
    assert {name: real.books.as_dict()[name] for name in lab.rounds[index].books} == lab.rounds[index].books


def same_figures(metrics: RoundMetrics) -> dict[str, float]:
    names = ("r2t_end_s", "first_group_s", "first_dispatch_s", "rollout_s", "trainer_wait_s", "trainer_compute_s")
    counts = ("waiting_ratio", "waiting_ratio_first", "groups_trained", "updates", "version")
    return {name: getattr(metrics, name) for name in (*names, *counts)}


@pytest.mark.parametrize("request_order", ["grouped", "interleaved", "shuffled"])
@pytest.mark.parametrize("schedule", ["serial", "cgp", "fgd", "fgd-strict"])
def test_each_schedule_and_request_order_is_the_real_one(schedule: str, request_order: str) -> None:
    """Dispatches, responses, verdicts, complete groups, waits, accumulates and steps, each at the same moment."""
    for seed in range(3):
        scenario = scenario_of(seed, schedule=schedule, request_order=request_order)
        check_same(run(scenario), real_round(scenario))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"engine": EngineModel(replicas=3, capacity=2, step_s=STEP_S)}, id="three replicas"),
        pytest.param({"engine": EngineModel(replicas=2, capacity=40, step_s=STEP_S)}, id="room for all"),
        pytest.param({"engine": EngineModel(capacity=1, step_s=STEP_S)}, id="one slot"),
        pytest.param({"group_order": "submission"}, id="submission order"),
        pytest.param({"groups_per_update": 10}, id="one update a round"),
        pytest.param({"groups_per_update": 1}, id="an update a group"),
        pytest.param({"frontier_width": 1}, id="width 1"),
        pytest.param({"frontier_width": 5}, id="width 5"),
        pytest.param({"trainer": TrainerModel(token_s=2e-6, update_s=9.0)}, id="slow trainer"),
        pytest.param({"verifier": VerifierModel(seconds=60.0, sigma=1.0)}, id="slow verifier"),
        pytest.param({"verifier": VerifierModel()}, id="no verifier"),
        pytest.param({"responses_per_group": 2, "groups_per_round": 25}, id="many small groups"),
    ],
)
def test_each_part_of_a_scenario_acts_as_in_the_real_round(settings: dict[str, Any]) -> None:
    """The same, one setting changed at a time, under every schedule."""
    for seed, schedule in enumerate(round_lab.SCHEDULES):
        scenario = scenario_of(seed, schedule=schedule, request_order="interleaved", **settings)
        check_same(run(scenario), real_round(scenario))


@pytest.mark.parametrize("seed", range(40))
def test_random_rounds_are_the_real_ones(seed: int) -> None:
    """Sizes, widths, capacities, replicas, orders and costs drawn at random."""
    rng = np.random.default_rng(seed)
    num_groups = int(rng.integers(1, 16))
    scenario = scenario_of(
        seed,
        schedule=str(rng.choice(round_lab.SCHEDULES)),
        groups_per_round=num_groups,
        responses_per_group=int(rng.integers(2, 6)),
        groups_per_update=int(rng.integers(1, num_groups + 1)),
        frontier_width=int(rng.integers(1, 6)),
        request_order=str(rng.choice(["grouped", "interleaved", "shuffled"])),
        group_order=str(rng.choice(["arrival", "submission"])),
        engine=EngineModel(replicas=int(rng.integers(1, 5)), capacity=int(rng.integers(1, 12)), step_s=STEP_S),
        verifier=VerifierModel(seconds=float(rng.uniform(0, 20)), sigma=float(rng.uniform(0, 1.5))),
        trainer=TrainerModel(
            token_s=float(rng.uniform(0, 5e-7)), group_s=float(rng.uniform(0, 3)), update_s=float(rng.uniform(0, 9))
        ),
    )
    check_same(run(scenario), real_round(scenario))


def test_later_rounds_are_the_real_ones_too() -> None:
    """Round 1 has its own lengths, ids and request order; it begins where round 0 was published."""
    scenario = scenario_of(5, schedule="fgd", request_order="shuffled", rounds=3)
    lab = run(scenario)
    for index in range(3):
        real = real_round(scenario, index)
        steps = [event["optimizer_step"] for event in lab.events if event["kind"] == "update" and event["round"] == index]
        first = index * len(steps)
        for event in (event for event in lab.events if event["kind"] == "update" and event["round"] == index):
            event["optimizer_step"] -= first  # the fake trainer of each real round is a new one
        check_same(lab, real, index)


def test_a_small_difference_is_seen() -> None:
    """The comparison is not vacuous: steps that take a ten-thousandth longer."""
    scenario = scenario_of(1, schedule="cgp")
    other = replace(scenario, engine=replace(scenario.engine, step_s=STEP_S * 1.0001))
    with pytest.raises(AssertionError):
        check_same(run(other), real_round(scenario))
