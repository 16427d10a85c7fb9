"""A beat asks the EngineCore itself, and asks nothing of one that waits for weights."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import EngineDiedError
from rolloutpipe_torch.rollout.engine import VllmEngine
from tests.vllm_lab import engine_settings


class Core:
    """vLLM's front, before a core that takes one call after the other, and none while it hangs."""

    errored = False

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.num_asked = 0

    async def get_weight_version(self) -> str:
        self.num_asked += 1
        await self.answers.wait()
        return "0"


def engine_of(core: Core) -> VllmEngine:
    engine = VllmEngine(engine_settings(Path(), publish_timeout_s=5))
    engine._llm, engine._fault = core, ""
    return engine


async def is_silent(engine: VllmEngine) -> bool:
    try:
        await asyncio.wait_for(engine.beat(), 0.05)
    except TimeoutError:
        return True
    return False


def test_a_core_that_hangs_leaves_the_beat_without_an_answer() -> None:
    async def test() -> None:
        core = Core()
        engine = engine_of(core)
        assert not await is_silent(engine) and core.num_asked == 1
        core.answers.clear()
        assert await is_silent(engine)
        assert (await engine.health())[0]  # which is why a beat does not ask for it
        core.answers.set()
        assert not await is_silent(engine)

    asyncio.run(test())


def test_a_core_that_waits_for_weights_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a publish, and of a meeting with the trainer; afterwards it is asked again, whether they came or not."""

    base = SimpleNamespace(WeightTransferInitRequest=lambda init_info: None)
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer", "vllm.distributed.weight_transfer.base"):
        monkeypatch.setitem(sys.modules, name, base)  # its import takes seconds

    async def test(of: Callable[[VllmEngine, Any], Awaitable[Any]], fails: bool) -> None:
        core = Core()
        engine = engine_of(core)
        entered, leave = asyncio.Event(), asyncio.Event()

        async def load() -> None:
            core.answers.clear()
            entered.set()
            await leave.wait()
            core.answers.set()
            if fails:
                raise RuntimeError("no weights")

        task = asyncio.ensure_future(of(engine, load))
        await asyncio.wait_for(entered.wait(), 5)
        assert not await is_silent(engine) and core.num_asked == 0
        leave.set()
        await asyncio.gather(task, return_exceptions=True)
        engine._fault = ""
        assert not await is_silent(engine) and core.num_asked == 1

    for fails in (False, True):
        asyncio.run(test(lambda engine, load: engine._run_phases(1, [("load", load)], 5), fails))
        asyncio.run(test(meet, fails))


async def meet(engine: VllmEngine, load: Callable[[], Awaitable[None]]) -> None:
    async def init_weight_transfer_engine(request: object) -> None:
        await load()

    engine._llm.init_weight_transfer_engine = init_weight_transfer_engine
    await engine.join_group({}, 5)


def test_a_dead_engine_says_so() -> None:
    async def test() -> None:
        engine = engine_of(Core())
        await engine.condemn("it was told to")
        with pytest.raises(EngineDiedError, match="told to"):
            await engine.beat()

    asyncio.run(test())
