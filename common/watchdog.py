"""The watchdog of rule 7: where nothing happens for a while, it says who waits for whom. It ends nothing; deadlines do."""

import asyncio
from collections.abc import Callable

from common.protocols import Engine
from common.timeline import Event, Timeline

# Events that are no progress: what the watchdog itself writes.
_SILENT = frozenset({"stall"})


class Watchdog:
    """Emits a `stall` event after each `stall_s` without another event."""

    def __init__(self, stall_s: float, *, index: int, engine: Engine, timeline: Timeline, describe: Callable[[], str]) -> None:
        self._stall_s, self._index, self._engine, self._timeline, self._describe = stall_s, index, engine, timeline, describe
        self._last_s = timeline.now()
        self._unlisten = timeline.listen(self._notice)

    def _notice(self, event: Event) -> None:
        if event["kind"] not in _SILENT:
            self._last_s = event["t"]

    async def run(self) -> None:
        """Until cancelled."""
        told_s = self._last_s
        try:
            while True:
                since = max(self._last_s, told_s)
                await asyncio.sleep(max(since + self._stall_s - self._timeline.now(), 0.01))
                if self._timeline.now() - max(self._last_s, told_s) >= self._stall_s:
                    told_s = self._timeline.now()
                    await self._tell()
        finally:
            self._unlisten()

    async def _tell(self) -> None:
        quiet_s = self._timeline.now() - self._last_s
        message = f"nothing happened for {quiet_s:.0f} s; {self._describe()}; engines: {await self._engines()}"
        self._timeline.emit("stall", round=self._index, message=message)

    async def _engines(self) -> str:
        try:
            async with asyncio.timeout(self._stall_s):
                health = await self._engine.health()
        except TimeoutError:
            return "do not answer"
        states = (
            f"{h.name} {'alive' if h.is_alive else 'dead'}, {h.num_running} running, version {h.weight_version}" for h in health
        )
        return "; ".join(states)
