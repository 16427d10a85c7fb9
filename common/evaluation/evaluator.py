"""One evaluation of one weight version: every problem, `eval.samples` times, scored as in a training.

    waiting ── a slot is free ──> sampler.sample ──> verifier.score ──> outcome
       ^                                │ no usable response: again, up to limits.max_retries; then the sample is lost
       └────────────────────────────────┘

It has the deadlines of a round (rule 7), and the same check that every response carries the one version (rule 1). The samples
of a problem are asked for together, so the pool puts them on one engine. A sample depends on the evaluation's seed, its problem
and its number alone. Where no engine is left and none is on its way, it raises; a verifier that fails costs one sample.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from common.books import Books
from common.config import Config
from common.errors import RunError
from common.evaluation.figures import Figures, Outcome, by_category, figures_of
from common.materialize import make_sample, task_of
from common.open_group import Member, OpenGroup, Stage
from common.protocols import Engine, Problem, Score, Verifier
from common.records import FinishReason, Group, Request, Response, Times, Verdict
from common.sampler import Loss, Sampler, max_moves
from common.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluation found. Seconds are of the timeline."""

    version: int
    round: int | None  # in which it took place; None: in none
    start_s: float
    end_s: float
    wait_s: float  # for how long it held up what came after it
    settings: dict[str, Any]  # what the figures depend on, beside the model: sampling, seed, samples and number of problems
    figures: Figures
    categories: dict[str, Figures]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        categories = {name: figures.to_json() for name, figures in self.categories.items()}
        return {**asdict(self), "figures": self.figures.to_json(), "categories": categories}

    def fields(self) -> dict[str, Any]:
        """Of its event in the timeline."""
        figures = self.figures
        right = figures.accuracy
        where = {} if self.round is None else {"round": self.round}
        same = ("problems", "samples", "reward_mean", "length_mean", "cut_off_share", "no_answer_share", "timeouts", "errors")
        return {
            "start": round(self.start_s, 6),
            "version": self.version,
            **where,
            "accuracy": right and right.value,
            "low": right and right.low,
            "high": right and right.high,
            "pass_at": {str(k): found and found.value for k, found in figures.pass_at.items()},
            **{name: getattr(figures, name) for name in same},
            "wait": round(self.wait_s, 6),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalParts:
    """What an evaluation works with."""

    engine: Engine
    verifier: Verifier
    decode: Callable[[Sequence[int]], str]
    timeline: Timeline
    problems: Sequence[Problem]
    on_group: Callable[[Group, Problem], None] = lambda group, problem: None  # the samples of a problem, lost ones left out
    on_end: Callable[[Evaluation], None] = lambda evaluation: None


def settings_of(config: Config) -> dict[str, Any]:
    """What an evaluation's figures depend on, but for its problems; what is not set for it is the training's."""
    sampling = config.eval.sampling(config.sampling.build())
    names = ("temperature", "top_p", "top_k", "min_p", "max_tokens")
    return {
        "samples": config.eval.samples,
        **{name: getattr(sampling, name) for name in names},
        "stop_token_ids": list(sampling.stop_token_ids),
        "seed": config.eval.seed,
    }


def eval_seed(seed: int, problem_id: str, member: int) -> int:
    """A sampling seed of its own for each (seed, problem, sample), whatever else is asked; 62 bits."""
    text = f"{seed}/eval/{problem_id}/{member}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 2


class Evaluator:
    """`await Evaluator(...).run()`; one object serves one evaluation, in round `index` or in none."""

    def __init__(self, config: Config, parts: EvalParts, *, version: int, index: int | None = None) -> None:
        self._config, self._parts, self._version, self._index = config, parts, version, index
        self._sampler = Sampler(
            config,
            index=index,
            version=version,
            engine=parts.engine,
            timeline=parts.timeline,
            books=Books(),  # of no round
            sampling=config.eval.sampling(config.sampling.build()),
            prefix="eval_",
        )
        groups = [self._open(order, problem) for order, problem in enumerate(parts.problems)]
        self._waiting = deque((member, group) for group in groups for member in group.members)
        self._num_asked = len(self._waiting)
        self._in_flight: dict[str, Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcomes: list[Outcome] = []

    async def run(self, held_up_s: Callable[[], float] = lambda: 0.0) -> Evaluation:
        """All samples and their figures. `held_up_s`: for how long something has waited for the end of this, when it comes.

        Raises EngineError where no engine is alive. Whatever happens, nothing of it is left in the engines.
        """
        timeline = self._parts.timeline
        start_s = timeline.now()
        unlisten = self._parts.engine.listen(self._admit)
        try:
            self._admit()
            while self._tasks or await self._has_engine_again():
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                self._tasks -= done
                for task in done:
                    task.result()
        finally:
            unlisten()
            await self._sampler.stop(self._in_flight.values(), self._tasks)
        if self._waiting:
            raise RunError(f"{self.describe()}, and nothing runs: the engines' capacity is {self._parts.engine.capacity}")
        ks = self._config.eval.pass_at
        evaluation = Evaluation(
            version=self._version,
            round=self._index,
            start_s=start_s,
            end_s=timeline.now(),
            wait_s=held_up_s(),
            settings={**settings_of(self._config), "problems": len(self._parts.problems)},
            figures=figures_of(self._outcomes, ks),
            categories=by_category(self._outcomes, ks),
        )
        timeline.emit("eval", **evaluation.fields())
        self._parts.on_end(evaluation)
        return evaluation

    async def _has_engine_again(self) -> bool:
        """Where samples wait and nothing runs: whether an engine has come, so that something does."""
        if self._waiting and self._parts.engine.capacity == 0:
            await self._sampler.await_engine()
            self._admit()
        return bool(self._tasks)

    def describe(self) -> str:
        """How far it is, in one line."""
        return (
            f"evaluation of weight version {self._version}: {len(self._outcomes)} of {self._num_asked} samples scored, "
            f"{len(self._in_flight)} in flight"
        )

    def _open(self, order: int, problem: Problem) -> OpenGroup:
        name = f"e{self._version}/g{order}"
        members = [
            Member(
                Request(
                    request_id=f"{name}/m{member}",
                    group_id=name,
                    order=order,
                    member=member,
                    prompt_ids=problem.prompt_ids,
                    seed=eval_seed(self._config.eval.seed, problem.problem_id, member),
                )
            )
            for member in range(self._config.eval.samples)
        ]
        return OpenGroup(name, order, problem, members)

    def _admit(self) -> None:
        while self._waiting and len(self._in_flight) < self._parts.engine.capacity:
            member, group = self._waiting.popleft()
            member.admitted_s = self._parts.timeline.now()
            member.enter(Stage.SAMPLING, member.admitted_s)
            self._in_flight[str(member.request.request_id)] = member
            task = asyncio.create_task(self._serve(member, group))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # of many errors, one is raised
            self._tasks.add(task)

    async def _serve(self, member: Member, group: OpenGroup) -> None:
        """One try of one sample, up to its verdict."""
        try:
            result = await self._sampler.sample(member, group)
        finally:
            del self._in_flight[str(member.request.request_id)]
        if isinstance(result, Loss):
            self._lose(member, group, result)
        self._admit()
        if isinstance(result, Response):
            await self._score(member, group, result)

    def _lose(self, member: Member, group: OpenGroup, loss: Loss) -> None:
        member.num_moves += loss.is_move
        member.num_retries += not loss.is_move
        if member.num_retries > self._config.limits.max_retries or member.num_moves >= max_moves(self._config):
            self._end(member, group, Stage.FAILED)
            return
        request = {"request": member.request.request_id, "group": group.group_id}
        self._parts.timeline.emit("eval_retry", **self._sampler.where, **request, reason=loss.reason)
        member.enter(Stage.WAITING, self._parts.timeline.now())
        self._waiting.appendleft((member, group))

    async def _score(self, member: Member, group: OpenGroup, response: Response) -> None:
        timeline, limit = self._parts.timeline, self._config.limits.group_timeout_s
        member.enter(Stage.SCORING, timeline.now())
        text = self._parts.decode(response.token_ids)
        try:
            async with asyncio.timeout(limit):
                score = await self._parts.verifier.score(task_of(group.problem, response), text)
        except TimeoutError:
            score = Score(reward=None, status=Verdict.ERROR, reason=f"no verdict within limits.group_timeout_s ({limit:g} s)")
        times = Times(admitted_s=member.admitted_s, finished_s=member.since_s, scored_s=timeline.now())
        member.sample = make_sample(member.request, response, score, text, times)
        self._end(member, group, Stage.DONE)

    def _end(self, member: Member, group: OpenGroup, stage: Stage) -> None:
        """The sample has its outcome; with the last of its problem, they are handed on."""
        member.enter(stage, self._parts.timeline.now())
        problem, sample = group.problem, member.sample
        self._outcomes.append(
            Outcome(
                problem=str(group.group_id),
                category=str(problem.task.get("category") or ""),
                status=Verdict.ERROR if sample is None else sample.status,
                reward=None if sample is None else sample.reward,
                num_tokens=None if sample is None else sample.num_tokens,
                is_cut_off=sample is not None and sample.response.finish_reason is FinishReason.LENGTH,
            )
        )
        samples = tuple(group.samples())
        if samples and not group.members_in(Stage.WAITING, Stage.SAMPLING, Stage.SCORING):
            done = Group(group_id=group.group_id, order=group.order, weight_version=self._version, samples=samples)
            self._parts.on_group(done, problem)
