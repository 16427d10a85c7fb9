"""The inside of one verifier process: limits, output, its end with the driver's, and the call itself."""

import faulthandler
import fcntl
import os
import resource
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.protocols import Score
from common.rewards import scorers


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a worker is started with."""

    function: str | None
    examples: tuple[dict[str, Any], ...]
    memory_bytes: int  # address space beyond that of the start
    log: str | None
    lifeline: Connection  # its other end closes when the driver ends


@dataclass(slots=True)
class _State:
    function: str | None = None
    fault: InputError | None = None


_state = _State()


def set_up(setup: Setup) -> None:
    """Run once in each new worker. A fault of the settings is kept for `check`: a worker that died of it would start forever."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Python handler would wait for the C code that hangs
    _follow(setup.lifeline)
    if setup.log is not None:
        _redirect(Path(setup.log))
    _state.function = setup.function
    try:
        scorers.warm_up(setup.function, setup.examples)
    except InputError as error:
        _state.fault = error
    _limit_memory(setup.memory_bytes)


def check() -> None:
    """Raise what was wrong with the settings."""
    if _state.fault is not None:
        raise _state.fault


def score(task: dict[str, Any], response: str) -> Score:
    """One call."""
    return scorers.score(_state.function, task, response)


def _follow(lifeline: Connection) -> None:
    """Have the kernel kill this process when the driver's end closes, whatever code runs here (Linux).

    Owner and signal belong to the open file, which the workers share, so each opens the pipe anew.
    """
    if sys.platform == "linux":
        own = os.open(f"/proc/self/fd/{lifeline.fileno()}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    if lifeline.poll(0):  # ended before we listened
        os._exit(1)


def _redirect(log: Path) -> None:
    with log.open("a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()


def _limit_memory(beyond_start: int) -> None:
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + beyond_start
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
