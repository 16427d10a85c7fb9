"""The watchdog of rule 7: where nothing happens for a while, it says who waits for whom. It ends nothing; deadlines do."""

import asyncio
from collections.abc import Callable

from common.errors import EngineError
from common.protocols import Engine, Health
from common.timeline import Event, Timeline

# Events that are no progress: what the watchdog itself writes.
_SILENT = frozenset({"stall"})
# The protocol promises an answer within a second; the message must not wait longer for an engine that breaks it.
_HEALTH_S = 1.5


class Watchdog:
    """Emits a `stall` event after `stall_s` without another event, and again each time that the silence has doubled."""

    def __init__(self, stall_s: float, *, index: int, engine: Engine, timeline: Timeline, describe: Callable[[], str]) -> None:
        self._stall_s, self._index, self._engine, self._timeline, self._describe = stall_s, index, engine, timeline, describe
        self._last_s = timeline.now()
        self._late_s = 0.0  # of the last look

    def _notice(self, event: Event) -> None:
        if event["kind"] not in _SILENT:
            self._last_s = event["t"]

    async def run(self) -> None:
        """Until cancelled."""
        unlisten = self._timeline.listen(self._notice)
        due_after_s, last_s = self._stall_s, self._last_s
        self._timeline.describe = self._describe
        try:
            while True:
                if self._last_s > last_s:
                    due_after_s, last_s = self._stall_s, self._last_s
                due_s = max(last_s + due_after_s, self._timeline.now() + 0.01)
                look_s = min(due_s, self._timeline.now() + self._stall_s)  # an event may come before a late `due_s`
                await asyncio.sleep(look_s - self._timeline.now())
                self._late_s = self._timeline.now() - look_s
                if self._last_s == last_s and self._timeline.now() - last_s >= due_after_s:
                    due_after_s = 2 * (self._timeline.now() - last_s)
                    await self._tell()
        finally:
            self._timeline.describe = None
            unlisten()

    async def _tell(self) -> None:
        quiet_s = self._timeline.now() - self._last_s
        # After a suspend all deadlines have passed at once: that is not the fault of those who wait.
        still = f" (this process stood still for {self._late_s:.0f} s of them)" if self._late_s >= self._stall_s else ""
        message = f"nothing happened for {quiet_s:.0f} s{still}; {self._describe()}; engines: {await self._engines()}"
        self._timeline.emit("stall", round=self._index, message=message)

    async def _engines(self) -> str:
        try:
            async with asyncio.timeout(min(self._stall_s, _HEALTH_S)):
                health = await self._engine.health()
        except (TimeoutError, EngineError):
            return "do not answer"
        return "; ".join(map(_state, health))


def _state(health: Health) -> str:
    life = "alive" if health.is_alive else "dead"
    detail = f" ({health.detail})" if health.detail else ""
    return f"{health.name} {life}, {health.num_running} running, version {health.weight_version}{detail}"
