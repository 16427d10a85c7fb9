"""Who goes first: schedules, request orders, group orders, seeds (design sections 1 and 3; traps 1 to 4, pain 21)."""

import asyncio
from collections.abc import Hashable, Iterable

import pytest
from round_lab import SCHEDULES, Lab, RecordingTrainer, ScriptedVerifier, run_round

from common.errors import EngineError, PublishError
from common.records import Request, Response, Sampling, Verdict
from common.testing import FakeEngine, FakeVerifier, Fault

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


def uneven(request: Request) -> float:
    """Seconds of a response: the same for each seed, very different between them."""
    return 0.5 + request.seed % 11


def test_the_serial_trainer_starts_nothing_before_the_rollout_is_done() -> None:
    """Design section 1: groups are complete from 2 s on; the first update begins when the last one is."""
    lab = run_round(schedule="serial", engine=FakeEngine(4, seconds=uneven))
    (done,) = lab.of("rollout_done")
    first_group_s = min(event["t"] for event in lab.of("group_complete"))
    assert first_group_s < done["t"] <= min(event["start"] for event in lab.of("compute"))
    assert len(lab.of("group_complete")) == 4


def test_a_pipelined_trainer_starts_while_the_rollout_goes_on() -> None:
    """The paper's complete-group pipelining: the first group is trained as soon as it is complete."""
    for schedule in ("cgp", "fgd", "fgd-strict"):
        lab = run_round(schedule=schedule, engine=FakeEngine(4, seconds=uneven))
        first = min(event["t"] for event in lab.of("group_complete"))
        assert min(event["start"] for event in lab.of("compute")) == pytest.approx(first)
        assert first < lab.of("rollout_done")[0]["t"]


def test_nothing_is_accumulated_before_its_group_is_whole() -> None:
    """Rule 2, pain 3: whatever the schedule, an accumulate starts after its group's completion."""
    for schedule in SCHEDULES:
        lab = run_round(schedule=schedule, engine=FakeEngine(5, seconds=uneven), request_order="interleaved")
        complete_s = {event["group"]: event["t"] for event in lab.of("group_complete")}
        for event in lab.of("compute"):
            assert event["phase"] != "accumulate" or event["start"] >= complete_s[event["group"]]


def test_submission_order_gives_the_same_weights_under_every_schedule() -> None:
    """Trap 4: with U < R the update sequence does not depend on timing; under arrival order it does."""
    weights = {}
    for group_order in ("submission", "arrival"):
        for schedule in SCHEDULES:
            for capacity in (3, 16):
                lab = run_round(
                    schedule=schedule,
                    group_order=group_order,
                    groups_per_round=8,
                    engine=FakeEngine(capacity, seconds=uneven),
                    request_order="interleaved",
                    verifier=FakeVerifier(),
                )
                weights[group_order, schedule, capacity] = lab.trainer.weight
                if group_order == "submission":
                    assert lab.trainer.trained == [f"r0/g{order}" for order in range(8)]
    assert len({weight for (order, *_), weight in weights.items() if order == "submission"}) == 1
    assert len({weight for (order, *_), weight in weights.items() if order == "arrival"}) > 1


@pytest.mark.parametrize("filter_mode", ["drop", "refill"])
def test_submission_order_is_the_same_with_filtered_groups_and_refills(filter_mode: str) -> None:
    """Trap 4: which groups are filtered, and so which problems refill them, follows from contents and not from timing."""
    verifier = lambda: FakeVerifier(reward=lambda task, text: float(task["gold"] % 3 != 0 and len(text) % 2))  # noqa: E731
    weights, trained = set(), set()
    for schedule in SCHEDULES:
        lab = run_round(
            schedule=schedule,
            group_order="submission",
            groups_per_round=8,
            filter=filter_mode,
            num_refills=30,
            verifier=verifier(),
            engine=FakeEngine(5, seconds=uneven),
        )
        weights.add(lab.trainer.weight)
        trained.add(tuple(lab.trainer.trained))
        assert lab.books.filtered > 0 and (lab.books.refilled > 0) == (filter_mode == "refill")
    assert len(weights) == len(trained) == 1


def test_submission_order_goes_on_past_a_dropped_group() -> None:
    """Rules 5, 7: group 0 times out at 50 s; the groups behind it wait for it and are then trained in order."""
    engine = FakeEngine(faults={"r0/g0/m0": [Fault.HANG]})
    lab = run_round(engine=engine, group_order="submission", limits={"group_timeout_s": 50})
    assert lab.trainer.trained == ["r0/g1", "r0/g2", "r0/g3"]
    assert min(event["start"] for event in lab.of("compute")) == 50


