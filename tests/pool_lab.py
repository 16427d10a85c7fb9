"""A pool of fakes with its keeper and publisher, in virtual time: engines that die, hang, refuse or fall silent when told."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from round_lab import RecordingTrainer, config_of

from common.config import Config
from common.errors import EngineDiedError, PublishError
from common.keeper import Keeper
from common.pool import Pool
from common.publish import Publisher
from common.records import Request, Response, Sampling
from common.rollout_side import Parts
from common.round import Round, RoundResult
from common.testing import FakeEngine, FakeVerifier, make_problems, run_virtual
from common.testing.fakes import FAKE_LAYOUT
from common.timeline import Event, Timeline

START_S = 20.0  # of a new engine


class Engine(FakeEngine):
    """`on_publish` and `on_probe`: what it does wrong at a weight version (die, hang, refuse, half)."""

    def __init__(self, place: int, capacity: int = 8, **settings: Any) -> None:
        self.on_publish: dict[int, str] = settings.pop("on_publish", {})
        self.on_probe: dict[int, str] = settings.pop("on_probe", {})
        self.poison: Hashable = settings.pop("poison", None)  # a request that kills it
        super().__init__(capacity, name=f"engine-{place}", **settings)
        self.place_index = place
        self.is_silent = False
        self.versions: list[int] = []  # of the responses that it gave

    async def publish(self, version: int, spool: Path) -> None:
        fault = self.on_publish.get(version)
        if fault == "refuse":
            raise PublishError(f"{self._name} refused version {version}")
        if fault == "half":
            self._weight = -1e3
            self.is_alive = False
            raise PublishError(f"{self._name}: publish of weight version {version} failed: tensor w was in no shard")
        if fault in ("die", "hang"):
            self._weight = -1e3  # half new
            if fault == "hang":
                await asyncio.Event().wait()
            self.die()
        if not self.is_alive:
            raise EngineDiedError(f"{self._name} is dead")
        await super().publish(version, spool)

    async def generate(self, request: Request, sampling: Sampling) -> Response:
        if str(request.request_id).startswith(f"probe/v{self._version}/"):
            if self.on_probe.get(self._version) == "die":
                self.die()
            if self.on_probe.get(self._version) == "hang":
                await asyncio.Event().wait()
        if self.is_silent:
            await asyncio.Event().wait()
        if request.request_id == self.poison and self.is_alive:
            asyncio.get_running_loop().call_later(0.5, self.die)
        response = await super().generate(request, sampling)
        self.versions.append(response.version_end)
        return response

    async def beat(self) -> None:
        if self.is_silent:
            await asyncio.Event().wait()
        await super().beat()

    def die(self) -> None:
        if self.is_alive:
            super().die()


@dataclass
class Lab:
    """What a test works with."""

    config: Config
    trainer: RecordingTrainer
    pool: Pool
    publisher: Publisher
    keeper: Keeper
    timeline: Timeline
    engines: list[Engine]  # all that ever were, in the order of their starts
    events: list[Event] = field(default_factory=list)
    num_starting: int = 0

    def of(self, kind: str, **fields: Any) -> list[Event]:
        return [e for e in self.events if e["kind"] == kind and all(e.get(name) == value for name, value in fields.items())]

    @property
    def now(self) -> float:
        return self.timeline.now()

    def served(self) -> set[tuple[int, float]]:
        """Version and weight of each engine in the pool."""
        return {(engine._version, engine._weight) for engine in self.pool.engines}  # type: ignore[attr-defined]

    async def round(self, index: int = 0, **parts: Any) -> RoundResult:
        """Sampled from version `index`; publishes the next."""
        done = Parts(
            engine=self.pool,
            trainer=self.trainer,
            verifier=FakeVerifier(),
            decode=str,
            timeline=self.timeline,
            publish=lambda: self.publisher.publish(index + 1, index),
            **parts,
        )
        problems = make_problems(self.config.groups_per_round)
        return await Round(self.config, done, index=index, version=index).run(problems)

    async def settled(self) -> None:
        """No engine is on its way any more."""
        while self.pool.is_recovering:
            await asyncio.sleep(1.0)


Make = Callable[[int, int], Engine]  # place, number of the start (from 0)


def in_lab(
    root: Path,
    test: Callable[[Lab], Awaitable[None]],
    *,
    num_engines: int = 1,
    make: Make = lambda place, number: Engine(place),
    start: Callable[[int, int], Awaitable[None]] | None = None,
    trainer: RecordingTrainer | None = None,
    late: Mapping[int, float] = MappingProxyType({}),
    **settings: Any,
) -> Lab:
    """`start` runs in place of the seconds that a new engine takes; it may raise or hang. `late`: seconds of engines of the
    first start that are not there yet, by place. Afterwards nothing may be left.
    """
    labs: list[Lab] = []

    async def main() -> None:
        engines = [make(place, place) for place in range(num_engines)]
        config = config_of(**settings)
        timeline = Timeline(None, asyncio.get_running_loop().time)
        pool, chosen = Pool(engines), trainer or RecordingTrainer()
        publisher = Publisher(
            config,
            engines=pool,
            trainer=chosen,
            layout=FAKE_LAYOUT,
            spool_root=root / "spool",
            probe_prompts=((1, 2), (3, 4)),
            timeline=timeline,
        )

        async def begin(place: int, seconds: float = START_S) -> Engine:
            lab.num_starting += 1
            try:
                await (start(place, len(lab.engines)) if start else asyncio.sleep(seconds))
            finally:
                lab.num_starting -= 1
            lab.engines.append(make(place, len(lab.engines)))
            return lab.engines[-1]

        keeper = Keeper(config, pool=pool, publisher=publisher, start=begin, timeline=timeline)
        lab = Lab(config, chosen, pool, publisher, keeper, timeline, engines)
        timeline.listen(lab.events.append)
        labs.append(lab)
        pool.pending = {place: asyncio.create_task(begin(place, seconds)) for place, seconds in late.items()}
        keeper.keep()
        try:
            await asyncio.wait_for(test(lab), 1e6)
        finally:
            await keeper.close()
            await pool.close()
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"still running: {left}"
        assert lab.num_starting == 0
        for engine in engines:
            assert engine.is_closed, f"{engine._name} is left"
            assert engine.max_running <= engine.capacity
            assert not engine._running

    run_virtual(main())
    return labs[0]


def check_round(lab: Lab, result: RoundResult) -> None:
    """Books, whole groups, one version, no group twice, and no request to a dead engine."""
    result.books.check()
    trained = [group for group in lab.trainer.groups if str(group.group_id).startswith(f"r{result.index}/")]
    assert result.books.trained == len(trained) == len({group.group_id for group in trained})
    for group in trained:
        assert [sample.request.member for sample in group.samples] == list(range(lab.config.responses_per_group))
        stamps = {(sample.response.version_start, sample.response.version_end) for sample in group.samples}
        assert stamps == {(result.version, result.version)}
