"""A discrete-event clock: calls in order of their time, and in the order in which they were planned where times are equal."""

from collections.abc import Callable
from heapq import heappop, heappush


class Agenda:
    """`at(t, call)` plans; `run()` makes the calls until none is left. `now_s` is simulated seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Plan a call; one of the past is made now."""
        self._count += 1
        heappush(self._planned, (max(time_s, self.now_s), self._count, call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Plan a call `delay_s` seconds from now."""
        self.at(self.now_s + delay_s, call)

    def run(self) -> None:
        """Until nothing is planned."""
        planned = self._planned
        while planned:
            self.now_s, _, call = heappop(planned)
            call()
