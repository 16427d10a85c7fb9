"""The round, rules 1, 2, 3 and 5 of design section 4, for every schedule. `run_round` checks the books after each."""

from dataclasses import replace

import pytest
from round_lab import SCHEDULES, RecordingTrainer, ScriptedVerifier, run_round

from common.errors import EngineError, StaleGroupError, UsageError
from common.records import FinishReason, Request, Response, Sampling
from common.testing import FakeEngine, Fault, make_problems

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES)


@every_schedule
def test_trains_every_group_of_a_sound_round_once(schedule: str) -> None:
    """Rules 3, 5: R=4, U=2 make two updates of two; 16 requests are started, none twice."""
    lab = run_round(schedule=schedule)
    assert sorted(lab.trainer.trained) == [f"r0/g{order}" for order in range(4)]
    assert [update.num_groups for update in lab.result.updates] == [2, 2]
    assert sorted(lab.engine.started) == [f"r0/g{order}/m{member}" for order in range(4) for member in range(4)]
    assert lab.books.as_dict() == {
        "groups": 4,
        "refilled": 0,
        "trained": 4,
        "filtered": 0,
        "dropped": 0,
        "requests": 16,
        "finished": 16,
        "failed": 0,
        "cancelled": 0,
        "retried": 0,
        "rejected": 0,
        "broken": 0,
        "unscored": 0,
    }


@every_schedule
@pytest.mark.parametrize("fault", [Fault.STALE, Fault.MIXED])
def test_a_response_of_another_version_is_rejected_counted_and_sampled_again(schedule: str, fault: Fault) -> None:
    """Rule 1: the version is wrong at the start or at both ends; the second try is right."""
    lab = run_round(schedule=schedule, engine=FakeEngine(faults={"r0/g2/m1": [fault]}), version=7)
    assert (lab.books.rejected, lab.books.retried, lab.books.trained) == (1, 1, 4)
    assert lab.engine.started.count("r0/g2/m1") == 2
    assert set(lab.trainer.versions) == {7}
    (retry,) = lab.of("retry")
    assert retry["request"] == "r0/g2/m1" and "the round's is 7" in retry["reason"]


def test_a_response_that_ends_in_a_newer_version_is_sampled_again() -> None:
    """Rule 1: both stamps count; this one began with the round's version."""

    class Updated(FakeEngine):
        async def generate(self, request: Request, sampling: Sampling) -> Response:
            response = await super().generate(request, sampling)
            is_first = request.request_id == "r0/g1/m1" and self.started.count("r0/g1/m1") == 1
            return replace(response, version_end=1) if is_first else response

    lab = run_round(engine=Updated())
    assert (lab.books.rejected, lab.books.retried, lab.books.trained) == (1, 1, 4)


@every_schedule
def test_an_engine_that_serves_another_version_gets_nothing_trained(schedule: str) -> None:
    """Rule 1: every try of every request is stale, so every group is dropped and the weights stay as they are."""
    faults = {f"r0/g{order}/m{member}": [Fault.STALE] * 3 for order in range(4) for member in range(4)}
    lab = run_round(schedule=schedule, engine=FakeEngine(faults=faults), version=1)
    assert lab.books.dropped == 4 and not lab.result.updates and lab.trainer.step == 0


def test_a_group_of_mixed_versions_never_reaches_the_trainer_whatever_was_let_through() -> None:
    """Rule 1: materialization checks each sample again, also where the sampler's check were lost."""
    from common.materialize import materialize
    from common.records import Sample, Verdict

    def sample(member: int, start: int, end: int) -> Sample:
        response = Response(
            request_id=member,
            token_ids=(1,),
            logprobs=(-1.0,),
            finish_reason=FinishReason.STOP,
            version_start=start,
            version_end=end,
        )
        request = Request(request_id=f"m{member}", group_id="g", order=0, member=member)
        return Sample(request=request, response=response, reward=float(member), status=Verdict.OK)

    whole = materialize("g", 0, 3, [sample(0, 3, 3), sample(1, 3, 3)], std="group", keep_flat=False)
    assert whole.filtered is None
    for start, end in ((2, 2), (2, 3), (3, 4)):
        with pytest.raises(StaleGroupError, match=r"round's version 3 .*request m1.*got \(\d, \d\)"):
            materialize("g", 0, 3, [sample(0, 3, 3), sample(1, start, end)], std="group", keep_flat=False)


