"""Rewards, filters and refills of the round (rules 3, 5 and 9 of design section 4; pain 11)."""

from collections import Counter
from typing import Any

import pytest
from round_lab import SCHEDULES, ScriptedVerifier, run_round

from common.protocols import Score
from common.records import Verdict
from common.testing import FakeEngine, FakeVerifier

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)
FLAT = {(gold, call): 0.5 for gold in (1, 3) for call in range(4)}  # groups 1 and 3 have no reward spread


@every_schedule
def test_a_member_whose_verifier_failed_stays_out_of_the_baseline(schedule: str) -> None:
    """Rule 9: rewards 0, error, 2, 4 have mean 2 and deviation 1.633: advantages -1.2247, 0, 0, 1.2247."""
    script = {(0, 0): 0.0, (0, 1): Verdict.ERROR, (0, 2): 2.0, (0, 3): 4.0}
    lab = run_round(schedule=schedule, verifier=ScriptedVerifier(script))
    (group,) = (group for group in lab.trainer.groups if group.order == 0)
    assert [sample.reward for sample in group.samples] == [0.0, None, 2.0, 4.0]
    assert [sample.advantage for sample in group.samples] == pytest.approx([-1.2247, 0, 0, 1.2247], abs=1e-4)
    assert group.samples[1].status is Verdict.ERROR and group.samples[1].reason == "planted crash"
    assert (lab.books.unscored, lab.books.trained) == (1, 4)


@every_schedule
@pytest.mark.parametrize("num_scored", [0, 1])
def test_a_group_with_fewer_than_two_scored_members_is_dropped(schedule: str, num_scored: int) -> None:
    """Rule 9: with one reward there is no baseline."""
    script: dict[tuple[int, int], float | Verdict] = {(2, call): Verdict.ERROR for call in range(num_scored, 4)}
    lab = run_round(schedule=schedule, verifier=ScriptedVerifier(script))
    assert (lab.books.dropped, lab.books.trained, lab.books.unscored) == (1, 3, 4 - num_scored)
    assert lab.drops["r0/g2"]["detail"] == "fewer than two members have a reward"
    assert lab.drops["r0/g2"]["reason"] == "failed"


def test_a_verdict_of_timeout_is_a_reward_of_zero_in_the_baseline() -> None:
    """Rule 9: rewards 1, 1, 1 and a timeout have mean 0.75 and deviation 0.433."""
    script = {(0, 0): 1.0, (0, 1): 1.0, (0, 2): 1.0, (0, 3): Verdict.TIMEOUT}
    lab = run_round(verifier=ScriptedVerifier(script))
    (group,) = (group for group in lab.trainer.groups if group.order == 0)
    assert [sample.advantage for sample in group.samples] == pytest.approx([0.57735] * 3 + [-1.73205], abs=1e-4)
    assert group.samples[3].status is Verdict.TIMEOUT and lab.books.unscored == 0


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_finite_number_is_a_verifier_failure(reward: float) -> None:
    """Rule 9: a NaN must not reach the baseline of the other members."""
    lab = run_round(verifier=ScriptedVerifier({(0, 1): reward}))
    (group,) = (group for group in lab.trainer.groups if group.order == 0)
    assert group.samples[1].reward is None and group.samples[1].status is Verdict.ERROR
    assert group.samples[1].reason == f"the reward is {reward}" and lab.books.unscored == 1


@pytest.mark.parametrize(
    ("rewards", "is_trained"),
    [([0.3] * 4, False), ([0.3, 0.3, 0.3, 0.3 + 1e-9], False), ([0.0, 0.95, 0.95, 0.95], True)],
    ids=["equal", "noise", "spread"],
)
def test_zero_spread_is_tested_with_a_tolerance_over_the_whole_group(rewards: list[float], is_trained: bool) -> None:
    """Pain 11: all 0.3, and 0.3 with 1e-9 of noise, are filtered; 0 and 0.95 keep all members."""
    script = {(0, call): reward for call, reward in enumerate(rewards)}
    lab = run_round(verifier=ScriptedVerifier(script), filter="drop")
    assert ("r0/g0" in lab.trainer.trained) == is_trained
    assert lab.books.filtered == (not is_trained) and lab.books.dropped == 0


@every_schedule
def test_filter_drop_leaves_flat_groups_out_and_counts_them(schedule: str) -> None:
    """Rules 3, 5: two of four groups are flat; the two others fill one update of U=2."""
    lab = run_round(schedule=schedule, verifier=ScriptedVerifier(FLAT), filter="drop")
    assert sorted(lab.trainer.trained) == ["r0/g0", "r0/g2"]
    assert (lab.books.filtered, lab.books.refilled) == (2, 0)
    assert [update.num_groups for update in lab.result.updates] == [2]
    assert [event["filtered"] for event in sorted(lab.of("group_complete"), key=lambda event: event["order"])] == [
        None,
        "filtered",
        None,
        "filtered",
    ]


def test_filter_keep_trains_flat_groups_with_no_advantage() -> None:
    """Pain 11: kept, counted in the denominators, without a gradient."""
    lab = run_round(verifier=ScriptedVerifier(FLAT), filter="keep")
    (flat,) = (group for group in lab.trainer.groups if group.order == 1)
    assert lab.books.trained == 4 and [sample.advantage for sample in flat.samples] == [0.0] * 4


