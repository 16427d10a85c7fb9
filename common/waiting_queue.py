"""The asyncio wrapper of `CompleteGroupQueue`: adds the wait, and a gate for the serial schedule; all rules are the queue's."""

import asyncio
from collections.abc import Hashable

from common.queue import CompleteGroupQueue, QueuedGroup
from common.records import Dispatch, QueueSnapshot, Reason


class WaitingQueue:
    """One producer side, one consumer. A cancelled `take` has taken nothing."""

    def __init__(self, queue: CompleteGroupQueue, *, is_open: bool = True) -> None:
        self._queue = queue
        self._is_open = is_open
        self._changed = asyncio.Event()

    def put(self, group: QueuedGroup) -> None:
        """As `CompleteGroupQueue.put`."""
        self._queue.put(group)
        self._changed.set()

    def drop(self, group_id: Hashable, reason: Reason, *, order: int | None = None) -> None:
        """As `CompleteGroupQueue.drop`."""
        self._queue.drop(group_id, reason, order=order)
        self._changed.set()

    def extend(self, num_groups: int) -> None:
        """As `CompleteGroupQueue.extend`."""
        self._queue.extend(num_groups)

    def fail(self, error: BaseException) -> None:
        """As `CompleteGroupQueue.fail`; it also wakes a `take` that waits at the gate."""
        self._queue.fail(error)
        self._is_open = True
        self._changed.set()

    def open(self) -> None:
        """Let `take` through: the serial schedule calls this when the rollout is done."""
        self._is_open = True
        self._changed.set()

    async def take(self) -> Dispatch:
        """The next group, as soon as there is one. Raises RoundFinished, and the error of `fail`."""
        while True:
            if self._is_open and (dispatch := self._queue.take_nowait()) is not None:
                return dispatch
            self._changed.clear()
            await self._changed.wait()

    def snapshot(self) -> QueueSnapshot:
        """As `CompleteGroupQueue.snapshot`."""
        return self._queue.snapshot()
