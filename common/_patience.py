"""Nobody starves: whose turn it is where a rule of preference passes a group over for too long.

Pure core: the standard library alone. A turn is what waits of a group when it is chosen. A group that waits lets so many turns
pass as its limit says, counted from when it began to wait or from its own last turn; turns of what an engine
lost count for nothing.
"""

from heapq import heappop, heappush

from common._admission import WaitingGroup

_PATIENCE = 2  # turns for each group that was open


class Patience:
    """Finds the group that was passed over as often as it may be."""

    def __init__(self) -> None:
        self._num_turns = 0  # that count
        self._number = 0  # of the waits so far
        self._waits: dict[WaitingGroup, int] = {}  # the wait that goes on of each group that has one
        self._new: set[WaitingGroup] = set()  # something was submitted since the last turn
        self._by_limit: list[tuple[int, int, WaitingGroup]] = []  # heap: number of turns, wait; some are over
        self._ended: list[tuple[int, WaitingGroup]] = []  # heap of waits whose number of turns is reached; some are over

    def is_waiting(self, group: WaitingGroup) -> bool:
        return group in self._waits

    def submitted(self, group: WaitingGroup) -> None:
        """Its next turn counts."""
        self._new.add(group)

    def wait(self, group: WaitingGroup, num_open: int) -> None:
        """From now on, whatever it waited before."""
        self._number += 1
        self._waits[group] = self._number
        heappush(self._by_limit, (self._num_turns + _PATIENCE * num_open, self._number, group))

    def take_turn(self, group: WaitingGroup, num_open: int) -> None:
        """It is chosen; what it cannot have admitted in this turn waits anew."""
        if group in self._new:
            self._new.remove(group)
            self._num_turns += 1
        self.wait(group, num_open)

    def forget(self, group: WaitingGroup) -> None:
        """Nothing of it waits any longer."""
        self._waits.pop(group, None)
        self._new.discard(group)

    def first(self) -> WaitingGroup | None:
        """Of the groups whose limit is reached, the one that has waited longest."""
        while self._by_limit and self._by_limit[0][0] <= self._num_turns:
            _, number, group = heappop(self._by_limit)
            heappush(self._ended, (number, group))
        while self._ended and self._waits.get(self._ended[0][1]) != self._ended[0][0]:
            heappop(self._ended)
        return self._ended[0][1] if self._ended else None
