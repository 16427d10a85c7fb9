"""A trainer that hangs in a publish is one that died: it starts again, and the run ends as if nothing had been (rule 7)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pool_lab import Lab as PoolLab
from pool_lab import in_lab
from round_lab import RecordingTrainer
from run_lab import Lab, run_run

from common.errors import RunError, TrainerDiedError
from common.testing import FakeEngine

LIMIT_S = 40.0
SETTINGS: dict[str, Any] = {"rounds": 3, "group_order": "submission", "limits": {"publish_timeout_s": LIMIT_S}}


class Hanging(RecordingTrainer):
    """Never answers these calls, counted from 0, nor an export of this version; it has written half a spool by then."""

    def __init__(self, exports: Sequence[int] = (), probes: Sequence[int] = (), version: int | None = None) -> None:
        super().__init__()
        self._exports, self._probes, self._version = exports, probes, version
        self.num_exports = self.num_probes = 0
        self._half: Path | None = None

    async def export_weights(self, spool: Path, version: int) -> None:
        self.num_exports += 1
        assert self.num_exports < 50, "the run never ends"
        if self.num_exports - 1 in self._exports or version == self._version:
            spool.mkdir(parents=True)
            self._half = spool / "half.safetensors"
            self._half.write_bytes(b"half")
            await asyncio.Event().wait()
        await super().export_weights(spool, version)

    async def restart(self) -> None:
        assert self._half is None or not self._half.exists(), "half a spool is left"
        await super().restart()

    async def logprobs(self, *args: Any) -> list[list[float]]:
        self.num_probes += 1
        if self.num_probes - 1 in self._probes:
            await asyncio.Event().wait()
        return await super().logprobs(*args)


def run(root: Path, trainer: RecordingTrainer, **settings: Any) -> Lab:
    root.mkdir(exist_ok=True)
    return run_run(root, trainer=trainer, engine=FakeEngine(64), **{**SETTINGS, **settings})


@pytest.mark.parametrize("number", [0, 1, 2, 3])
@pytest.mark.parametrize("every", [None, 1])
def test_a_hang_in_any_export_is_answered_by_a_restart_and_a_replay(tmp_path: Path, number: int, every: int | None) -> None:
    """Before the first round, after one, and after the last; nothing on disk is sampled again."""
    whole = run(tmp_path / "whole", RecordingTrainer())
    trainer = Hanging(exports=[number])
    lab = run(tmp_path / "cut", trainer, checkpoint={"every": every})
    assert lab.error is None and lab.result is not None and whole.result is not None
    assert lab.result.final_weights_sha256 == whole.result.final_weights_sha256
    (fault,) = lab.of("fault")
    assert fault["part"] == "trainer" and "stuck: phase export did not end within limits.publish_timeout_s" in fault["detail"]
    assert trainer.num_restarts == 1 and len(lab.of("recovered", part="trainer")) == 1
    dispatched = [event["request"] for event in lab.of("dispatch")]
    assert len(dispatched) == len(set(dispatched)) == 3 * 4 * 4, "a request was asked for twice"


@pytest.mark.parametrize("every", [None, 1])
def test_a_hang_that_repeats_itself_ends_the_run_however_long_each_takes(tmp_path: Path, every: int | None) -> None:
    """Each takes most of the window of restarts, so they count from the last round that ended; one that is replayed is none."""
    supervision = {"max_restarts": 3, "window_s": 50}
    trainer = Hanging(version=2)
    lab = run(tmp_path, trainer, supervision=supervision, checkpoint={"every": every})
    assert isinstance(lab.error, RunError) and isinstance(lab.error.__cause__, TrainerDiedError)
    assert "trainer died 4 times within" in str(lab.error) and "phase export did not end" in str(lab.error)
    assert trainer.num_restarts == 3
    lab = run_run(tmp_path, resume=True, **SETTINGS)
    assert lab.error is None


def test_hangs_far_apart_count_one_by_one(tmp_path: Path) -> None:
    """Between them rounds end: each is answered, however many there are."""
    supervision = {"max_restarts": 1, "window_s": 10}
    trainer = Hanging(exports=[1, 4, 7])
    lab = run(tmp_path, trainer, rounds=6, supervision=supervision, checkpoint={"every": 1})
    assert lab.error is None and trainer.num_restarts == 3


@pytest.mark.parametrize("num_engines", [1, 2])
def test_a_hang_in_the_probe_is_the_trainers_and_no_engines(tmp_path: Path, num_engines: int) -> None:
    """The engines have the new weights by then, unproven: nobody is served with them."""

    async def test(lab: PoolLab) -> None:
        await lab.publisher.publish(0)
        lab.trainer.weight = 1.25
        with pytest.raises(TrainerDiedError, match=r"stuck: phase probe did not end within limits.publish_timeout_s \(40 s\)"):
            await lab.publisher.publish(1)
        assert lab.publisher.served is None
        lab.engines[0].die()  # the trainer starts again meanwhile: the new one joins at once, without weights
        await asyncio.sleep(1)
        await lab.settled()
        lab.trainer.weight = 1.0
        await lab.publisher.export(0)
        await lab.publisher.serve(0)
        assert lab.served() == {(0, 1.0)}
        await lab.settled()
        assert lab.served() == {(0, 1.0)} and len(lab.pool.engines) == num_engines

    trainer = Hanging(probes=[1])
    lab = in_lab(tmp_path, test, num_engines=num_engines, trainer=trainer, limits={"publish_timeout_s": LIMIT_S})
    (fault,) = lab.of("fault")
    assert fault["detail"] == "engine-0 died", "the hang counts against no engine, nor does the failed publish keep one out"