@every_schedule
@pytest.mark.parametrize("group_order", ["arrival", "submission"])
def test_refills_replace_flat_groups_until_u_trainable_ones_are_there(schedule: str, group_order: str) -> None:
    """Rules 3, 5: groups 1 and 3 are flat, so is the first refill (order 4): three refills, four trainable groups."""
    script = {**FLAT, **{(4, call): 0.5 for call in range(4)}}
    lab = run_round(
        schedule=schedule, group_order=group_order, verifier=ScriptedVerifier(script), filter="refill", num_refills=8, version=3
    )
    assert sorted(lab.trainer.trained) == ["r0/g0", "r0/g2", "r0/g5", "r0/g6"]
    assert (lab.books.filtered, lab.books.refilled, lab.books.requests) == (3, 3, 28)
    assert [update.num_groups for update in lab.result.updates] == [2, 2]
    assert set(lab.trainer.versions) == {3}


def test_refills_stop_at_their_limit() -> None:
    """Rule 3: every group is flat; max_refills=3 makes 7 groups in all and no update."""
    lab = run_round(verifier=FakeVerifier(reward=lambda task, text: 1.0), filter="refill", num_refills=99, max_refills=3)
    assert (lab.books.filtered, lab.books.refilled, lab.books.trained) == (7, 3, 0)


def test_the_limit_of_refills_is_r_by_default() -> None:
    """Rule 3: R=4, so 8 groups in all."""
    lab = run_round(verifier=FakeVerifier(reward=lambda task, text: 1.0), filter="refill", num_refills=99)
    assert (lab.books.filtered, lab.books.refilled) == (8, 4)


def test_refills_end_where_the_problems_do() -> None:
    """Rule 3: two flat groups, one problem left."""
    lab = run_round(verifier=ScriptedVerifier(FLAT), filter="refill", num_refills=1)
    assert (lab.books.trained, lab.books.filtered, lab.books.refilled) == (3, 2, 1)


def test_no_refill_for_a_group_that_failed() -> None:
    """Rule 3: a refill replaces a filtered group; a dropped one is a recorded shortfall."""
    script = {(0, call): Verdict.ERROR for call in range(4)}
    lab = run_round(verifier=ScriptedVerifier(script), filter="refill", num_refills=5)
    assert (lab.books.dropped, lab.books.refilled) == (1, 0)


def test_batch_advantages_are_divided_by_the_deviation_of_the_batch() -> None:
    """Trap 3 (serial only): two groups 0 0 1 1 and 0 0 4 4: means 0.5 and 2, batch mean 1.25.

    Batch variance (4*1.25^2 + 2*0.25^2 + 2*2.75^2)/8 = (6.25 + 0.125 + 15.125)/8 = 2.6875, deviation 1.63936:
    advantages +-0.5/1.63936 = 0.30500 and +-2/1.63936 = 1.21999.
    """
    script = {(0, 0): 0.0, (0, 1): 0.0, (0, 2): 1.0, (0, 3): 1.0, (1, 0): 0.0, (1, 1): 0.0, (1, 2): 4.0, (1, 3): 4.0}
    lab = run_round(
        schedule="serial", advantage_std="batch", groups_per_round=2, groups_per_update="round", verifier=ScriptedVerifier(script)
    )
    first, second = sorted(lab.trainer.groups, key=lambda group: group.order)
    assert [sample.advantage for sample in first.samples] == pytest.approx([-0.305, -0.305, 0.305, 0.305], abs=1e-4)
    assert [sample.advantage for sample in second.samples] == pytest.approx([-1.22, -1.22, 1.22, 1.22], abs=1e-4)


def test_recorded_groups_have_the_advantages_that_were_trained() -> None:
    """What on_group is given is what the trainer is given, also under advantage_std batch."""
    for settings in ({}, {"schedule": "serial", "advantage_std": "batch"}):
        lab = run_round(**settings)
        assert sorted(lab.complete, key=lambda g: g.order) == sorted(lab.trainer.groups, key=lambda g: g.order)


def test_every_complete_group_is_recorded_once_trained_or_not() -> None:
    """Filtered and unscored groups too; dropped ones that never completed are not among them."""
    script = {**FLAT, **{(2, call): Verdict.ERROR for call in range(4)}}
    lab = run_round(verifier=ScriptedVerifier(script), filter="drop", engine=FakeEngine())
    assert sorted((group.group_id, group.filtered) for group in lab.complete) == [
        ("r0/g0", None),
        ("r0/g1", "filtered"),
        ("r0/g2", "failed"),
        ("r0/g3", "filtered"),
    ]


class PartsVerifier(FakeVerifier):
    """Rewards by length; keeps the tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[dict[str, Any]] = []

    async def score(self, task: dict[str, Any], response: str) -> Score:
        await super().score(task, response)
        self.tasks.append(task)
        part = float(task["num_tokens"])
        return Score(reward=part, status=Verdict.WRONG, extracted=str(task["num_tokens"]), parts=(("length", part),))


def test_the_verifier_is_told_the_length_and_the_record_keeps_parts_and_answer() -> None:
    verifier = PartsVerifier()
    lab = run_round(verifier=verifier)
    samples = [sample for group in lab.complete for sample in group.samples]
    assert len(samples) == 16 and len({sample.num_tokens for sample in samples}) > 1
    for sample in samples:
        expected = float(len(sample.response.token_ids))
        assert (sample.reward, sample.parts, sample.extracted) == (expected, (("length", expected),), str(sample.num_tokens))
    assert Counter((task["num_tokens"], task["finish_reason"]) for task in verifier.tasks) == Counter(
        (sample.num_tokens, sample.response.finish_reason.value) for sample in samples
    )
    assert all(type(task["finish_reason"]) is str for task in verifier.tasks)  # plain JSON
