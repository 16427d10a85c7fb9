"""Publishing: version by version, each checked before and after (rule 6), and every planted fault found."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from round_lab import config_of

from common.errors import PublishError, TrainerDiedError
from common.publish import Publisher
from common.records import Request, Response, Sampling
from common.spool import TensorLayout
from common.testing import FakeEngine, FakeTrainer, make_problems, run_virtual
from common.testing.fakes import FAKE_LAYOUT
from common.timeline import Event, Timeline


class Lab:
    """A publisher with fakes; `calls` are the moments that matter, in order."""

    def __init__(self, root: Path, engine: FakeEngine | None, trainer: FakeTrainer | None, **settings: Any) -> None:
        self.root, self.engine, self.trainer = root, engine or FakeEngine(), trainer or FakeTrainer()
        self.events: list[Event] = []
        timeline = Timeline(None, asyncio.get_running_loop().time)
        timeline.listen(self.events.append)
        self.publisher = Publisher(
            config_of(**settings),
            engines=self.engine,
            trainer=self.trainer,
            layout=settings.pop("layout", FAKE_LAYOUT),
            spool_root=root,
            probe_prompts=[problem.prompt_ids for problem in make_problems(4)],
            timeline=timeline,
        )

    @property
    def phases(self) -> list[tuple[str, int]]:
        return [(event["phase"], event["version"]) for event in self.events]

    async def version(self) -> int:
        (health,) = await self.engine.health()
        return health.weight_version


def in_lab(
    root: Path,
    test: Callable[[Lab], Awaitable[None]],
    engine: FakeEngine | None = None,
    trainer: FakeTrainer | None = None,
    **settings: Any,
) -> Lab:
    async def run() -> Lab:
        lab = Lab(root, engine, trainer, **settings)
        await test(lab)
        return lab

    return run_virtual(run())


def train(trainer: FakeTrainer) -> None:
    trainer.weight += 0.25


class DeafEngine(FakeEngine):
    """Acknowledges a publish from `deaf_from` on, and serves the weights it had."""

    def __init__(self, deaf_from: int) -> None:
        super().__init__()
        self._deaf_from = deaf_from

    async def publish(self, version: int, spool: Path) -> None:
        weight = self._weight
        await super().publish(version, spool)
        if version >= self._deaf_from:
            self._weight = weight


class RefusingEngine(FakeEngine):
    """Refuses the versions in `refused`, untouched; hangs at those in `hangs`."""

    def __init__(self, refused: tuple[int, ...] = (), hangs: tuple[int, ...] = ()) -> None:
        super().__init__()
        self._refused, self._hangs = refused, hangs

    async def publish(self, version: int, spool: Path) -> None:
        if version in self._refused:
            raise PublishError(f"engine 0 refused version {version}")
        if version in self._hangs:
            await asyncio.sleep(1e9)
        await super().publish(version, spool)


class StaleAnswers(FakeEngine):
    """Answers a probe with the version before."""

    async def generate(self, request: Request, sampling: Sampling) -> Response:
        self._version -= 1
        try:
            return await super().generate(request, sampling)
        finally:
            self._version += 1


class SpoilingTrainer(FakeTrainer):
    """Its spool is changed by `spoil` after it was written, as a bad disk would."""

    def __init__(self, spoil: Callable[[Path], None]) -> None:
        super().__init__()
        self._spoil = spoil

    async def export_weights(self, spool: Path, version: int) -> None:
        await super().export_weights(spool, version)
        self._spoil(spool)


class SlowTrainer(FakeTrainer):
    """Never ends an export; half of it is there."""

    async def export_weights(self, spool: Path, version: int) -> None:
        spool.mkdir(parents=True)
        (spool / "half.safetensors").write_bytes(b"half")
        await asyncio.sleep(1e9)


def flip_last_byte(spool: Path) -> None:
    (file,) = spool.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def remove_shard(spool: Path) -> None:
    for file in spool.glob("*.safetensors"):
        file.unlink()


def empty_manifest(spool: Path) -> None:
    (spool / "manifest.json").write_text("{")


def test_a_publish_has_four_phases_in_order(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        assert await lab.version() == 0

    lab = in_lab(tmp_path, test)
    assert lab.phases == [("export", 0), ("check", 0), ("transfer", 0), ("probe", 0)]
    assert lab.publisher.last_gap < 1e-6


def test_events_name_the_round_that_the_weights_come_from(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        await lab.publisher.publish(1, 7)

    lab = in_lab(tmp_path, test)
    assert [event.get("round") for event in lab.events] == [None] * 4 + [7] * 4


def test_an_export_alone_reaches_no_engine(tmp_path: Path) -> None:
    """The last version is exported and checked, not transferred."""

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        await lab.publisher.export(1)
        assert await lab.version() == 0

    assert in_lab(tmp_path, test).phases[4:] == [("export", 1), ("check", 1)]


def test_only_the_newest_spool_stays_on_disk(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        for version in range(3):
            await lab.publisher.publish(version)
            assert [path.name for path in tmp_path.iterdir()] == [f"v{version}"]
        lab.publisher.close()

    in_lab(tmp_path, test)
    assert not tmp_path.exists()


def test_the_checksum_tells_the_weights_apart(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        sums = []
        for version in range(3):
            await lab.publisher.publish(version)
            sums.append(lab.publisher.sha256())
            if version == 1:
                train(lab.trainer)
        assert sums[0] == sums[1] != sums[2]

    in_lab(tmp_path, test)


def test_the_model_written_holds_the_weights_exported_last(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        train(lab.trainer)
        await lab.publisher.export(1)
        (tmp_path / "model").mkdir()
        lab.publisher.write_model(tmp_path / "model")

    lab = in_lab(tmp_path / "spool", test)
    assert load_file(tmp_path / "model" / "model.safetensors")["w"].tolist() == [lab.trainer.weight]


@pytest.mark.parametrize("version", [0, 1])
def test_an_engine_that_keeps_old_weights_is_found(tmp_path: Path, version: int) -> None:
    """Pain 6: the transfer is acknowledged, the weights are not used. At version 0 they are random (pain 22)."""

    async def test(lab: Lab) -> None:
        for number in range(version):
            await lab.publisher.publish(number)
        train(lab.trainer)
        with pytest.raises(PublishError, match=rf"version {version}: .* does not serve the weights it was given"):
            await lab.publisher.publish(version)

    in_lab(tmp_path, test, DeafEngine(version))


def test_a_prefix_cache_that_outlives_a_publish_is_found(tmp_path: Path) -> None:
    """Pain 5: the probe asks the same prompts each time, so that a stale cache answers from old weights."""

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        train(lab.trainer)
        with pytest.raises(PublishError, match=r"limits\.max_probe_gap"):
            await lab.publisher.publish(1)

    in_lab(tmp_path, test, FakeEngine(keeps_cache=True))


def test_an_answer_of_another_version_is_found(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        with pytest.raises(PublishError, match="a probe of weight version 3 was answered by version 2"):
            await lab.publisher.publish(3)

    in_lab(tmp_path, test, StaleAnswers())


@pytest.mark.parametrize("spoil", [flip_last_byte, remove_shard, empty_manifest])
def test_a_spool_that_was_spoilt_touches_no_engine(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    async def test(lab: Lab) -> None:
        with pytest.raises(PublishError, match=r"checksum|cannot be read"):
            await lab.publisher.publish(0)
        assert await lab.version() == -1
        assert list(tmp_path.iterdir()) == [], "the spool is left"

    assert in_lab(tmp_path, test, trainer=SpoilingTrainer(spoil)).phases == [("export", 0)]


def test_weights_that_the_engines_do_not_expect_touch_no_engine(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        lab.publisher._layout = {**FAKE_LAYOUT, "b": TensorLayout((2,), "float32")}
        with pytest.raises(PublishError, match="tensor b: expected by the engines, missing from the spool"):
            await lab.publisher.publish(0)
        assert await lab.version() == -1

    in_lab(tmp_path, test)


def test_an_engine_that_refuses_ends_the_publish_and_the_next_one_works(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        train(lab.trainer)
        with pytest.raises(PublishError, match="engine 0 refused version 1"):
            await lab.publisher.publish(1)
        assert await lab.version() == 0
        await lab.publisher.publish(2)
        assert await lab.version() == 2 and [path.name for path in tmp_path.iterdir()] == ["v2"]

    in_lab(tmp_path, test, RefusingEngine(refused=(1,)))


def test_a_transfer_that_hangs_ends_at_its_deadline_and_the_next_publish_works(tmp_path: Path) -> None:
    """Pain 8, rule 7."""

    async def test(lab: Lab) -> None:
        await lab.publisher.publish(0)
        start = asyncio.get_running_loop().time()
        with pytest.raises(PublishError, match=r"phase transfer did not end within limits.publish_timeout_s \(30 s\)"):
            await lab.publisher.publish(1)
        assert asyncio.get_running_loop().time() - start == pytest.approx(30)
        await lab.publisher.publish(2)
        assert await lab.version() == 2

    in_lab(tmp_path, test, RefusingEngine(hangs=(1,)), limits={"publish_timeout_s": 30})


def test_an_export_that_hangs_ends_at_its_deadline(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        with pytest.raises(TrainerDiedError, match="phase export did not end"):
            await lab.publisher.publish(0)
        assert list(tmp_path.iterdir()) == [], "half a spool is left"

    in_lab(tmp_path, test, trainer=SlowTrainer(), limits={"publish_timeout_s": 30})


def test_a_probe_that_hangs_ends_at_its_deadline(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        with pytest.raises(PublishError, match="phase probe did not end"):
            await lab.publisher.publish(0)

    in_lab(tmp_path, test, FakeEngine(seconds=lambda request: 1e9), limits={"publish_timeout_s": 30})


def test_a_limit_of_ones_own_is_kept(tmp_path: Path) -> None:
    """The largest gap allowed is a setting; a float32 weight differs from the trainer's float64 by far less than 1e-9 allows."""

    async def test(lab: Lab) -> None:
        lab.trainer.weight = 0.1  # float32 holds it inexactly
        await lab.publisher.publish(0)
        assert lab.publisher.last_gap <= 1e-9

    in_lab(tmp_path, test, limits={"max_probe_gap": 1e-9})
