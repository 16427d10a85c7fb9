"""A publish that fails half way: the old version serves, or the engine is gone; never half a new one (rule 6; pains 6, 8)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pool_lab import START_S, Engine, Lab, check_round, in_lab
from round_lab import RecordingTrainer

from common.errors import PublishError, TrainerDiedError
from common.spool import SpoolWriter

LIMIT_S = 30.0
every_size = pytest.mark.parametrize("num_engines", [1, 2])


class Trainer(RecordingTrainer):
    """`at_export`: what happens at the export of version 1, in place of it or before it."""

    at_export: Callable[[Path], Awaitable[bool]] | None = None

    async def export_weights(self, spool: Path, version: int) -> None:
        if version == 1 and self.at_export is not None and await self.at_export(spool):
            return
        await super().export_weights(spool, version)


def make_with(**faults: Any) -> Callable[[int, int], Engine]:
    """The first engine has the faults."""
    return lambda place, number: Engine(place, **(faults if number == 0 else {}))


def check_consistent(lab: Lab, *versions: int) -> None:
    """All that serve hold exactly the weights of one of these versions, as the trainer had them."""
    served = lab.served()
    assert len(served) == 1, served
    ((version, weight),) = served
    assert version in versions and weight == WEIGHTS[version]


WEIGHTS = {0: 1.0, 1: 1.25, 2: 1.5, 3: 1.75}


async def publish(lab: Lab, version: int) -> None:
    lab.trainer.weight = WEIGHTS[version]
    await lab.publisher.publish(version)


@every_size
@pytest.mark.parametrize(
    ("phase", "fault"),
    [*(("transfer", fault) for fault in ("die", "hang", "half", "refuse")), ("probe", "die"), ("probe", "hang")],
)
def test_an_engine_that_fails_in_a_publish_is_replaced_by_one_with_the_new_version(
    tmp_path: Path, phase: str, fault: str, num_engines: int
) -> None:
    make = make_with(**{"on_publish" if phase == "transfer" else "on_probe": {1: fault}})

    async def test(lab: Lab) -> None:
        await publish(lab, 0)
        await publish(lab, 1)
        check_consistent(lab, 1)
        assert lab.publisher.served is not None and lab.publisher.served[0] == 1
        assert lab.engines[0] not in lab.pool.engines
        if num_engines == 2:
            assert lab.now < LIMIT_S + 10, "it does not wait for the replacement"
        await lab.settled()
        assert len(lab.pool.engines) == num_engines
        check_consistent(lab, 1)
        await publish(lab, 2)
        check_consistent(lab, 2)
        assert all(not engine.is_closed for engine in lab.pool.engines)  # type: ignore[attr-defined]

    lab = in_lab(tmp_path, test, num_engines=num_engines, make=make, limits={"publish_timeout_s": LIMIT_S})
    (event,) = lab.of("fault")
    assert event["part"] == "engine-0"
    assert event["detail"] == "engine-0 died" or "weight version 1" in event["detail"]
    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["v2"]
    assert lab.engines[0].is_closed and max(lab.engines[0].versions) <= (0 if phase == "transfer" else 1)


@every_size
@pytest.mark.parametrize("fault", ["hang", "missing", "spoilt", "die", "raise"])
def test_what_fails_before_the_transfer_leaves_the_old_version_serving(tmp_path: Path, fault: str, num_engines: int) -> None:
    trainer = Trainer()

    async def at_export(spool: Path) -> bool:
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "raise":
            raise TrainerDiedError("trainer rank 0 died")
        if fault == "missing":
            with SpoolWriter(spool, 1) as writer:
                writer.add("other", "float32", (1,), b"\0" * 4)
        if fault == "spoilt":
            await RecordingTrainer.export_weights(trainer, spool, 1)
            (file,) = spool.glob("*.safetensors")
            file.write_bytes(file.read_bytes()[:-1] + b"!")
        return True

    async def test(lab: Lab) -> None:
        await publish(lab, 0)
        trainer.at_export = at_export
        if fault == "die":
            trainer.at_export = None
            lab.engines[0].die()  # while the trainer exports
            await publish(lab, 1)
            check_consistent(lab, 1)
        else:
            kind = TrainerDiedError if fault in ("hang", "raise") else PublishError
            with pytest.raises(kind, match=r"export did not end|tensor w|died"):
                await publish(lab, 1)
            check_consistent(lab, 0)
            assert lab.publisher.served is not None and lab.publisher.served[0] == 0
            lab.engines[0].die()  # a replacement gets what is served, from its spool
            await asyncio.sleep(1)
            await lab.settled()
            check_consistent(lab, 0)
        await publish(lab, 2)
        await lab.settled()
        check_consistent(lab, 2)
        assert len(lab.pool.engines) == num_engines

    in_lab(tmp_path, test, num_engines=num_engines, trainer=trainer, limits={"publish_timeout_s": LIMIT_S})


@every_size
def test_a_check_that_takes_too_long_leaves_the_old_version_serving(
    tmp_path: Path, num_engines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(function: Any, *arguments: Any) -> Any:
        if arguments[1] == 1:
            await asyncio.Event().wait()
        return function(*arguments)

    async def test(lab: Lab) -> None:
        await publish(lab, 0)
        with pytest.raises(PublishError, match="phase check did not end within"):
            await publish(lab, 1)
        check_consistent(lab, 0)
        await publish(lab, 2)
        check_consistent(lab, 2)

    monkeypatch.setattr(asyncio, "to_thread", hang)
    in_lab(tmp_path, test, num_engines=num_engines, limits={"publish_timeout_s": LIMIT_S})


@every_size
def test_what_fails_the_same_way_again_and_again_ends_the_publish_with_its_cause(tmp_path: Path, num_engines: int) -> None:
    async def test(lab: Lab) -> None:
        await publish(lab, 0)
        with pytest.raises(PublishError, match=r"no engine is alive: engine-0: engine-0 died 3 times .*refused version 1"):
            await publish(lab, 1)
        assert lab.publisher.served is None and not lab.pool.engines

    make = lambda place, number: Engine(place, on_publish={1: "refuse"})  # noqa: E731
    lab = in_lab(tmp_path, test, num_engines=num_engines, make=make, supervision={"max_restarts": 2})
    assert len(lab.of("fault")) == 3 * num_engines


def test_a_publish_without_an_engine_waits_for_one_and_not_for_ever(tmp_path: Path) -> None:
    async def hang(place: int, number: int) -> None:
        await asyncio.Event().wait()

    async def test(lab: Lab) -> None:
        await publish(lab, 0)
        lab.engines[0].die()
        with pytest.raises(PublishError, match=r"version 1: .*no engine came back within supervision.no_engine_s \(200 s\)"):
            await publish(lab, 1)
        assert 200 < lab.now < 210

    in_lab(tmp_path, test, start=hang, supervision={"no_engine_s": 200})


def test_wrong_weights_after_a_publish_end_the_run_and_cost_no_engine(tmp_path: Path) -> None:
    """A bug, and no fault: another engine would do the same."""

    class Deaf(Engine):
        async def publish(self, version: int, spool: Path) -> None:
            weight = self._weight
            await super().publish(version, spool)
            self._weight = weight if version else self._weight

    async def test(lab: Lab) -> None:
        await publish(lab, 0)
        with pytest.raises(PublishError, match="does not serve the weights it was given"):
            await publish(lab, 1)
        assert lab.publisher.served is None

    assert not in_lab(tmp_path, test, num_engines=2, make=lambda place, number: Deaf(place)).of("fault")


@every_size
@pytest.mark.parametrize("moment_s", [0.0, 0.5, 5.0])
def test_a_delivery_that_is_cut_off_costs_the_engines_and_mixes_nothing(
    tmp_path: Path, moment_s: float, num_engines: int
) -> None:
    """A trainer that dies ends the round in the middle of a publish: in the transfer, which hangs here, or in the probe."""
    faults = {"on_publish": {1: "hang"}} if moment_s == 5.0 else {}

    async def test(lab: Lab) -> None:
        await publish(lab, 0)
        task = asyncio.create_task(publish(lab, 1))
        await asyncio.sleep(moment_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if moment_s:
            assert lab.publisher.served is None
        lab.trainer.weight = WEIGHTS[1]
        await lab.publisher.export(1)
        await lab.publisher.serve(0)
        check_consistent(lab, 1)
        await lab.settled()
        check_consistent(lab, 1)
        await publish(lab, 2)
        check_consistent(lab, 2)

    lab = in_lab(tmp_path, test, num_engines=num_engines, make=make_with(**faults))
    assert not lab.of("fault"), "it is no engine's fault, and counts against none"


@every_size
def test_serve_probes_what_is_served_already(tmp_path: Path, num_engines: int) -> None:
    async def test(lab: Lab) -> None:
        await publish(lab, 0)
        await lab.publisher.export(0)
        served = lab.publisher.served
        num_events = len(lab.events)
        await lab.publisher.serve(4)
        assert [(event["kind"], event["phase"], event["round"]) for event in lab.events[num_events:]] == [("publish", "probe", 4)]
        assert lab.publisher.served == served == (0, lab.publisher.fingerprint())
        lab.engines[0].die()
        await asyncio.sleep(1)
        await lab.settled()
        check_consistent(lab, 0)

    assert len(in_lab(tmp_path, test, num_engines=num_engines).engines) == num_engines + 1


@every_size
@pytest.mark.parametrize("version", [0, 1])
def test_serve_replaces_engines_that_serve_other_weights_of_that_version_or_a_later_one(
    tmp_path: Path, version: int, num_engines: int
) -> None:
    """A replay that did not come out the same: engines refuse a version that is not newer, so others take their place."""

    async def test(lab: Lab) -> None:
        await publish(lab, 0)
        await publish(lab, 1)
        lab.trainer.weight = 7.0
        await lab.publisher.export(version)
        await lab.publisher.serve(0)
        assert lab.served() == {(version, 7.0)}
        await lab.settled()
        assert lab.served() == {(version, 7.0)} and len(lab.pool.engines) == num_engines
        assert lab.publisher.served == (version, lab.publisher.fingerprint())
        await publish(lab, 3)
        check_consistent(lab, 3)

    lab = in_lab(tmp_path, test, num_engines=num_engines)
    assert len(lab.engines) == 2 * num_engines and not lab.of("fault")


def test_serve_of_a_higher_version_is_a_delivery(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await publish(lab, 0)
        lab.trainer.weight = WEIGHTS[2]
        await lab.publisher.export(2)
        await lab.publisher.serve()
        check_consistent(lab, 2)

    assert len(in_lab(tmp_path, test).engines) == 1


def test_the_spool_of_what_is_served_outlives_an_export_of_the_same_version(tmp_path: Path) -> None:
    """A trainer that was restored exports version 0 anew while an engine dies: its replacement loads what the others serve."""

    async def test(lab: Lab) -> None:
        await publish(lab, 0)
        lab.trainer.weight = 7.0
        for _ in range(3):
            await lab.publisher.export(0)
        lab.engines[0].die()
        await asyncio.sleep(1)
        await lab.settled()
        assert lab.served() == {(0, WEIGHTS[0])}
        assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == ["v0", "v0-again"]

    in_lab(tmp_path, test, num_engines=2)


@pytest.mark.parametrize("offset_s", [0.0, 0.3, 0.9, 1.0, 1.1, 1.9, 2.0, 2.1])
def test_a_replacement_and_a_publish_never_meet(tmp_path: Path, offset_s: float) -> None:
    """The replacement is ready within 2 s before or after a publish begins; every engine ends with the new weights."""

    async def test(lab: Lab) -> None:
        await publish(lab, 0)
        lab.engines[0].die()
        await asyncio.sleep(1.0 + START_S - 1.0 + offset_s)  # pause, start
        await publish(lab, 1)
        await lab.settled()
        check_consistent(lab, 1)
        assert len(lab.pool.engines) == 2

    in_lab(tmp_path, test, num_engines=2)


def test_a_round_whose_publish_kills_an_engine_is_followed_by_the_next(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        for index in range(3):
            check_round(lab, await lab.round(index))

    lab = in_lab(tmp_path, test, num_engines=2, make=make_with(on_publish={1: "half"}))
    assert len(lab.of("fault")) == 1 and len(lab.of("round_end")) == 3