def test_one_update_a_round_is_the_same_set_in_any_order() -> None:
    """Trap 4: with U = R all groups are in one update, whatever the order of arrival."""
    for schedule in SCHEDULES:
        lab = run_round(schedule=schedule, groups_per_update="round", engine=FakeEngine(3, seconds=uneven))
        assert len(lab.result.updates) == 1 and sorted(lab.trainer.trained) == [f"r0/g{order}" for order in range(4)]


def test_requests_enter_in_their_order_under_cgp_and_by_group_under_fgd() -> None:
    """Design section 1: interleaved arrival; capacity 2."""
    settings = {"engine": None, "request_order": "interleaved", "groups_per_round": 3, "responses_per_group": 2}
    started = {
        schedule: run_round(**{**settings, "engine": FakeEngine(2), "schedule": schedule}).engine.started
        for schedule in ("cgp", "fgd")
    }
    assert started["cgp"] == ["r0/g0/m0", "r0/g1/m0", "r0/g2/m0", "r0/g0/m1", "r0/g1/m1", "r0/g2/m1"]
    assert started["fgd"] == ["r0/g0/m0", "r0/g0/m1", "r0/g1/m0", "r0/g1/m1", "r0/g2/m0", "r0/g2/m1"]


def test_shuffled_requests_have_one_order_a_seed() -> None:
    """The order follows from seed and round: the same on rerun, another one in the next round."""
    orders = [
        run_round(schedule="cgp", request_order="shuffled", engine=FakeEngine(1), seed=seed, index=index).engine.started
        for seed, index in ((1, 0), (1, 0), (2, 0), (1, 1))
    ]
    suffixes = [[str(name).partition("/")[2] for name in order] for order in orders]
    assert suffixes[0] == suffixes[1] != suffixes[2]
    assert suffixes[0] != suffixes[3] and sorted(suffixes[0]) == sorted(suffixes[3])


def test_every_member_has_its_own_seed_the_same_on_rerun() -> None:
    """Pain 21: seeds of K=4 members, R=4 groups and 2 rounds all differ; tokens follow from them."""
    runs = [run_round(index=index, groups_per_update=4) for index in (0, 0, 1)]
    seeds = [sorted((s.request.request_id, s.request.seed) for g in lab.trainer.groups for s in g.samples) for lab in runs]
    assert seeds[0] == seeds[1]
    assert len({seed for lab in (seeds[0], seeds[2]) for _, seed in lab}) == 32
    streams = [sample.response.token_ids for group in runs[0].trainer.groups for sample in group.samples]
    assert len({stream for stream in streams if len(stream) > 2}) == len([stream for stream in streams if len(stream) > 2])


def test_a_request_that_is_sampled_again_keeps_its_seed() -> None:
    """Pain 21: a fault does not change what is trained."""
    weights = {
        run_round(group_order="submission", engine=FakeEngine(faults=faults), verifier=FakeVerifier()).trainer.weight
        for faults in ({}, {"r0/g1/m2": [Fault.ERROR, Fault.STALE]})
    }
    assert len(weights) == 1


class RemoteEngine(FakeEngine):
    """As one in another process: a caller that goes away ends nothing; `abort` does, after 3 s on its way."""

    async def generate(self, request: Request, sampling: Sampling) -> Response:
        return await asyncio.shield(asyncio.ensure_future(super().generate(request, sampling)))

    async def abort(self, request_ids: Iterable[Hashable]) -> None:
        await asyncio.sleep(3)
        await super().abort(request_ids)


@every_schedule
def test_a_slot_is_free_when_the_engine_has_let_the_request_go(schedule: str) -> None:
    """Section 7 of a round: dropping a group frees its slots after the abort, or the engine would be overrun."""
    faults = {"r0/g0/m0": [Fault.HANG], "r0/g2/m1": [Fault.HANG], "r0/g1/m1": [Fault.ERROR]}
    engine = RemoteEngine(4, faults=faults, seconds=uneven)
    lab = run_round(schedule=schedule, engine=engine, limits={"group_timeout_s": 20, "max_retries": 0})
    assert engine.max_running == 4 and lab.books.dropped == 3


