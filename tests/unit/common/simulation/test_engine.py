"""One replica and the whole rollout where the answer can be worked out by hand; memory that runs out."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from simulation_lab import Lab, fixed, run, varied

from common.requests import group_requests
from common.simulation.agenda import Agenda
from common.simulation.engine import Job, Replica
from common.simulation.models import EngineModel, Scenario, TrainerModel

pytestmark = pytest.mark.timeout(60)  # a replica that cannot go on would otherwise hang for long

STEPS = EngineModel(capacity=8, step_s=1.0, step_per_request_s=0.25)


def test_one_request_takes_its_prompt_and_its_tokens() -> None:
    """30 tokens of prompt at 0.1 s, then 40 steps of 1 + 0.25 s: 3 + 50 s."""
    lab = run(fixed((40,), engine=replace(STEPS, prefill_s_per_token=0.1), prompt_tokens=30))
    assert lab.moments("response") == pytest.approx({"r0/g0/m0": 53.0})


def test_two_requests_share_the_steps_until_the_shorter_ends() -> None:
    """10 steps of 1.5 s together, then 20 of 1.25 s alone: 15 s and 40 s."""
    lab = run(fixed((10, 30), engine=STEPS))
    assert lab.moments("response") == pytest.approx({"r0/g0/m0": 15.0, "r0/g0/m1": 40.0})


def test_a_request_that_enters_later_holds_the_others_up_by_its_prompt() -> None:
    """Capacity 2: m0 ends after 2 prompts of 2 s and 10 steps of 1.5 s at 19 s; m2 enters with a prompt of 2 s, during which m1
    waits too; then both have 20 steps left, to 21 + 30 s."""
    engine = replace(STEPS, capacity=2, prefill_s_per_token=0.2)
    lab = run(fixed((10, 30, 20), engine=engine, prompt_tokens=10))
    assert lab.moments("response") == pytest.approx({"r0/g0/m0": 19.0, "r0/g0/m1": 51.0, "r0/g0/m2": 51.0})
    assert lab.moments("dispatch")["r0/g0/m2"] == pytest.approx(19.0)


@pytest.mark.parametrize(("num_requests", "capacity", "replicas"), [(8, 8, 1), (24, 8, 1), (20, 8, 1), (32, 8, 2), (7, 3, 2)])
def test_equal_lengths_go_in_waves(num_requests: int, capacity: int, replicas: int) -> None:
    """Full waves of capacity x replicas, each `tokens` steps long; the last one may be smaller, and is spread evenly."""
    engine = replace(STEPS, capacity=capacity, replicas=replicas)
    lab = run(fixed(*[(12,)] * num_requests, engine=engine))
    full, rest = divmod(num_requests, capacity * replicas)
    last = 12 * (1 + 0.25 * -(-rest // replicas)) if rest else 0.0
    assert lab.rounds[0].rollout_s == pytest.approx(full * 12 * (1 + 0.25 * capacity) + last)


@pytest.mark.parametrize("seed", range(20))
def test_work_is_conserved(seed: int) -> None:
    """Tokens decoded, found from the numbers in flight and the step time alone, are the tokens of all responses."""
    lab = run(varied(seed, prompt_tokens=0))
    assert decoded_tokens(lab) == pytest.approx(lab.scenario.lengths.draw(np.random.default_rng(0), *shape(lab)).sum(), abs=0.05)
    assert lab.rounds[0].tokens == lab.rounds[0].tokens_generated == round(decoded_tokens(lab))


def shape(lab: Lab) -> tuple[int, int]:
    return lab.scenario.groups_per_round, lab.scenario.responses_per_group


def decoded_tokens(lab: Lab) -> float:
    """The integral of n / (a + b n) over the time that n requests are on a replica, over all replicas."""
    engine, total = lab.scenario.engine, 0.0
    for replica in range(engine.replicas):
        changes = [
            (event["t"], 1 if event["kind"] == "dispatch" else -1)
            for kind in ("response", "dispatch")
            for event in lab.of(kind)
            if event["replica"] == f"engine-{replica}"
        ]
        running, last_s = 0, 0.0
        for moment, change in sorted(changes):
            total += (moment - last_s) * running / (engine.step_s + engine.step_per_request_s * running)
            running, last_s = running + change, moment
    return total


def test_the_clock_of_a_long_run_is_not_too_coarse() -> None:
    """A step of a nanosecond at 10^7 s is below what a float can tell apart: requests still end, with the right count."""
    agenda, done = Agenda(), []
    agenda.now_s = 1e7
    replica = Replica(EngineModel(step_s=1e-9), agenda, lambda one, job: done.append(job.tokens), 0)
    for request, tokens in zip(group_requests(0, 0, (), 5, 0), (1, 2, 3, 5, 8), strict=True):
        replica.add(Job(request, tokens))
    replica.plan()
    agenda.run()
    assert done == [1, 2, 3, 5, 8]


# Memory.


def memory_run(engine: EngineModel, lengths: list[int], prompt: int) -> tuple[Replica, Counter[int], float]:
    """All requests at once on one replica: the replica, how often each ended, and the most memory held by two or more."""
    agenda, done = Agenda(), Counter[int]()
    most, num_calls = 0.0, 0
    replica = Replica(engine, agenda, lambda one, job: done.update([job.request.member]), 0)
    requests = group_requests(0, 0, (0,) * prompt, len(lengths), 0)

    def look() -> None:
        nonlocal most, num_calls
        num_calls += 1
        assert num_calls < 100_000, "the replica never ends"
        if replica.num_running > 1:
            most = max(most, replica.memory_tokens)
        if sum(done.values()) < len(lengths):
            replica.advance()
            agenda.after(engine.step_s / 2, look)

    for request, tokens in zip(requests, lengths, strict=True):
        replica.add(Job(request, tokens))
    replica.plan()
    look()
    agenda.run()
    return replica, done, most


def test_memory_that_runs_out_puts_the_youngest_back() -> None:
    """Two requests of 10 + 50 tokens in 80: at 40 each (30 steps) the second goes; the first ends at 50 s; the second computes
    its prompt and its 30 tokens again, 40 x 0.5 s, and has 20 steps left: 50 + 20 + 20 s."""
    engine = EngineModel(capacity=2, step_s=1.0, kv_tokens=80)
    assert run(fixed((50, 50), engine=engine, prompt_tokens=10)).moments("response") == pytest.approx(
        {"r0/g0/m0": 50.0, "r0/g0/m1": 70.0}
    )
    slow = replace(engine, prefill_s_per_token=0.5)  # both prompts first: 10 s
    lab = run(fixed((50, 50), engine=slow, prompt_tokens=10))
    assert lab.moments("response") == pytest.approx({"r0/g0/m0": 60.0, "r0/g0/m1": 100.0})


@pytest.mark.parametrize("seed", range(30))
def test_memory_stays_within_its_limit_and_every_request_ends_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths, prompt = rng.integers(1, 80, 12).tolist(), int(rng.integers(0, 15))
    limit = int(rng.integers(40, 300))
    engine = EngineModel(capacity=12, step_s=1.0, step_per_request_s=0.1, prefill_s_per_token=0.05, kv_tokens=limit)
    replica, done, most = memory_run(engine, lengths, prompt)
    assert done == dict.fromkeys(range(12), 1)
    assert replica.num_running == 0 and replica.memory_tokens == 0
    assert most <= limit + 1e-3


def test_little_memory_is_what_puts_back() -> None:
    """The bound above is reached, and memory for all puts nothing back."""
    little = EngineModel(capacity=12, step_s=1.0, kv_tokens=100)
    replica, _, most = memory_run(little, [60] * 12, 5)
    assert replica.num_put_back > 5 and most > 98  # seen every half step
    enough, _, _ = memory_run(replace(little, kv_tokens=12 * 65), [60] * 12, 5)
    assert enough.num_put_back == 0


@pytest.mark.parametrize("prefill_s", [0.0, 0.1])
def test_a_request_larger_than_the_memory_ends_alone(prefill_s: float) -> None:
    """It could not end anywhere else either. The others end too, before it or after it."""
    engine = EngineModel(capacity=4, step_s=1.0, kv_tokens=40, prefill_s_per_token=prefill_s)
    replica, done, most = memory_run(engine, [15, 200, 15, 15], 10)
    assert done == dict.fromkeys(range(4), 1) and most <= 40 + 1e-3
    assert replica.num_put_back > 0
    lab = run(fixed((100, 100), (100, 100), engine=replace(engine, kv_tokens=1), prompt_tokens=10))
    assert lab.rounds[0].groups_trained == 2, "where nothing fits, one request runs at a time"
    assert lab.rounds[0].rollout_s == pytest.approx(4 * (100 + 10 * prefill_s))


def test_prompts_alone_may_fill_the_memory() -> None:
    """Prompts of 30 in 100: three enter, not four, and at 10 more tokens in all the third goes back."""
    replica, done, most = memory_run(EngineModel(capacity=9, step_s=1.0, kv_tokens=100), [20] * 9, 30)
    assert done == dict.fromkeys(range(9), 1) and most <= 100 + 1e-3
    assert replica.num_put_back >= 3


@pytest.mark.parametrize("seed", range(10))
def test_less_memory_loses_nothing_and_is_never_faster(seed: int) -> None:
    """With a step that costs the same whatever runs, memory can only hold requests up."""

    def with_memory(kv_tokens: int | None) -> Scenario:
        return varied(seed, engine=EngineModel(capacity=6, step_s=1.0, kv_tokens=kv_tokens), prompt_tokens=4, schedule="cgp")

    free = run(with_memory(None)).rounds[0]
    for kv_tokens in (400, 100, 70):
        limited = run(with_memory(kv_tokens)).rounds[0]
        assert limited.tokens == free.tokens and limited.books == free.books
        assert limited.rollout_s >= free.rollout_s * 0.999


# Contention.


def contended(schedule: str, contention: float, train_s: float) -> Lab:
    """K=1, one slot: two rollouts of 100 s and two trainings."""
    engine, trainer = EngineModel(capacity=1, step_s=1.0), TrainerModel(group_s=train_s)
    return run(fixed((100,), (100,), schedule=schedule, contention=contention, engine=engine, trainer=trainer))


def test_both_sides_are_slower_only_while_both_run() -> None:
    """Contention 2. From 100 s both run. A training of 30 s ends at 160 s, when 70 s of rollout are left, alone: to 230 s.
    One of 300 s: the rollout ends at 300 s, when 200 s of training are left, alone: to 500 s."""
    short, long = contended("cgp", 2.0, 30.0), contended("cgp", 2.0, 300.0)
    assert short.moments("response") == pytest.approx({"r0/g0/m0": 100, "r0/g1/m0": 230})
    assert [(event["start"], event["t"]) for event in short.of("compute") if event["group"]] == [(100, 160), (230, 260)]
    assert long.moments("response") == pytest.approx({"r0/g0/m0": 100, "r0/g1/m0": 300})
    assert [(event["start"], event["t"]) for event in long.of("compute") if event["group"]] == [(100, 500), (500, 800)]


def test_contention_leaves_serial_alone() -> None:
    """Its two sides never run together."""
    assert contended("serial", 3.0, 30.0).events == contended("serial", 1.0, 30.0).events


def test_contention_of_1_is_none_and_more_of_it_takes_longer() -> None:
    times = [contended("cgp", contention, 30.0).rounds[0].r2t_end_s for contention in (1.0, 1.5, 2.0, 4.0)]
    assert times == pytest.approx([230, 245, 260, 320])  # 200 + 30 contention
