"""Any small scenario: books balance, nothing is lost or doubled, limits and orders hold at each moment, bounds hold.

Everything is checked from the events alone, by plain search over them.
"""

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation_lab import Lab, run

from common.requests import arrange, derive_seed, group_requests
from common.simulation.lengths import LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel, VerifierModel
from common.simulation.run import lengths_of, spread

NOTHING_S = 1e-4  # of rounding, over the events of a round


def seconds(most: float) -> st.SearchStrategy[float]:
    return st.one_of(st.just(0.0), st.floats(0.001, most))


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Up to 40 requests a round and two rounds; every part may be absent, tiny or huge."""
    num_groups = draw(st.integers(1, 10))
    return Scenario(
        schedule=draw(st.sampled_from(["serial", "cgp", "fgd", "fgd-strict"])),
        rounds=draw(st.integers(1, 2)),
        groups_per_round=num_groups,
        responses_per_group=draw(st.integers(1, 4)),
        groups_per_update=draw(st.integers(1, num_groups)),
        frontier_width=draw(st.one_of(st.none(), st.integers(1, 12))),
        request_order=draw(st.sampled_from(["grouped", "interleaved", "shuffled"])),
        order_spread=draw(st.sampled_from([0.0, 0.0, 1.5, 4.0])),
        group_order=draw(st.sampled_from(["arrival", "submission"])),
        prompt_tokens=draw(st.integers(0, 30)),
        engine=EngineModel(
            replicas=draw(st.integers(1, 4)),
            capacity=draw(st.integers(1, 9)),
            step_s=draw(st.floats(0.001, 3)),
            step_per_request_s=draw(seconds(1)),
            prefill_s_per_token=draw(seconds(0.2)),
            kv_tokens=draw(st.one_of(st.none(), st.integers(1, 300))),
        ),
        lengths=LogNormalLengths(
            median=draw(st.floats(1, 60)),
            prompt_sigma=draw(seconds(1)),
            member_sigma=draw(seconds(1)),
            cap=draw(st.integers(1, 150)),
            loop_share=draw(st.sampled_from([0.0, 0.1])),
        ),
        verifier=VerifierModel(seconds=draw(seconds(50)), sigma=draw(seconds(1))),
        trainer=TrainerModel(
            token_s=draw(seconds(1)),
            group_s=draw(seconds(20)),
            update_s=draw(seconds(20)),
            starts_at=draw(st.sampled_from(["first", "last"])),
        ),
        publish_s=draw(seconds(9)),
        contention=draw(st.sampled_from([1.0, 1.0, 1.3, 3.0])),
        seed=draw(st.integers(0, 1000)),
    )


@settings(max_examples=150, deadline=None)
@given(scenarios())
def test_what_holds_in_every_simulated_round(scenario: Scenario) -> None:
    lab = run(scenario)
    assert len(lab.rounds) == scenario.rounds
    for index in range(scenario.rounds):
        check_books(lab, index)
        check_slots(lab, index)
        check_order(lab, index)
        check_trainer(lab, index)
        check_bounds(lab, index)


def check_books(lab: Lab, index: int) -> None:
    """Rules 2, 3, 5, 10: each request is served once, each group trained once, whole and after it was complete."""
    scenario, metrics = lab.scenario, lab.rounds[index]
    num_groups, num_requests = scenario.groups_per_round, scenario.groups_per_round * scenario.responses_per_group
    names = {f"r{index}/g{order}/m{m}" for order in range(num_groups) for m in range(scenario.responses_per_group)}
    for kind in ("dispatch", "response"):
        assert Counter(event["request"] for event in lab.of(kind, index)) == dict.fromkeys(names, 1)
    groups = dict.fromkeys((f"r{index}/g{order}" for order in range(num_groups)), 1)
    trained = [event for event in lab.of("compute", index) if event["phase"] == "accumulate"]
    assert Counter(event["group"] for event in lab.of("group_complete", index)) == groups
    assert Counter(event["group"] for event in trained) == groups
    verified = Counter(event["group"] for event in lab.of("verify", index))
    assert verified == dict.fromkeys(groups, scenario.responses_per_group)
    books = metrics.books
    assert books["groups"] + books["refilled"] == books["trained"] + books["filtered"] + books["dropped"] == num_groups
    assert books["requests"] == books["finished"] + books["failed"] + books["cancelled"] == num_requests
    lengths = lengths_of(scenario, index)
    tokens = {event["request"]: event["tokens"] for event in lab.of("response", index)}
    assert all(lengths[order, m] == tokens[f"r{index}/g{order}/m{m}"] for order, m in np.ndindex(*lengths.shape))
    assert metrics.tokens == metrics.tokens_generated == sum(event["tokens"] for event in lab.of("update", index))
    sizes = [event["groups"] for event in lab.of("update", index)]
    full = scenario.groups_per_update
    assert all(size == full for size in sizes[:-1]) and 0 < sizes[-1] <= full and sum(sizes) == num_groups


def check_slots(lab: Lab, index: int) -> None:
    """In flight <= capacity on each replica, at each moment, in the order of the events."""
    running: Counter[str] = Counter()
    for event in lab.events:
        if event.get("round") == index and event["kind"] in ("dispatch", "response"):
            running[event["replica"]] += 1 if event["kind"] == "dispatch" else -1
            assert 0 <= running[event["replica"]] <= lab.scenario.engine.capacity
    assert not any(running.values())
    assert set(running) <= {f"engine-{replica}" for replica in range(lab.scenario.engine.replicas)}


def check_order(lab: Lab, index: int) -> None:
    """Each dispatch is the one that the schedule asks for, of those that wait; and no slot is left free that it would fill."""
    scenario = lab.scenario
    waiting = [(request.request_id, request.order) for request in arrivals(scenario, index)]
    left = Counter(dict.fromkeys(range(scenario.groups_per_round), scenario.responses_per_group))
    running, moment = 0, None
    for event in lab.events:
        if event.get("round") != index or event["kind"] not in ("dispatch", "response"):
            continue
        if moment is not None and event["t"] > moment:
            assert running == scenario.capacity or not allowed(scenario, waiting, left), "a slot stayed free"
        moment = event["t"]
        if event["kind"] == "response":
            left[int(event["group"].partition("g")[2])] -= 1
            running -= 1
        else:
            assert event["request"] == allowed(scenario, waiting, left)[0]
            waiting = [one for one in waiting if one[0] != event["request"]]
            running += 1


def arrivals(scenario: Scenario, index: int) -> list:
    num_members, orders = scenario.responses_per_group, range(scenario.groups_per_round)
    groups = [group_requests(index, order, (), num_members, scenario.seed) for order in orders]
    seed = derive_seed(scenario.seed, index, 0, -1)
    return spread(arrange(groups, scenario.request_order, seed), scenario.order_spread * num_members, seed)


def allowed(scenario: Scenario, waiting: list[tuple[str, int]], left: Counter[int]) -> list[str]:
    """Requests that may enter, the next one first."""
    if scenario.schedule in ("serial", "cgp"):
        return [name for name, _ in waiting]
    unserved = sorted(order for order, count in left.items() if count)
    frontier = unserved[: scenario.width] if scenario.schedule == "fgd-strict" else unserved
    return [name for name, order in sorted(waiting, key=lambda one: one[1]) if order in frontier]


def check_trainer(lab: Lab, index: int) -> None:
    """One thing at a time, nothing before its group is complete (or, under `serial`, before the rollout's end), in order."""
    scenario = lab.scenario
    complete = lab.moments("group_complete", index)
    rollout_done = lab.of("rollout_done", index)[0]["t"]
    assert rollout_done == max(complete.values())
    computes = lab.of("compute", index)
    for one, other in pairwise(computes):
        assert other["start"] >= one["t"]
    trained = [event for event in computes if event["phase"] == "accumulate"]
    for event in trained:
        first = rollout_done if scenario.schedule == "serial" else complete[event["group"]]
        assert event["start"] >= first
    order = [event["group"] for event in trained]
    if scenario.group_order == "submission":
        assert order == sorted(order, key=lambda name: int(name.partition("g")[2]))
    else:
        assert order == list(complete), "groups are trained in the order in which they were complete"
    last = lab.of("update", index)[-1]["t"]
    busy = [(event["start"], event["t"]) for event in [*computes, *lab.of("wait", index)] if event["t"] <= last]
    start = lab.of("round_start", index)[0]["t"]
    assert abs(sum(b - a for a, b in busy) - (last - start)) < NOTHING_S, "the trainer computes or waits"


def check_bounds(lab: Lab, index: int) -> None:
    """No round is shorter than its training, its longest response, its tokens at full speed, or the last group's training."""
    scenario, metrics, lengths = lab.scenario, lab.rounds[index], lengths_of(lab.scenario, index)
    engine, trainer = scenario.engine, scenario.trainer
    num_updates = -(-scenario.groups_per_round // scenario.groups_per_update)
    training_s = scenario.groups_per_round * trainer.group_s + trainer.token_s * lengths.sum() + num_updates * trainer.update_s
    alone_s = engine.step_s + engine.step_per_request_s
    longest_s = lengths.max() * alone_s + scenario.prompt_tokens * engine.prefill_s_per_token
    full_speed = engine.replicas * engine.tokens_per_s(engine.capacity)
    prefill_s = lengths.size * scenario.prompt_tokens * engine.prefill_s_per_token / engine.replicas
    rollout_s = max(longest_s, lengths.sum() / full_speed + prefill_s)
    last_group_s = trainer.group_s + trainer.token_s * lengths.sum(axis=1).min() + trainer.update_s
    assert metrics.rollout_s >= rollout_s * (1 - 1e-6) - NOTHING_S
    assert metrics.r2t_end_s >= max(training_s, rollout_s + last_group_s) * (1 - 1e-6) - NOTHING_S
    assert metrics.trainer_compute_s >= training_s * (1 - 1e-6) - NOTHING_S
    if scenario.contention == 1:
        assert metrics.trainer_compute_s <= training_s * (1 + 1e-6) + NOTHING_S
    if scenario.contention == 1 or scenario.schedule == "serial":
        # Training after the whole rollout is the most that a schedule may take.
        assert metrics.r2t_end_s <= metrics.rollout_s + training_s + NOTHING_S


def test_the_scenarios_are_not_all_alike() -> None:
    """What the property runs over has waiting requests, put-backs, contention and several rounds."""
    seen: Counter[str] = Counter()

    @settings(max_examples=80, deadline=None, database=None, derandomize=True)
    @given(scenarios())
    def look(scenario: Scenario) -> None:
        size = scenario.groups_per_round * scenario.responses_per_group
        seen["waits"] += size > scenario.capacity
        seen["memory"] += scenario.engine.kv_tokens is not None and scenario.capacity > 1
        seen["contention"] += scenario.contention > 1
        seen["rounds"] += scenario.rounds > 1
        seen["strict"] += scenario.schedule == "fgd-strict"
        seen["short update"] += scenario.groups_per_round % scenario.groups_per_update > 0

    look()
    assert min(seen[name] for name in ("waits", "memory", "contention", "rounds", "strict", "short update")) > 4, seen
