"""Where a request runs: on its group's own replica while that has room, for the prefix cache, else on the one with most room.

    running on a replica <= its capacity

Replicas come and go: one that was lost leaves its place empty, and another may join there.
A plain synchronous object, used by the pool of real engines and by the simulator. Costs: O(log replicas) a request, amortized.
"""

from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush

from common.errors import EngineError


class Placement:
    """Counts what runs on each replica."""

    def __init__(self, capacities: Sequence[int]) -> None:
        self._capacities = list(capacities)
        self._room = list(capacities)
        self._lost: set[int] = set()
        self._homes: dict[Hashable, int] = {}  # group id -> replica that has its prompt
        self._emptiest: list[tuple[int, int]] = []  # heap of (-room, index); entries that are not up to date are skipped
        self._rebuild()

    @property
    def serving(self) -> list[int]:
        """Replicas that were not lost."""
        return [index for index in range(len(self._room)) if index not in self._lost]

    def place(self, group_id: Hashable) -> int:
        """The replica for the next request of this group; nothing is taken yet. Raises EngineError where there is no room."""
        home = self._homes.get(group_id)
        if home is not None and home not in self._lost and self._room[home] > 0:
            return home
        index = self._most_room()
        if home is None or home in self._lost:
            self._homes[group_id] = index
        return index

    def take(self, index: int) -> None:
        """A request runs there."""
        self._change(index, -1)

    def give(self, index: int) -> None:
        """A request has left."""
        self._change(index, 1)

    def lose(self, index: int) -> None:
        """Never place there again, unless another joins at this place."""
        self._lost.add(index)

    def join(self, index: int, capacity: int) -> None:
        """An idle replica at a place that was lost, or at a new one."""
        for new in range(len(self._room), index + 1):
            self._capacities.append(0)
            self._room.append(0)
            self._lost.add(new)
        self._capacities[index] = self._room[index] = capacity
        self._lost.discard(index)
        heappush(self._emptiest, (-capacity, index))

    def forget_homes(self) -> None:
        """Prefix caches were reset."""
        self._homes.clear()

    def _change(self, index: int, by: int) -> None:
        self._room[index] += by
        heappush(self._emptiest, (-self._room[index], index))
        if len(self._emptiest) > 8 * len(self._room) + 64:
            self._rebuild()

    def _rebuild(self) -> None:
        self._emptiest = [(-room, index) for index, room in enumerate(self._room)]
        heapify(self._emptiest)

    def _most_room(self) -> int:
        while self._emptiest:
            room, index = self._emptiest[0]
            if index not in self._lost and -room == self._room[index]:
                if room == 0:
                    num_slots = sum(self._capacities[index] for index in self.serving)
                    raise EngineError(f"no engine has room: all {num_slots} slots of the pool are taken")
                return index
            heappop(self._emptiest)
        raise EngineError("no engine of the pool is alive")
