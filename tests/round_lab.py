"""One round with fakes in virtual time, and what must hold after every round whatever was wrong with it."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from common.config import Config
from common.protocols import Engine, Problem, Score
from common.records import Group, Verdict
from common.rollout_side import Parts
from common.round import Round, RoundResult
from common.testing import FakeEngine, FakeTrainer, FakeVerifier, make_problems, run_virtual
from common.timeline import Event, Timeline

SCHEDULES = ("serial", "cgp", "fgd", "fgd-strict", "adaptive")
MAX_S: float | None = 1e6  # of virtual time, after which a round counts as hanging


class RecordingTrainer(FakeTrainer):
    """Also keeps the groups that it was given."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.groups: list[Group] = []

    async def accumulate(self, groups: Sequence[Group]) -> None:
        await super().accumulate(groups)
        self.groups += groups


class ScriptedVerifier(FakeVerifier):
    """Scores by (gold, how many of its responses were scored before); other responses get alternating 0 and 1."""

    def __init__(self, script: Mapping[tuple[int, int], float | Verdict] | None = None, *, seconds: float = 0.1) -> None:
        super().__init__(seconds=seconds)
        self._script = script or {}

    async def score(self, task: dict[str, Any], response: str) -> Score:
        call = self.calls[task["gold"]]
        await super().score(task, response)
        value = self._script.get((task["gold"], call), float(call % 2))
        if value is Verdict.ERROR:
            return Score(reward=None, status=Verdict.ERROR, reason="planted crash")
        if value is Verdict.TIMEOUT:
            return Score(reward=0.0, status=Verdict.TIMEOUT)
        return Score(reward=float(value), status=Verdict.OK if value == 1 else Verdict.WRONG)


Result = TypeVar("Result")


@dataclass(kw_only=True)
class Outcome(Generic[Result]):
    """What a task leaves that has the engine to itself."""

    events: list[Event] = field(default_factory=list)
    result: Result | None = None
    error: BaseException | None = None
    ended_s: float = 0.0

    def of(self, kind: str) -> list[Event]:
        """Events of one kind."""
        return [event for event in self.events if event["kind"] == kind]

    async def settle(self, task: "asyncio.Task[Result]") -> None:
        """Wait for `task`; an error of it is kept, for the test to expect."""
        await asyncio.wait((task,), timeout=MAX_S)
        self.ended_s = asyncio.get_running_loop().time()
        assert task.done(), "it hangs"
        if task.cancelled():
            self.error = asyncio.CancelledError()
        elif (error := task.exception()) is not None:
            self.error = error
        else:
            self.result = task.result()


