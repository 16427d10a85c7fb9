"""An asyncio loop whose clock jumps to the next timer instead of waiting: long rounds in milliseconds, always the same."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for `timeout` seconds, moves the loop's clock on by as much."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: every task waits and no timer is set")
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`loop.time()` starts at 0. For code without sockets and threads of its own."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return float(self._jumping.now_s)

    def run_in_executor(self, executor: object, func: Callable[[*Args], Result], *args: *Args) -> asyncio.Future[Result]:
        """At once, in this thread: the clock would not wait for another."""
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run_virtual(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` on a VirtualTimeLoop; use `asyncio.get_running_loop().time` as the timeline's clock."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)
