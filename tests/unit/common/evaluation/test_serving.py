"""An evaluation without a trainer survives its engines: others take their place, with the same weights."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pool_lab import START_S, Engine
from round_lab import config_of
from safetensors.numpy import save_file

from common.errors import EngineError, PublishError
from common.evaluation import serving
from common.evaluation.evaluator import EvalParts, Evaluation, Evaluator
from common.evaluation.serving import ServedModel, served
from common.pool import Pool
from common.testing import FakeVerifier, make_problems, run_virtual
from common.timeline import Event, Timeline

VERSION, WEIGHT, NUM_PROBLEMS = 3, 2.5, 10


class Lab:
    """One evaluation of the model in `root`, that `meanwhile` disturbs."""

    def __init__(self, root: Path, *, num_engines: int = 1, make: Callable[[int, int], Engine] | None = None) -> None:
        self.root, self.num_engines = root, num_engines
        self.make = make or (lambda place, number: Engine(place, capacity=4))
        self.engines: list[Engine] = []
        self.events: list[Event] = []
        self.samples: list[tuple[Any, ...]] = []

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["kind"] == kind]

    def run(self, *deaths_s: float, **settings: Any) -> Evaluation:
        (self.root / "model").mkdir(exist_ok=True)
        (self.root / "model" / "config.json").write_text("{}")
        save_file({"w": np.array([WEIGHT], np.float32)}, self.root / "model" / "model.safetensors")
        return run_virtual(self._run(deaths_s, settings))

    async def _run(self, deaths_s: tuple[float, ...], settings: dict[str, Any]) -> Evaluation:
        self.engines = [self.make(place, place) for place in range(self.num_engines)]
        config, pool = config_of(eval={"samples": 2}, sampling={"max_tokens": 6}, **settings), Pool(self.engines)
        timeline = Timeline(None, asyncio.get_running_loop().time)
        timeline.listen(self.events.append)
        parts = EvalParts(
            engine=pool,
            verifier=FakeVerifier(),
            decode=str,
            timeline=timeline,
            problems=make_problems(NUM_PROBLEMS),
            on_group=lambda group, problem: self.samples.extend(
                (s.request.request_id, s.response.token_ids, s.response.logprobs) for s in group.samples
            ),
        )

        async def start(place: int) -> Engine:
            await asyncio.sleep(START_S)
            self.engines.append(self.make(place, len(self.engines)))
            return self.engines[-1]

        async def kill() -> None:
            for death_s in deaths_s:
                await asyncio.sleep(death_s - timeline.now())
                self.engines[-1].die()

        killing = asyncio.create_task(kill())
        model = ServedModel(config, pool, self.root / "model", self.root / "spool", VERSION)
        try:
            async with served(config, pool, model, start, timeline):
                return await asyncio.wait_for(Evaluator(config, parts, version=VERSION).run(), 1e6)
        finally:
            await pool.close()
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
            assert asyncio.all_tasks() == {asyncio.current_task()}, "something still runs"
            assert not (self.root / "spool").exists()


@pytest.mark.parametrize("num_engines", [1, 2])
@pytest.mark.parametrize("deaths_s", [(0.5,), (2.5,), (1.5, 24.0), (1.5, 24.0, 46.5)])
def test_engines_that_die_change_no_sample_and_lose_none(tmp_path: Path, deaths_s: tuple[float, ...], num_engines: int) -> None:
    whole, lab = Lab(tmp_path), Lab(tmp_path, num_engines=num_engines)
    wanted, found = whole.run(), lab.run(*deaths_s if num_engines == 1 else deaths_s[:1])
    assert found.figures == wanted.figures and found.figures.samples == 2 * NUM_PROBLEMS and found.figures.lost == 0
    assert sorted(lab.samples) == sorted(whole.samples)
    assert len(lab.of("fault")) == (len(deaths_s) if num_engines == 1 else 1)
    if num_engines == 1:
        assert [event["part"] for event in lab.of("recovered")] == ["engine-0"] * len(deaths_s)
        assert len(lab.engines) == 1 + len(deaths_s)
    assert all(set(engine.versions) <= {VERSION} for engine in lab.engines)


def test_an_engine_that_falls_silent_is_replaced(tmp_path: Path) -> None:
    class Silent(Engine):
        async def generate(self, *args: Any) -> Any:
            self.is_silent = self.place_index == 0 and len(self.versions) >= 3
            return await super().generate(*args)

    def make(place: int, number: int) -> Engine:
        return (Silent if number == 0 else Engine)(place, capacity=4)

    lab = Lab(tmp_path, make=make)
    assert lab.run(supervision={"silent_s": 20}).figures.lost == 0
    assert [event["detail"] for event in lab.of("fault")] == ["it has not answered for supervision.silent_s (20 s)"]


def test_a_death_that_repeats_itself_ends_the_evaluation_with_its_cause(tmp_path: Path) -> None:
    """And so does the first one without restarts."""
    make = lambda place, number: Engine(place, capacity=4, poison="e3/g2/m0")  # noqa: E731
    lab = Lab(tmp_path, make=make)
    with pytest.raises(EngineError, match=r"no engine is alive: engine-0: engine-0 died 3 times within .*max_restarts 2"):
        lab.run(supervision={"max_restarts": 2})
    assert len(lab.engines) == 3
    with pytest.raises(EngineError, match=r"engine-0 died, and is not started again"):
        Lab(tmp_path).run(1.5, supervision={"max_restarts": 0})


def test_a_new_engine_that_refuses_the_weights_never_answers(tmp_path: Path) -> None:
    faults: Counter[int] = Counter()

    def make(place: int, number: int) -> Engine:
        faults[number] += 1
        return Engine(place, capacity=4, on_publish={VERSION: "half"} if number == 1 else {})

    lab = Lab(tmp_path, make=make)
    assert lab.run(1.5).figures.lost == 0
    assert len(lab.engines) == 3 and lab.engines[1].versions == [] and lab.engines[1].is_closed
    assert "could not be started" in lab.of("fault")[1]["detail"]


@pytest.mark.parametrize("num_engines", [1, 2])
@pytest.mark.parametrize("fault", ["die", "hang", "half", "refuse"])
def test_an_engine_that_fails_while_the_first_weights_load_is_replaced(tmp_path: Path, fault: str, num_engines: int) -> None:
    def make(place: int, number: int) -> Engine:
        return Engine(place, capacity=4, on_publish={VERSION: fault} if number == 0 else {})

    lab = Lab(tmp_path, num_engines=num_engines, make=make)
    wanted = Lab(tmp_path).run()
    assert lab.run(limits={"publish_timeout_s": 30}).figures == wanted.figures
    assert len(lab.of("fault")) == 1 and lab.engines[0].versions == [] and lab.engines[0].is_closed
    if num_engines == 1:
        assert [event["part"] for event in lab.of("recovered")] == ["engine-0"]
        assert {engine._weight for engine in lab.engines[1:]} == {WEIGHT}


def test_an_engine_that_dies_before_the_weights_are_there_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one is ready first, and waits for the spool."""
    lab = Lab(tmp_path)

    async def slowly(function: Any, *arguments: Any) -> Any:
        lab.engines[0].die()
        await asyncio.sleep(3 * START_S)
        return function(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", slowly)
    assert lab.run().figures.lost == 0
    assert len(lab.engines) == 2 and {engine._weight for engine in lab.engines[1:]} == {WEIGHT}
    assert min(event["t"] for event in lab.of("eval_dispatch")) >= 3 * START_S


@pytest.mark.parametrize(
    ("fault", "cause"), [("hang", r"did not end within limits.publish_timeout_s \(30 s\)"), ("die", "is dead")]
)
def test_weights_that_no_engine_takes_end_it_before_the_first_question(tmp_path: Path, fault: str, cause: str) -> None:
    lab = Lab(tmp_path, make=lambda place, number: Engine(place, capacity=4, on_publish={VERSION: fault}))
    with pytest.raises(PublishError, match=rf"weight version 3: .*{cause}.*no engine is alive: engine-0: engine-0 died 3 times"):
        lab.run(limits={"publish_timeout_s": 30}, supervision={"max_restarts": 2})
    assert lab.of("eval_dispatch") == [] and len(lab.engines) == 3


def test_a_spool_that_was_spoilt_reaches_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a bad disk would."""
    write = serving.spool_model

    def spoil(model: Path, spool: Path, version: int) -> None:
        write(model, spool, version)
        (shard,) = spool.glob("*.safetensors")
        shard.write_bytes(shard.read_bytes()[:-1] + b"!")

    monkeypatch.setattr(serving, "spool_model", spoil)
    lab = Lab(tmp_path)
    with pytest.raises(PublishError, match="checksum"):
        lab.run()
    assert [engine._version for engine in lab.engines] == [-1] and not lab.of("fault")


def test_weights_that_are_not_written_in_time_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: Any) -> None:
        await asyncio.sleep(1e4)

    monkeypatch.setattr(asyncio, "to_thread", hang)
    with pytest.raises(PublishError, match=r"not written and checked within limits.publish_timeout_s \(30 s\)"):
        Lab(tmp_path).run(limits={"publish_timeout_s": 30})
