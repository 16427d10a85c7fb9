"""The inside of one verifier process: limits, its end with the nursery's, and the calls, one after the other.

Frames in both directions: `FRAME` (length of the body in bytes, number of the call), then the body. A call's body is a pickle of
(task, response), which the driver trusts itself with; an answer's is JSON, so that nothing is unpickled that a stranger's code
may have written. The first answer, number 0, says that the worker is ready, or which setting is at fault.
"""

import faulthandler
import fcntl
import json
import os
import pickle
import random
import resource
import signal
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.protocols import Score
from common.records import Verdict
from common.rewards import scorers

FRAME = struct.Struct("!IQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the workers of a pool are started with."""

    function: str | None
    examples: tuple[dict[str, Any], ...]
    memory_bytes: int  # address space beyond that of the start
    preload: tuple[str, ...]  # modules that the nursery imports for all workers


def warm_up(setup: Setup) -> dict[str, str] | None:
    """Import and build what the calls need; the fault of a setting as plain values, None if all is well."""
    try:
        scorers.warm_up(setup.function, setup.examples)
    except InputError as error:
        return {"kind": type(error).__name__, "message": str(error)}
    return None


def run(setup: Setup, channel: socket.socket, lifeline: int) -> None:
    """Answer calls until the driver closes the channel."""
    _follow(lifeline)
    faulthandler.enable()
    random.seed()  # or all workers would draw the same numbers
    fault = warm_up(setup) if setup.function is not None else None  # the shipped scorers were warmed up by the nursery
    _limit_memory(setup.memory_bytes)
    own = os.getpid()
    with channel.makefile("rb") as calls:
        _send(channel, 0, fault)
        while header := calls.read(FRAME.size):
            length, number = FRAME.unpack(header)
            answer = _answer(setup.function, calls.read(length))
            if os.getpid() != own:  # the scorer forked, and this is its child
                os._exit(0)
            _send(channel, number, answer)


def _answer(function: str | None, call: bytes) -> dict[str, Any]:
    try:
        task, response = pickle.loads(call)
    except Exception as error:
        reason = " ".join(f"the task cannot be read in the worker: {type(error).__name__}: {error}".split())
        fields = asdict(Score(reward=None, status=Verdict.ERROR, reason=reason))
    else:
        fields = asdict(scorers.score(function, task, response))
    return {"score": fields, "cpu_s": time.process_time()}


def _send(channel: socket.socket, number: int, answer: object) -> None:
    body = json.dumps(answer).encode("ascii")
    channel.sendall(FRAME.pack(len(body), number) + body)


def _follow(lifeline: int) -> None:
    """Have the kernel kill this process when the nursery's end of the pipe closes, whatever code runs here (Linux).

    Owner and signal belong to the open file, which the workers share, so each opens the pipe anew.
    """
    if sys.platform == "linux":
        own = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
        try:
            os.read(own, 1)
        except BlockingIOError:
            return
        os._exit(1)  # ended before we listened


def _limit_memory(beyond_start: int) -> None:
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + beyond_start
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