def test_a_request_that_timed_out_is_let_go_before_it_is_sampled_again() -> None:
    """Rule 2: the first try is aborted first; one slot, so two tries at once would overrun it."""
    engine = RemoteEngine(1, faults={"r0/g0/m0": [Fault.HANG]})
    lab = run_round(engine=engine, limits={"request_timeout_s": 5})
    assert engine.max_running == 1 and (lab.books.retried, lab.books.trained) == (1, 4)


@pytest.mark.parametrize("num_steps", range(5))
def test_a_group_dropped_in_the_moment_of_an_admission_gives_all_slots_back(num_steps: int) -> None:
    """Rule 3: m1 ends at 5 s, so m2 is started; m0 fails a few steps of the loop later, before or after m2's first step."""

    class FailsWithM1(FakeEngine):
        async def generate(self, request: Request, sampling: Sampling) -> Response:
            response = await super().generate(request, sampling)
            if request.request_id == "r0/g0/m0":
                for _ in range(num_steps):
                    await asyncio.sleep(0)
                raise EngineError("lost")
            return response

    lab = run_round(engine=FailsWithM1(2, seconds=lambda request: 5.0), limits={"max_retries": 0}, groups_per_round=8)
    assert lab.books.trained == 7
    later = [event["t"] for event in lab.of("dispatch") if event["t"] > 5]
    assert all(later.count(moment) == 2 for moment in later), "both slots go on serving"


@every_schedule
def test_the_publish_comes_once_after_the_last_update_when_nothing_runs(schedule: str) -> None:
    """Rule 6: it begins after the last step with an idle engine, and the round ends after it."""
    began: list[tuple[float, int, int]] = []

    async def publish(lab: Lab) -> None:
        (health,) = await lab.engine.health()
        began.append((lab.events[-1]["t"], health.num_running, len(lab.trainer.trained)))
        await asyncio.sleep(10)

    lab = run_round(schedule=schedule, publish=publish, engine=FakeEngine(3, seconds=uneven))
    assert began == [(lab.of("update")[-1]["t"], 0, 4)]
    assert lab.of("round_end")[0]["t"] == began[0][0] + 10
    assert len(lab.engine.started) == 16, "no request of any round starts during a publish"


def test_a_round_without_an_update_publishes_too() -> None:
    """Design section 1: the version goes up at each publish, also when a round made no step."""
    published: list[int] = []

    async def publish(lab: Lab) -> None:
        published.append(lab.trainer.step)

    faults = {f"r0/g{order}/m0": [Fault.ERROR] for order in range(4)}
    run_round(publish=publish, engine=FakeEngine(faults=faults), limits={"max_retries": 0})
    assert published == [0]


def test_a_failed_round_publishes_nothing() -> None:
    """Rule 6: half a round's weights must not be served."""

    async def publish(lab: Lab) -> None:
        raise AssertionError("published")

    trainer = RecordingTrainer()
    trainer.fail_at = "r0/g3"
    lab = run_round(publish=publish, trainer=trainer, groups_per_update=1)
    assert trainer.step > 0 and "planted failure" in str(lab.error) and lab.of("round_end") == []


def test_a_publish_that_fails_ends_the_round_with_its_error() -> None:
    """Rule 6: the next round must not start."""

    async def publish(lab: Lab) -> None:
        raise PublishError("tensor w: checksum does not match")

    lab = run_round(publish=publish)
    assert isinstance(lab.error, PublishError) and lab.of("round_end") == []


def test_the_watchdog_also_speaks_during_a_publish() -> None:
    """Rule 7, pain 8: a transfer that hangs is told before its deadline ends it."""

    async def publish(lab: Lab) -> None:
        await asyncio.sleep(70)

    lab = run_round(publish=publish, limits={"stall_s": 30})
    assert len(lab.of("stall")) == 2
    assert "4 of 4 groups complete, 0 filtered, 0 dropped, 4 with the trainer, which is done" in lab.of("stall")[0]["message"]


def test_a_stall_tells_filtered_and_dropped_groups_apart() -> None:
    """One of four cannot be scored, one has no reward spread; the other two are trained."""
    script = {(0, member): Verdict.ERROR for member in range(4)} | {(1, member): 0.3 for member in range(4)}

    async def publish(lab: Lab) -> None:
        await asyncio.sleep(40)

    lab = run_round(verifier=ScriptedVerifier(script), filter="drop", publish=publish, limits={"stall_s": 30})
    assert "2 of 4 groups complete, 1 filtered, 1 dropped, 2 with the trainer" in lab.of("stall")[0]["message"]
