"""The actor's side of the NCCL route, with an AsyncLLM that only takes notes: which faults leave it serving, and which do not."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # read when vllm is imported; else an installed libtpu is taken for one
from common.errors import EngineError, PublishError
from rolloutpipe_torch.rollout.engine import VllmEngine
from tests.vllm_lab import engine_settings

TENSORS = [("b", "float32", [2, 3]), ("a", "bfloat16", [4])]
INFO = {"master_address": "127.0.0.1", "master_port": 5, "rank_offset": 1, "world_size": 2}
CALLS = ["init_weight_transfer_engine", "pause_generation", "start_weight_update", "update_weights", "finish_weight_update"]
CALLS += ["reset_prefix_cache", "resume_generation"]


class FakeLLM:
    """`faults`: what a call does instead of returning, by name."""

    errored = False

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.faults: dict[str, str] = {}

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, bool]]:
        if name not in CALLS:
            raise AttributeError(name)

        async def call(*args: Any, **kwargs: Any) -> bool:
            self.calls.append((name, args[0] if args else kwargs))
            fault = self.faults.get(name)
            if fault == "hang":
                await asyncio.sleep(1000)
            if fault == "raise":
                raise RuntimeError(f"{name} failed")
            return True

        return call


@pytest.fixture
def engine(tmp_path: Path) -> VllmEngine:
    engine = VllmEngine(engine_settings(tmp_path))
    engine._llm, engine._fault, engine._version = FakeLLM(), "", 0
    return engine


def alive(engine: VllmEngine) -> tuple[bool, int]:
    return asyncio.run(engine.health())[:2]


def test_what_is_sent_is_announced_in_one_update_of_all_tensors_in_order(engine: VllmEngine) -> None:
    asyncio.run(engine.receive(1, TENSORS, 1.0))
    assert [name for name, _ in engine._llm.calls] == CALLS[1:]
    (update,) = [request.update_info for name, request in engine._llm.calls if name == "update_weights"]
    assert update == {"names": ["b", "a"], "dtype_names": ["float32", "bfloat16"], "shapes": [[2, 3], [4]]}
    assert alive(engine) == (True, 1)


def test_joining_tells_the_workers_where_to_meet(engine: VllmEngine) -> None:
    asyncio.run(engine.join_group(INFO, 1.0))
    ((name, request),) = engine._llm.calls
    assert (name, request.init_info) == ("init_weight_transfer_engine", {"group": INFO})


@pytest.mark.parametrize(("fault", "is_alive"), [("raise", True), ("hang", False)])
def test_a_join_that_fails_leaves_an_engine_that_serves_and_one_that_waits_is_dead(
    engine: VllmEngine, fault: str, is_alive: bool
) -> None:
    """A worker that waits for its peers cannot decode."""
    engine._llm.faults["init_weight_transfer_engine"] = fault
    with pytest.raises(EngineError, match=r"engine-0 (could|did) not meet the trainer"):
        asyncio.run(engine.join_group(INFO, 0.05))
    assert alive(engine) == (is_alive, 0)


@pytest.mark.parametrize("fault", ["raise", "hang"])
@pytest.mark.parametrize("call", CALLS[1:])
def test_a_fault_in_each_phase_leaves_the_old_version_or_a_dead_engine(engine: VllmEngine, call: str, fault: str) -> None:
    """Show 3: never a half-new one. Only before the first weight is touched does it serve on."""
    engine._llm.faults[call] = fault
    with pytest.raises(PublishError, match="publish of weight version 1 failed in phase"):
        asyncio.run(engine.receive(1, TENSORS, 0.05))
    assert alive(engine) == (call == "pause_generation", 0)
    if call == "pause_generation":
        engine._llm.faults.clear()
        asyncio.run(engine.receive(2, TENSORS, 1.0))
        assert alive(engine) == (True, 2)


def test_an_engine_that_was_condemned_never_comes_back(engine: VllmEngine) -> None:
    """Also where its last tensor comes after all."""

    async def main() -> None:
        engine._llm.faults["update_weights"] = "hang"
        task = asyncio.create_task(engine.receive(1, TENSORS, 1000.0))
        await asyncio.sleep(0.01)
        await engine.condemn("weight version 1 did not reach it whole")
        for other in asyncio.all_tasks() - {asyncio.current_task(), task}:
            other.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert asyncio.run(engine.health()) == (False, 0, 0, "weight version 1 did not reach it whole")
    engine._llm.faults.clear()
    with pytest.raises(EngineError, match="weight version 1 did not reach it whole"):
        asyncio.run(engine.receive(2, TENSORS, 1.0))


def test_a_load_that_ends_after_the_engine_was_condemned_counts_for_nothing(engine: VllmEngine) -> None:
    async def main() -> None:
        task = asyncio.create_task(engine.receive(1, TENSORS, 1.0))
        await engine.condemn("too late")
        with pytest.raises((EngineError, PublishError), match="too late"):
            await task

    asyncio.run(main())
    assert alive(engine) == (False, 0)