@every_schedule
@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.HANG])
def test_a_lost_request_is_sampled_again_and_its_group_trained_whole(schedule: str, fault: Fault) -> None:
    """Rule 2: two faults, max_retries=2, so the third try counts."""
    limits = {"max_retries": 2, "request_timeout_s": 5}
    lab = run_round(schedule=schedule, engine=FakeEngine(faults={"r0/g1/m3": [fault, fault]}), limits=limits)
    assert (lab.books.trained, lab.books.retried, lab.books.failed) == (4, 2, 0)


@every_schedule
@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.HANG, Fault.STALE])
def test_a_request_that_fails_beyond_its_retries_drops_its_group_alone(schedule: str, fault: Fault) -> None:
    """Rule 2: one fault more than max_retries; the drop says which request and why, the other groups train."""
    engine = FakeEngine(faults={"r0/g1/m3": [fault] * 3})
    lab = run_round(schedule=schedule, engine=engine, limits={"max_retries": 2, "request_timeout_s": 5})
    assert sorted(lab.trainer.trained) == ["r0/g0", "r0/g2", "r0/g3"]
    assert (lab.books.failed, lab.books.dropped, lab.books.finished + lab.books.cancelled) == (1, 1, 15)
    drop = lab.drops["r0/g1"]
    assert drop["reason"] == "failed" and drop["detail"].startswith("r0/g1/m3 failed 3 times, last: ")


def test_members_of_a_dropped_group_that_wait_are_never_started() -> None:
    """Rules 2, 3: capacity 1; the first member fails, so members 1 to 3 are cancelled without having run."""
    lab = run_round(engine=FakeEngine(1, faults={"r0/g0/m0": [Fault.ERROR]}), limits={"max_retries": 0})
    assert not [name for name in lab.engine.started if name.startswith("r0/g0")]
    assert (lab.books.failed, lab.books.cancelled, lab.books.finished) == (1, 3, 12)


def test_members_of_a_dropped_group_in_flight_are_aborted() -> None:
    """Rules 2, 3: three members would run for 100 s more; the round ends long before."""
    engine = FakeEngine(4, faults={"r0/g0/m3": [Fault.ERROR]}, seconds=lambda request: 100.0 if request.order == 0 else 1.0)
    lab = run_round(engine=engine, limits={"max_retries": 0})
    assert lab.books.cancelled == 3 and lab.ended_s < 20


def test_the_last_update_may_be_short_and_says_so() -> None:
    """Rule 5: R=5, U=2 make updates of 2, 2 and 1."""
    lab = run_round(groups_per_round=5)
    assert [(event["groups"], event["is_short"]) for event in lab.of("update")] == [(2, False), (2, False), (1, True)]


def test_updates_hold_exactly_u_groups_where_some_are_dropped() -> None:
    """Rule 5: of R=6 group 1 fails, so the five others make 2, 2 and 1."""
    lab = run_round(groups_per_round=6, engine=FakeEngine(faults={"r0/g1/m0": [Fault.ERROR] * 3}))
    assert [update.num_groups for update in lab.result.updates] == [2, 2, 1]


def test_an_open_update_is_closed_where_the_groups_it_waits_for_are_dropped() -> None:
    """Rule 5: group 3, the last, is dropped after groups 0, 1 and 2 were taken: an empty dispatch closes the update."""
    engine = FakeEngine(faults={"r0/g3/m0": [Fault.HANG]})
    lab = run_round(engine=engine, limits={"request_timeout_s": 20, "max_retries": 0})
    assert [update.num_groups for update in lab.result.updates] == [2, 1]
    last = [event for event in lab.of("compute") if event["phase"] == "accumulate"][-1]
    assert last["t"] < 10 < lab.drops["r0/g3"]["t"] < lab.of("update")[-1]["t"]


