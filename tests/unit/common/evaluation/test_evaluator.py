"""One evaluation with fakes in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from round_lab import Outcome, check_nothing_runs, config_of, serve_version

from common.errors import EngineError, RunError
from common.evaluation.evaluator import EvalParts, Evaluation, Evaluator, eval_seed
from common.pool import Pool
from common.protocols import Problem, Score
from common.records import FinishReason, Group, Request, Response, Sampling, Verdict
from common.testing import FakeEngine, FakeTrainer, FakeVerifier, Fault, make_problems, run_virtual
from common.timeline import Timeline

VERSION = 3


class RecordingEngine(FakeEngine):
    """Also keeps what it was asked for."""

    def __init__(self, capacity: int = 16, **settings: Any) -> None:
        super().__init__(capacity, **settings)
        self.requests: list[Request] = []
        self.samplings: list[Sampling] = []

    async def generate(self, request: Request, sampling: Sampling) -> Response:
        self.requests.append(request)
        self.samplings.append(sampling)
        return await super().generate(request, sampling)


@dataclass
class Lab(Outcome[Evaluation]):
    """An evaluation that has ended."""

    engine: RecordingEngine
    groups: list[Group] = field(default_factory=list)

    @property
    def figures(self) -> Any:
        assert self.result is not None, self.error
        return self.result.figures


def evaluate(
    num_problems: int = 5,
    *,
    engine: RecordingEngine | None = None,
    pool: Pool | None = None,
    verifier: FakeVerifier | None = None,
    problems: list[Problem] | None = None,
    index: int | None = None,
    meanwhile: Callable[[Lab, "asyncio.Task[Evaluation]"], Awaitable[None]] | None = None,
    limits: dict[str, Any] | None = None,
    **settings: Any,
) -> Lab:
    """Of version VERSION; 2 samples a problem unless `settings` say otherwise."""
    lab = Lab(engine or RecordingEngine())
    config = config_of(eval={"samples": 2, **settings}, limits=limits or {}, sampling={"max_tokens": 6})

    async def main() -> None:
        await serve_version(VERSION, FakeTrainer(), pool or lab.engine)
        timeline = Timeline(None, asyncio.get_running_loop().time)
        timeline.listen(lab.events.append)
        parts = EvalParts(
            engine=pool or lab.engine,
            verifier=verifier or FakeVerifier(),
            decode=str,
            timeline=timeline,
            problems=problems or make_problems(num_problems),
            on_group=lambda group, problem: lab.groups.append(group),
        )
        task = asyncio.create_task(Evaluator(config, parts, version=VERSION, index=index).run())
        if meanwhile:
            await meanwhile(lab, task)
        await lab.settle(task)
        await check_nothing_runs(pool or lab.engine)

    run_virtual(main())
    return lab


def test_every_problem_is_asked_so_often_and_counted() -> None:
    lab = evaluate(5, samples=3, engine=RecordingEngine(4))
    assert sorted(request.request_id for request in lab.engine.requests) == sorted(
        f"e3/g{order}/m{member}" for order in range(5) for member in range(3)
    )
    assert (lab.figures.problems, lab.figures.samples, lab.figures.errors) == (5, 15, 0)
    assert lab.engine.max_running == 4, "engine.capacity is filled, and not exceeded"
    right = [[sample.status is Verdict.OK for sample in group.samples] for group in lab.groups]
    assert lab.figures.accuracy.value == pytest.approx(sum(sum(row) / 3 for row in right) / 5)


def test_the_groups_are_whole_in_order_of_members_and_of_the_version() -> None:
    lab = evaluate(4, samples=3, engine=RecordingEngine(5, seconds=lambda request: 1 + request.seed % 13))
    assert sorted(group.order for group in lab.groups) == [0, 1, 2, 3]
    for group in lab.groups:
        assert [sample.request.member for sample in group.samples] == [0, 1, 2]
        assert group.weight_version == VERSION and group.filtered is None
        assert all(sample.advantage == 0.0 for sample in group.samples)


def test_each_sample_has_a_seed_that_depends_on_problem_and_member_alone() -> None:
    few, many = evaluate(2), evaluate(9, engine=RecordingEngine(3))
    seeds = {request.request_id: request.seed for request in many.engine.requests}
    assert len(set(seeds.values())) == 18
    assert {request.request_id: request.seed for request in few.engine.requests}.items() <= seeds.items()
    moved = evaluate(problems=make_problems(9)[::-1])
    of_prompt = {(request.prompt_ids, request.member): request.seed for request in many.engine.requests}
    assert {(request.prompt_ids, request.member): request.seed for request in moved.engine.requests} == of_prompt
    assert {request.seed for request in evaluate(9, seed=1).engine.requests}.isdisjoint(seeds.values())
    assert eval_seed(0, "p0", 1) != eval_seed(0, "p01", 0)


def test_the_same_seed_gives_the_same_evaluation_whatever_the_timing() -> None:
    first = evaluate(8, engine=RecordingEngine(3))
    second = evaluate(8, engine=RecordingEngine(16, seconds=lambda request: 1 + request.seed % 11))
    assert first.figures == second.figures


def test_it_samples_as_set_for_evaluations_and_never_as_what_is_trained() -> None:
    lab = evaluate(samples=1, temperature=0, top_p=0.9, top_k=5, min_p=0.1, max_tokens=4)
    wanted = Sampling(temperature=0, top_p=0.9, top_k=5, min_p=0.1, max_tokens=4, is_trained=False)
    assert set(lab.engine.samplings) == {wanted}
    assert max(len(sample.response.token_ids) for group in lab.groups for sample in group.samples) == 4


def test_cut_off_and_lengths_are_of_the_responses() -> None:
    lab = evaluate(6)
    lengths = [sample.num_tokens for group in lab.groups for sample in group.samples]
    cut = [sample.response.finish_reason is FinishReason.LENGTH for group in lab.groups for sample in group.samples]
    assert lab.figures.length_mean == pytest.approx(sum(lengths) / 12) and any(cut)
    assert lab.figures.cut_off_share == pytest.approx(sum(cut) / 12)


@pytest.mark.parametrize("fault", [Fault.STALE, Fault.MIXED, Fault.ERROR, Fault.HANG])
def test_a_response_that_may_not_be_used_is_sampled_again(fault: Fault) -> None:
    """Rules 1 and 7."""
    lab = evaluate(engine=RecordingEngine(faults={"e3/g2/m1": [fault]}), limits={"request_timeout_s": 50})
    assert [event["request"] for event in lab.of("eval_retry")] == ["e3/g2/m1"]
    assert (lab.figures.samples, lab.figures.errors, len(lab.groups)) == (10, 0, 5)
    for group in lab.groups:
        for sample in group.samples:
            assert (sample.response.version_start, sample.response.version_end) == (VERSION, VERSION)
    assert lab.figures == evaluate().figures


def test_a_sample_without_a_usable_response_is_lost_counted_and_left_out() -> None:
    lab = evaluate(engine=RecordingEngine(faults={"e3/g2/m1": [Fault.STALE] * 3}), limits={"max_retries": 2})
    assert len(lab.of("eval_retry")) == 2
    assert (lab.figures.samples, lab.figures.errors, lab.figures.lost) == (10, 1, 1)
    assert [len(group.samples) for group in sorted(lab.groups, key=lambda group: group.order)] == [2, 2, 1, 2, 2]


def test_a_hanging_engine_ends_by_its_deadlines() -> None:
    """Rule 7: every request hangs on every try."""
    faults: dict[Any, list[Fault]] = {f"e3/g{order}/m{member}": [Fault.HANG] * 3 for order in range(3) for member in range(2)}
    lab = evaluate(3, engine=RecordingEngine(2, faults=faults), limits={"request_timeout_s": 10, "max_retries": 2})
    assert lab.figures.accuracy is None and lab.figures.lost == 6 and lab.groups == []
    assert lab.ended_s == pytest.approx(3 * 3 * 10)


class HangingVerifier(FakeVerifier):
    """Never answers about one problem."""

    async def score(self, task: dict[str, Any], response: str) -> Score:
        if task["gold"] == 1:
            await asyncio.Event().wait()
        return await super().score(task, response)


def test_a_verifier_that_hangs_costs_its_samples_and_nothing_else() -> None:
    lab = evaluate(verifier=HangingVerifier(), limits={"group_timeout_s": 40})
    assert (lab.figures.errors, lab.figures.lost, lab.figures.accuracy.problems) == (2, 0, 4)
    assert lab.ended_s == pytest.approx(41)
    hung = next(group for group in lab.groups if group.order == 1)
    assert {(sample.status, sample.reward) for sample in hung.samples} == {(Verdict.ERROR, None)}


def test_a_verifier_that_fails_is_counted_only() -> None:
    lab = evaluate(verifier=FakeVerifier(reward=lambda task, text: None if task["gold"] == 0 else 1.0))
    assert (lab.figures.errors, lab.figures.accuracy.value, lab.figures.accuracy.problems) == (2, 1.0, 4)


def test_the_death_of_the_last_engine_ends_it_with_the_cause() -> None:
    async def kill(lab: Lab, task: "asyncio.Task[Evaluation]") -> None:
        await asyncio.sleep(1.5)
        lab.engine.die()

    lab = evaluate(20, engine=RecordingEngine(4), meanwhile=kill)
    assert isinstance(lab.error, EngineError) and "no engine is alive" in str(lab.error)
    assert not lab.of("eval")


def test_the_others_go_on_where_one_engine_of_several_dies() -> None:
    engines = [RecordingEngine(4, name="engine 0"), RecordingEngine(4, name="engine 1")]

    async def kill(lab: Lab, task: "asyncio.Task[Evaluation]") -> None:
        await asyncio.sleep(1.5)
        engines[0].die()

    lab = evaluate(20, pool=Pool(engines), meanwhile=kill)
    assert (lab.figures.samples, lab.figures.errors) == (40, 0)


def test_the_samples_of_a_problem_share_an_engine() -> None:
    engines = [RecordingEngine(4, name="engine 0"), RecordingEngine(4, name="engine 1")]
    evaluate(2, samples=4, pool=Pool(engines))
    assert [sorted({request.group_id for request in engine.requests}) for engine in engines] == [["e3/g0"], ["e3/g1"]]


def test_cancelled_it_leaves_nothing_running() -> None:
    async def cancel(lab: Lab, task: "asyncio.Task[Evaluation]") -> None:
        await asyncio.sleep(1.5)
        assert (await lab.engine.health())[0].num_running == 4
        task.cancel()

    lab = evaluate(20, engine=RecordingEngine(4), meanwhile=cancel)
    assert isinstance(lab.error, asyncio.CancelledError) and not lab.of("eval")


def test_engines_without_a_slot_are_an_error_not_a_wait() -> None:
    assert isinstance(evaluate(engine=RecordingEngine(0)).error, RunError)


def test_the_events_say_where_it_took_place() -> None:
    in_round, alone = evaluate(index=3), evaluate()
    kinds = {"eval_dispatch": 10, "eval_response": 10, "eval": 1}
    for lab in (in_round, alone):
        assert {kind: len(lab.of(kind)) for kind in kinds} == kinds and len(lab.events) == 21
    assert all(event["round"] == 3 for event in in_round.events)
    assert all("round" not in event for event in alone.events)
    (event,) = in_round.of("eval")
    assert event["version"] == VERSION and event["start"] == 0.0 and event["wait"] == 0.0
    assert event["accuracy"] == in_round.figures.accuracy.value and event["low"] <= event["accuracy"] <= event["high"]


def test_categories_come_from_the_tasks() -> None:
    problems = [
        Problem(problem_id=f"p{i}", prompt="", prompt_ids=(i,), task={"gold": i, "category": "even" if i % 2 == 0 else "odd"})
        for i in range(5)
    ]
    lab = evaluate(problems=problems, verifier=FakeVerifier(reward=lambda task, text: float(task["gold"] % 2)))
    assert lab.result is not None
    found = {name: (figures.problems, figures.accuracy.value) for name, figures in lab.result.categories.items()}  # type: ignore[union-attr]
    assert found == {"even": (3, 0.0), "odd": (2, 1.0)}
