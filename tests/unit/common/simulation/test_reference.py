"""The fluid engine, policy, placement and trainer against a simulator that goes token by token."""

from dataclasses import replace

import numpy as np
import pytest
from simulation_lab import Lab, run, varied
from simulation_reference import Member, Reference

from common.requests import arrange, derive_seed, group_requests
from common.simulation.models import EngineModel, Scenario

NUM_SEEDS = 60


def reference_of(scenario: Scenario) -> Reference:
    """The token-by-token simulation of the first round."""
    num_groups, num_members = scenario.groups_per_round, scenario.responses_per_group
    groups = [group_requests(0, order, (), num_members, scenario.seed) for order in range(num_groups)]
    requests = arrange(groups, scenario.request_order, derive_seed(scenario.seed, 0, 0, -1))
    rng = np.random.default_rng([scenario.seed, 0])
    lengths = scenario.lengths.draw(rng, num_groups, num_members)
    noise = rng.normal(0.0, 1.0, lengths.shape)
    verify_s = scenario.verifier.seconds * np.exp(noise * scenario.verifier.sigma)
    return Reference(scenario, [(request.order, request.member) for request in requests], lengths, verify_s).run()


def name(member: Member) -> str:
    return f"r0/g{member[0]}/m{member[1]}"


def largest_gap(lab: Lab, reference: Reference) -> float:
    """Seconds by which any request's entry or end differs."""
    entered, ended = lab.moments("dispatch"), lab.moments("response")
    assert len(entered) == len(ended) == len(reference.ended)
    gaps = [abs(entered[name(member)] - moment) for member, moment in reference.entered.items()]
    return max([*gaps, *(abs(ended[name(member)] - moment) for member, moment in reference.ended.items())])


def check_trainer(lab: Lab, reference: Reference, within_s: float) -> None:
    """Groups complete, are accumulated and stepped on at the reference's moments, in its order."""
    complete = {f"r0/g{order}": moment for order, moment in reference.complete.items()}
    assert lab.moments("group_complete") == pytest.approx(complete, abs=within_s)
    accumulates = [event for event in lab.of("compute") if event["phase"] == "accumulate"]
    assert [event["group"] for event in accumulates] == [f"r0/g{order}" for order, _, _ in reference.accumulated]
    for event, (_, start, end) in zip(accumulates, reference.accumulated, strict=True):
        assert (event["start"], event["t"]) == pytest.approx((start, end), abs=within_s)
    assert [event["t"] for event in lab.of("update")] == pytest.approx(reference.stepped, abs=within_s)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_on_one_replica_every_moment_is_the_token_by_token_one(seed: int) -> None:
    """Requests come and go at the ends of steps only, so nothing but rounding (1e-6 s an event) may differ."""
    scenario = varied(seed)
    scenario = replace(scenario, engine=replace(scenario.engine, replicas=1))
    lab, reference = run(scenario), reference_of(scenario)
    assert largest_gap(lab, reference) < 1e-5
    check_trainer(lab, reference, within_s=1e-4)


def test_on_several_replicas_only_an_entry_within_a_step_may_differ() -> None:
    """A slot given to a replica that is within a step is used at the step's end, token by token, and at once by the fluid."""
    largest, num_exact, num_tied = 0.0, 0, 0
    for seed in range(2 * NUM_SEEDS):
        scenario = varied(seed, max_tokens=900)
        reference = reference_of(scenario)
        if scenario.engine.replicas == 1 or reference.has_ties:
            num_tied += reference.has_ties
            continue
        gap = largest_gap(run(scenario), reference) / longest_step_s(scenario)
        largest, num_exact = max(largest, gap), num_exact + (gap < 1e-5)
    assert largest <= 1
    assert num_exact > 50 > num_tied, "most are the same to the last digit"


def longest_step_s(scenario: Scenario) -> float:
    engine = scenario.engine
    decode_s = engine.step_s + engine.step_per_request_s * engine.capacity
    return decode_s + engine.prefill_s_per_token * scenario.prompt_tokens * engine.capacity


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_with_little_memory_the_rollout_ends_within_half_a_step_a_put_back(seed: int) -> None:
    """Fluid memory is full up to a step later than whole tokens say, at each put-back; some of that cancels out."""
    kv_tokens = int(np.random.default_rng(seed).integers(30, 150))
    engine = EngineModel(capacity=6, step_s=1.0, kv_tokens=kv_tokens)
    scenario = varied(seed, engine=engine, prompt_tokens=5)
    lab, reference = run(scenario), reference_of(scenario)
    assert set(lab.moments("response")) == {name(member) for member in reference.ended}
    within_s = 0.5 * engine.step_s * (1 + reference.num_put_back)
    assert lab.rounds[0].rollout_s == pytest.approx(max(reference.complete.values()), abs=within_s)


def test_the_random_scenarios_reach_what_they_are_meant_to() -> None:
    """The tests above are not vacuous: waiting requests, busy trainers, several replicas, put-backs, short updates."""
    scenarios = [varied(seed) for seed in range(NUM_SEEDS)]
    assert {scenario.schedule for scenario in scenarios} == {"serial", "cgp", "fgd", "fgd-strict"}
    assert {scenario.engine.replicas for scenario in scenarios} == {1, 2, 3}
    waits = [one for one in scenarios if one.capacity < one.groups_per_round * one.responses_per_group]
    assert len(waits) > NUM_SEEDS // 3
    assert any(one.groups_per_round % one.groups_per_update for one in scenarios)
    memory = [varied(seed, engine=EngineModel(capacity=6, step_s=1.0, kv_tokens=60), prompt_tokens=5) for seed in range(9)]
    assert sum(reference_of(scenario).num_put_back for scenario in memory) > 9