def test_a_round_whose_groups_are_all_dropped_makes_no_update() -> None:
    """Rules 3, 5: nothing to train is no error, and no step."""
    faults = {f"r0/g{order}/m0": [Fault.ERROR] for order in range(4)}
    lab = run_round(engine=FakeEngine(faults=faults), limits={"max_retries": 0})
    assert lab.books.dropped == 4 and lab.result.updates == () and lab.trainer.step == 0


@every_schedule
def test_one_update_a_round_takes_all_groups(schedule: str) -> None:
    """Rule 5: groups_per_update=round."""
    lab = run_round(schedule=schedule, groups_per_update="round")
    assert [update.num_groups for update in lab.result.updates] == [4]


def test_a_short_round_takes_its_problems_only() -> None:
    """Rule 3: three problems where R is 8 and U is 4: one update of three."""
    lab = run_round(problems=make_problems(3), groups_per_round=8, groups_per_update=4)
    assert lab.books.groups == 3 and [update.num_groups for update in lab.result.updates] == [3]


def test_a_round_without_problems_is_misuse() -> None:
    """Rule 3: a round of nothing has no end to wait for."""
    lab = run_round(problems=[])
    assert isinstance(lab.error, UsageError)


@every_schedule
def test_starts_nothing_beyond_r_groups_though_the_engine_idles(schedule: str) -> None:
    """Rule 1, pain 4: the trainer is slow, slots are free, more problems lie ready; still 16 requests and no more."""
    lab = run_round(schedule=schedule, engine=FakeEngine(64), trainer=RecordingTrainer(seconds=lambda g: 500.0), num_refills=9)
    assert len(lab.engine.started) == 16 and lab.engine.max_running == (8 if schedule == "fgd-strict" else 16)


@every_schedule
@pytest.mark.parametrize("capacity", [1, 3, 16, 64])
def test_keeps_within_capacity_and_uses_it(schedule: str, capacity: int) -> None:
    """The slots of the engine are all used (where the frontier does not limit them) and never exceeded."""
    lab = run_round(schedule=schedule, engine=FakeEngine(capacity), groups_per_update="round")
    assert lab.engine.max_running == min(capacity, 16)


def test_a_prompt_that_the_engine_refuses_fails_its_group_alone() -> None:
    """Pain 17: an over-long prompt that comes at run time; the engine refuses it at every try."""

    class Refusing(FakeEngine):
        async def generate(self, request: Request, sampling: Sampling) -> Response:
            if len(request.prompt_ids) > 16:
                raise EngineError(f"prompt of {len(request.prompt_ids)} tokens is longer than max_model_len (16)")
            return await super().generate(request, sampling)

    problems = [*make_problems(3), *make_problems(1, prompt_length=40)]
    lab = run_round(engine=Refusing(), problems=problems)
    assert sorted(lab.trainer.trained) == ["r0/g0", "r0/g1", "r0/g2"]
    assert "prompt of 40 tokens" in lab.drops["r0/g3"]["detail"]


def test_a_request_that_cannot_be_placed_is_tried_again() -> None:
    """Rule 2: `place` raising EngineError is a lost request, not the end of the round."""

    class NoRoomOnce(FakeEngine):
        refusals = 1

        def place(self, request: Request) -> int:
            if self.refusals:
                self.refusals -= 1
                raise EngineError("no engine has room")
            return 0

    lab = run_round(engine=NoRoomOnce())
    assert (lab.books.retried, lab.books.trained) == (1, 4)


def test_only_token_ids_of_the_engine_are_trained() -> None:
    """Rule 8: the trained ids are those of the engine's responses, whatever `decode` makes of them."""
    lab = run_round(verifier=ScriptedVerifier(), engine=FakeEngine(length=lambda request: 3))
    assert all(len(sample.response.token_ids) == 3 for group in lab.trainer.groups for sample in group.samples)
    assert all(sample.text == str(sample.response.token_ids) for group in lab.trainer.groups for sample in group.samples)


def test_empty_responses_are_whole_members() -> None:
    """Pain 16: no tokens is a legal answer; its group is trained whole."""
    lab = run_round(engine=FakeEngine(length=lambda request: 0 if request.member == 1 else 2))
    assert lab.books.trained == 4
    assert all(group.num_tokens == 6 for group in lab.trainer.groups)
