"""Whatever the scenario and the schedule, no round ends before the bound; and the property finds planted bugs."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.simulation import bound
from common.simulation.lengths import LogNormalLengths
from common.simulation.models import SCHEDULES, EngineModel, Scenario, TrainerModel, VerifierModel
from common.simulation.run import lengths_of, simulate, verify_s_of

CLOCK_S = 2e-6  # to which the timeline rounds, twice

lengths = st.builds(
    LogNormalLengths,
    median=st.just(20.0),
    prompt_sigma=st.sampled_from([0.0, 0.5, 1.0]),
    member_sigma=st.sampled_from([0.0, 0.5, 1.0]),
    cap=st.just(200),
    loop_share=st.sampled_from([0.0, 0.1]),
)
engines = st.builds(
    EngineModel,
    replicas=st.integers(1, 3),
    capacity=st.sampled_from([1, 2, 4, 16]),
    step_s=st.just(0.02),
    step_per_request_s=st.sampled_from([0.0, 0.001, 0.05]),
    prefill_s_per_token=st.sampled_from([0.0, 0.01, 1.0]),
)
trainers = st.builds(
    TrainerModel,
    token_s=st.sampled_from([0.0, 0.001, 0.02]),
    group_s=st.sampled_from([0.0, 0.1, 1.0]),
    update_s=st.sampled_from([0.0, 0.5]),
    starts_at=st.sampled_from(["first", "last"]),
)
verifiers = st.builds(VerifierModel, seconds=st.sampled_from([0.0, 0.1, 3.0]), sigma=st.sampled_from([0.0, 0.7]))


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    num_groups = draw(st.integers(1, 12))
    return Scenario(
        schedule=draw(st.sampled_from(SCHEDULES)),
        groups_per_round=num_groups,
        responses_per_group=draw(st.sampled_from([1, 2, 4])),
        groups_per_update=draw(st.integers(1, num_groups)),
        frontier_width=draw(st.integers(1, num_groups)),
        request_order=draw(st.sampled_from(["grouped", "interleaved", "shuffled"])),
        group_order=draw(st.sampled_from(["arrival", "submission"])),
        prompt_tokens=draw(st.sampled_from([0, 3])),
        engine=draw(engines),
        lengths=draw(lengths),
        verifier=draw(verifiers),
        trainer=draw(trainers),
        contention=draw(st.sampled_from([1.0, 1.3])),
        seed=draw(st.integers(0, 10_000)),
    )


def check(scenario: Scenario) -> None:
    (one,) = simulate(scenario).rounds
    assert one.r2t_end_s is not None
    assert bound.lower_bound(scenario, lengths_of(scenario), verify_s_of(scenario)) <= one.r2t_end_s + CLOCK_S


@settings(max_examples=400, deadline=None)
@given(scenarios())
def test_no_round_ends_before_the_bound(scenario: Scenario) -> None:
    check(scenario)


def too_fast(engine: EngineModel, num_requests: int) -> Any:
    """Requests in flight beyond the capacity are not there: forgets it for the other replicas."""
    one = EngineModel(capacity=engine.capacity, step_s=engine.step_s, step_per_request_s=engine.step_per_request_s)
    return real_rates(one, num_requests)


real_rates, real_counts = bound.best_rates, bound.count_bounds


def latest(scenario: Scenario, tokens: Any, verify_s: Any) -> Any:
    """As if every group waited for the slowest verdict of all."""
    return real_counts(scenario, tokens, verify_s * 0 + verify_s.max())


@pytest.mark.parametrize(("name", "planted"), [("best_rates", too_fast), ("count_bounds", latest)])
def test_the_property_finds_a_bound_that_claims_too_much(name: str, planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, name, planted)

    @settings(max_examples=600, deadline=None, database=None, derandomize=True)
    @given(scenarios())
    def violated(scenario: Scenario) -> None:
        check(scenario)

    with pytest.raises(AssertionError):
        violated()
