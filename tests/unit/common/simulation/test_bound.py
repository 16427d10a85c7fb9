"""No order of admission beats the bound, where all orders can be tried; and it is attained where it should be."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from common.errors import DataError
from common.policies import FifoAdmission
from common.records import Request
from common.simulation.bound import best_rates, lower_bound, rollout_bound
from common.simulation.lengths import EmpiricalLengths, LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel, VerifierModel
from common.simulation.run import SimulatedRound, lengths_of, simulate, verify_s_of

CLOCK_S = 2e-6  # to which the timeline rounds, twice

HEAVY = LogNormalLengths(median=30, prompt_sigma=0.8, member_sigma=0.6, cap=300)
ENGINE = EngineModel(capacity=4, step_s=0.02, step_per_request_s=0.002)
BASE = Scenario(groups_per_round=4, responses_per_group=2, groups_per_update=1, engine=ENGINE, lengths=HEAVY)
TINY = {
    "rollout decides": replace(BASE, trainer=TrainerModel(token_s=0.002, update_s=0.05)),
    "both": replace(BASE, trainer=TrainerModel(token_s=0.006, group_s=0.1, update_s=0.05), verifier=VerifierModel(seconds=0.3)),
    "training decides": replace(BASE, trainer=TrainerModel(token_s=0.02), groups_per_update=2),
    "from the last group": replace(BASE, trainer=TrainerModel(token_s=0.01, starts_at="last"), groups_per_update=3),
    "replicas": replace(
        BASE,
        engine=EngineModel(replicas=2, capacity=2, step_s=0.01, step_per_request_s=0.01),
        trainer=TrainerModel(token_s=0.004),
    ),
    "prompts and a spread verifier": replace(
        BASE,
        engine=EngineModel(capacity=3, step_s=0.02, prefill_s_per_token=0.01),
        prompt_tokens=10,
        verifier=VerifierModel(seconds=1.0, sigma=0.8),
        trainer=TrainerModel(group_s=0.5),
    ),
}
LEAST_SHARE = 0.8  # of the best order's time, in every tiny scenario


class InOrder(FifoAdmission):
    """Groups in any order, and at most `slots` requests in flight."""

    def __init__(self, order: Sequence[int], slots: int) -> None:
        super().__init__()
        self._rank = {group: rank for rank, group in enumerate(order)}
        self._slots = slots

    def submit(self, requests: Iterable[Request]) -> None:
        super().submit(sorted(requests, key=lambda request: (self._rank[request.order], request.member)))

    def admit(self, free_slots: int) -> list[Request]:
        return super().admit(min(free_slots, max(0, self._slots - self.snapshot().num_in_flight)))


def seconds(scenario: Scenario) -> float:
    (one,) = simulate(scenario).rounds
    assert one.r2t_end_s is not None
    return one.r2t_end_s


def bound(scenario: Scenario) -> float:
    return lower_bound(scenario, lengths_of(scenario), verify_s_of(scenario))


def best_of_all_orders(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> float:
    times = []
    for order in permutations(range(scenario.groups_per_round)):
        for slots in range(1, scenario.capacity + 1):
            policy = InOrder(order, slots)
            monkeypatch.setattr(SimulatedRound, "_make_policy", lambda self, *rest, policy=policy: policy)
            times.append(seconds(scenario))
    return min(times)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_order_and_no_number_of_slots_beats_the_bound(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(TINY[name], seed=seed)
    best = best_of_all_orders(scenario, monkeypatch)
    assert LEAST_SHARE * best <= bound(scenario) <= best + CLOCK_S


@pytest.mark.parametrize("seed", range(5))
def test_on_a_flow_shop_the_bound_is_below_johnsons_optimum_which_the_best_order_attains(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slot and groups of one: two machines in a row, for which the best order is known (Johnson 1954)."""
    scenario = Scenario(
        groups_per_round=5,
        responses_per_group=1,
        groups_per_update=1,
        engine=EngineModel(capacity=1, step_s=0.02),
        lengths=HEAVY,
        trainer=TrainerModel(token_s=0.015, group_s=0.2),
        seed=seed,
    )
    sampling = lengths_of(scenario)[:, 0] * 0.02
    training = lengths_of(scenario)[:, 0] * 0.015 + 0.2
    jobs = list(zip(sampling, training, strict=True))
    order = sorted((job for job in jobs if job[0] <= job[1]), key=lambda job: job[0])
    order += sorted((job for job in jobs if job[0] > job[1]), key=lambda job: -job[1])
    sampled = trained = 0.0
    for sample_s, train_s in order:
        sampled += sample_s
        trained = max(trained, sampled) + train_s
    assert best_of_all_orders(scenario, monkeypatch) == pytest.approx(trained, abs=CLOCK_S)
    assert 0.7 * trained <= bound(scenario) <= trained


