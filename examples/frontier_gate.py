"""An asyncio semaphore whose waiters enter by group: for a rollout loop that starts one task for each request.

    gate = FrontierGate(num_slots=64)

    async def sample(group, prompt):
        async with gate.slot(group):            # lowest group first, whatever order the tasks were started in
            return await client.generate(prompt)

Nothing beyond the standard library is needed. One event loop; groups are numbered in the order in which they are needed, and the
numbers may go on or start again from round to round.
"""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # not needed where RolloutPipe is installed

from common.policies import FrontierGroupDispatch
from common.records import Request


class FrontierGate:
    """At most `num_slots` inside at once. A cancelled waiter holds nothing up."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._policy = FrontierGroupDispatch()
        self._numbers = itertools.count()
        self._turns: dict[int, asyncio.Future[None]] = {}  # of all who wait or are inside
        self._inside: set[int] = set()

    @asynccontextmanager
    async def slot(self, group: int) -> AsyncIterator[None]:
        """Wait for a slot and hold it; `group` is the number of the group, and its place in the order."""
        if not self._turns:
            self._policy = FrontierGroupDispatch()  # nobody is here: forget the requests of earlier rounds
        number = next(self._numbers)
        turn = self._turns[number] = asyncio.get_running_loop().create_future()
        self._policy.submit([Request(request_id=number, group_id=group, order=group)])
        self._admit()
        try:
            await turn
            yield
        finally:
            del self._turns[number]
            if number in self._inside:
                self._inside.remove(number)
                self._policy.finish(number)
                self._admit()

    def _admit(self) -> None:
        while len(self._inside) < self._num_slots and (admitted := self._policy.admit(1)):
            number: int = admitted[0].request_id  # type: ignore[assignment]
            turn = self._turns.get(number)
            if turn is None or turn.cancelled():
                self._policy.finish(number)  # its task gave up while it waited
            else:
                self._inside.add(number)
                turn.set_result(None)
