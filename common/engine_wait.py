"""Waiting for an engine where there is none: bounded, used at once when one comes, and with the cause when none will."""

import asyncio

from common.errors import EngineError
from common.protocols import Engine

_HEALTH_S = 1.5  # the protocol promises an answer within a second


async def wait_for_engine(engine: Engine, timeout_s: float) -> None:
    """Return when there is capacity, at once where the engines are alive and simply have none.

    Raises EngineError with the cause where none is alive and none is on its way, or `timeout_s` have passed.
    """
    changed = asyncio.Event()
    unlisten = engine.listen(changed.set)
    try:
        async with asyncio.timeout(max(timeout_s, 0.0)):
            while engine.capacity == 0 and engine.is_recovering:
                changed.clear()
                await changed.wait()
    except TimeoutError as error:
        states = await _states(engine, "")
        text = f"no engine came back within supervision.no_engine_s ({timeout_s:g} s)"
        raise EngineError(f"{text}: {states}" if states else text) from error
    finally:
        unlisten()
    if engine.capacity == 0:
        await check_alive(engine, EngineError("none is left"), _HEALTH_S)


async def check_alive(engine: Engine, error: EngineError, timeout_s: float) -> None:
    """Raises EngineError where no engine is alive and none is on its way; `error`: what led to the question."""
    if engine.is_recovering:
        return
    try:
        async with asyncio.timeout(timeout_s):
            states = await _states(engine, str(error))
    except TimeoutError:
        raise EngineError(f"no engine answers; last: {error}") from error
    if states and not engine.is_recovering:
        raise EngineError(f"no engine is alive: {states}") from error


async def _states(engine: Engine, default: str) -> str:
    """Why each engine is dead; empty where one is alive."""
    health = await engine.health()
    if any(state.is_alive for state in health):
        return ""
    return "; ".join(f"{state.name}: {state.detail or default}" for state in health)