def equal(**changes: object) -> Scenario:
    """Six groups of two responses of 100 tokens, a group at a time: 6 x 100 steps of 0.1 s."""
    scenario = Scenario(
        groups_per_round=6,
        responses_per_group=2,
        groups_per_update=2,
        engine=EngineModel(capacity=2, step_s=0.08, step_per_request_s=0.01),
        lengths=EmpiricalLengths([[100, 100]]),
        trainer=TrainerModel(token_s=0.01, group_s=1.0, update_s=0.5),
        verifier=VerifierModel(seconds=0.25),
    )
    return replace(scenario, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scenario", "expected_s"),
    [
        (equal(), 60 + 0.25 + 3 + 0.5),  # sampling, then the last group's verdicts, training and step
        (equal(trainer=TrainerModel(token_s=0.1)), 10 + 0.25 + 6 * 20),  # the first group, then all training
        (equal(trainer=TrainerModel(token_s=0.1, starts_at="last")), 20 + 0.25 + 6 * 20),  # the first two
        (equal(groups_per_update=6, trainer=TrainerModel(token_s=0.01, starts_at="last")), 60 + 0.25 + 6 * 2),
        (equal(engine=EngineModel(replicas=2, capacity=2, step_s=0.08, step_per_request_s=0.01)), 30 + 0.25 + 6.5),
    ],
)
def test_the_bound_is_attained_where_groups_are_equal(scenario: Scenario, expected_s: float) -> None:
    if scenario.engine.replicas == 1:
        assert bound(scenario) == pytest.approx(expected_s)
    assert bound(scenario) <= seconds(scenario) + CLOCK_S
    assert seconds(scenario) == pytest.approx(expected_s)


def test_a_response_alone_bounds_the_round_where_the_engine_has_room_for_all() -> None:
    lengths = EmpiricalLengths([[1000, 10]])
    scenario = equal(
        lengths=lengths, engine=EngineModel(capacity=100, step_s=0.1), trainer=TrainerModel(), verifier=VerifierModel()
    )
    assert bound(scenario) == pytest.approx(100.0)
    assert seconds(scenario) == pytest.approx(100.0)


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("per_request_s", [0.0, 0.003, 0.2])
def test_the_best_rate_is_the_best_of_all_splits_over_the_replicas(replicas: int, per_request_s: float) -> None:
    engine = EngineModel(replicas=replicas, capacity=4, step_s=0.05, step_per_request_s=per_request_s)
    rates = best_rates(engine, 14)
    for num_requests in range(1, 15):
        splits = [split for split in np.ndindex((5,) * replicas) if sum(split) <= num_requests]
        best = max(sum(engine.tokens_per_s(running) for running in split) for split in splits)
        assert rates[num_requests - 1] == pytest.approx(best)


def test_the_rollout_bound_is_the_time_of_a_round_without_training() -> None:
    scenario = equal(trainer=TrainerModel(), verifier=VerifierModel())
    assert rollout_bound(scenario, lengths_of(scenario)) == pytest.approx(60.0)
    assert seconds(scenario) == pytest.approx(60.0)


def test_prompts_take_time_from_a_full_engine() -> None:
    engine = EngineModel(capacity=2, step_s=0.08, step_per_request_s=0.01, prefill_s_per_token=0.1)
    scenario = equal(engine=engine, prompt_tokens=5, trainer=TrainerModel(), verifier=VerifierModel())
    assert bound(scenario) == pytest.approx(60 + 12 * 0.5)
    assert seconds(scenario) == pytest.approx(60 + 12 * 0.5)


def test_lengths_of_another_shape_are_refused() -> None:
    scenario = equal()
    with pytest.raises(DataError, match=r"lengths: must have the scenario's shape \(6, 2\), got \(5, 2\)"):
        lower_bound(scenario, lengths_of(scenario)[:5])
    with pytest.raises(DataError, match="verify_s"):
        lower_bound(scenario, lengths_of(scenario), np.zeros((6, 3)))
