"""The driver's end of the JAX trainer's start: what takes too long ends, and no process stays."""

import asyncio
from pathlib import Path

import pytest

import rolloutpipe_jax.trainer as module
from common.config import Config
from common.errors import TrainerError


class StuckRanks:
    """A process that loads and then compiles for ever."""

    def __init__(self, *_args, **_settings):
        self.is_closed = False
        StuckRanks.last = self

    async def join(self, timeout_s):
        pass

    async def call(self, method, *args):
        await asyncio.sleep(60)

    def close(self):
        self.is_closed = True


def test_a_compilation_that_takes_too_long_ends_the_start(tiny_model, monkeypatch):
    """Rule 7."""
    monkeypatch.setattr(module, "Ranks", StuckRanks)
    config = Config(trainer="jax", model={"path": str(tiny_model)}, limits={"start_timeout_s": 0.05})
    with pytest.raises(TrainerError, match=r"did not compile within 0\.05 s \(limits\.start_timeout_s\); see .*rank-0\.log"):
        asyncio.run(module.start_trainer(config, tiny_model, Path("logs"), 64))
    assert StuckRanks.last.is_closed