@dataclass
class Lab(Outcome[RoundResult]):
    """A round that has ended."""

    config: Config
    engine: FakeEngine
    trainer: RecordingTrainer
    verifier: FakeVerifier
    complete: list[Group] = field(default_factory=list)  # as given to on_group

    @property
    def books(self) -> Any:
        """Of a round that went well."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result.books

    @property
    def drops(self) -> dict[str, Event]:
        """`group_drop` events by group."""
        return {event["group"]: event for event in self.of("group_drop")}


def config_of(**settings: Any) -> Config:
    """R=4, K=4, U=2 unless `settings` say otherwise; nested sections as mappings."""
    base: dict[str, Any] = {
        "model": {"path": "unused"},
        "schedule": "fgd",
        "groups_per_round": 4,
        "responses_per_group": 4,
        "groups_per_update": 2,
        "filter": "keep",
    }
    return Config.model_validate({**base, **settings})


def run_round(
    *,
    engine: FakeEngine | None = None,
    trainer: RecordingTrainer | None = None,
    verifier: FakeVerifier | None = None,
    problems: Sequence[Problem] | None = None,
    num_refills: int = 0,
    index: int = 0,
    version: int = 0,
    meanwhile: Callable[[Lab, "asyncio.Task[RoundResult]"], Awaitable[None]] | None = None,
    publish: Callable[[Lab], Awaitable[None]] | None = None,
    **settings: Any,
) -> Lab:
    """Run one round; `meanwhile` runs beside it. An error of the round is kept in `error`, for the test to expect.

    By default all requests run at once, and the members of a group end in order, so that a script can tell them apart.
    """
    engine = engine or FakeEngine(seconds=lambda request: 1.0 + request.member / 100)
    lab = Lab(config_of(**settings), engine, trainer or RecordingTrainer(), verifier or ScriptedVerifier())
    problems = make_problems(lab.config.groups_per_round) if problems is None else problems
    more = iter(make_problems(lab.config.groups_per_round + num_refills)[lab.config.groups_per_round :])

    async def run() -> None:
        await serve_version(version, lab.trainer, lab.engine)
        timeline = Timeline(None, asyncio.get_running_loop().time)
        timeline.listen(lab.events.append)
        parts = Parts(
            engine=lab.engine,
            trainer=lab.trainer,
            verifier=lab.verifier,
            decode=str,
            timeline=timeline,
            on_group=lambda group, problem: lab.complete.append(group),
            refill=lambda: next(more, None),
            publish=lambda: publish(lab) if publish else asyncio.sleep(0),
        )
        task = asyncio.create_task(Round(lab.config, parts, index=index, version=version).run(problems))
        beside = asyncio.create_task(meanwhile(lab, task)) if meanwhile else None  # type: ignore[arg-type]
        await lab.settle(task)
        if beside is not None:
            await beside
        await check_nothing_runs(lab.engine)
        assert not lab.trainer.is_updating, "an update was left open"
        assert lab.engine.max_running <= lab.engine.capacity, "more requests in flight than the engine has slots"
        assert timeline._listeners == [lab.events.append], "something still listens to the timeline"
        num_events = len(lab.events)
        await asyncio.sleep(2 * lab.config.limits.group_timeout_s)
        assert len(lab.events) == num_events, f"something went on after the round: {lab.events[num_events:]}"

    run_virtual(run())
    if lab.error is None:
        check_books(lab)
    return lab


async def serve_version(version: int, trainer: FakeTrainer, engine: Engine) -> None:
    """From now on the engine serves the trainer's weights, as `version`."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder)
        await trainer.export_weights(spool, version)
        await engine.publish(version, spool)


async def check_nothing_runs(engine: Engine) -> None:
    """No task but this one, and no request."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"still running: {left}"
    assert all(health.num_running == 0 for health in await engine.health()), "requests still run in the engine"


def check_books(lab: Lab) -> None:
    """Rules 1, 2, 3, 5 and 10, after any round that ended without an error."""
    assert lab.result is not None
    books, config, trainer = lab.result.books, lab.config, lab.trainer
    books.check()
    assert books.trained == len(trainer.trained) == len(set(trainer.trained)), "a group was trained twice or lost"
    version = lab.result.version
    for group in trainer.groups:
        members = [sample.request.member for sample in group.samples]
        assert members == list(range(config.responses_per_group)), f"{group.group_id} was trained with members {members}"
        assert {sample.request.group_id for sample in group.samples} == {group.group_id}
        stamps = {(sample.response.version_start, sample.response.version_end) for sample in group.samples}
        assert stamps == {(version, version)}, f"{group.group_id} was trained with versions {stamps}"
    sizes = [update.num_groups for update in lab.result.updates]
    full = min(config.update_groups, books.groups)
    assert all(size == full for size in sizes[:-1]) and all(0 < size <= full for size in sizes[-1:])
    assert sum(sizes) == books.trained
    assert [update.update_index for update in lab.result.updates] == list(range(len(sizes)))
    assert len(lab.drops) == len(lab.of("group_drop")) == books.dropped
    over: set[str] = set()
    for event in lab.events:
        assert event["kind"] == "compute" or event.get("group") not in over, f"after the end of its group: {event}"
        if event["kind"] in ("group_complete", "group_drop") and event.get("filtered") != "failed":
            over.add(event["group"])
    tries = Counter(lab.engine.started)
    assert all(count <= 1 + config.limits.max_retries for count in tries.values())
    assert len(tries) <= (books.groups + books.refilled) * config.responses_per_group
