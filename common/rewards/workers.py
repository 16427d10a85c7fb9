"""The driver's ends: a `Nursery` to start and end workers with, and a `Worker` to send calls to. One thread uses them.

Nothing here waits: what is read arrives in pieces, what is written leaves in pieces, so that neither a worker that stopped
reading nor one that wrote half an answer can hold up the others.
"""

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

from common.protocols import Score
from common.rewards.nursery import DEMOTIONS, LENGTH
from common.rewards.usage import Usage
from common.rewards.worker import FRAME, Setup

LEVELS = len(DEMOTIONS)
MAX_ANSWER = 2**26  # bytes; what claims to be longer is no answer
_BYTES = 2**18
_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from common.rewards.nursery import main; main(int(sys.argv[2]))"
)
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # each worker is one


@dataclass(slots=True, eq=False)
class Call:
    """One response to score."""

    number: int
    body: bytes  # pickle of (task, response)
    future: Future[Score] = field(default_factory=Future)
    tries: int = 0  # so far: what a worker lost before reading it, and what the machine kept waiting, is asked again
    num_lost: int = 0  # of the tries
    is_again: bool = False  # the machine kept it waiting before
    cpu_s: float = 0.0  # that the tries before the present one have had


class State(Enum):
    """Of a worker."""

    STARTING = auto()
    IDLE = auto()
    BUSY = auto()
    ENDING = auto()  # killed, and not yet reaped


class BrokenAnswerError(Exception):
    """What came from a worker is no answer."""


@dataclass(slots=True, eq=False)
class Worker:
    """One process, seen from the driver."""

    number: int
    channel: socket.socket
    state: State = State.STARTING
    since_s: float = 0.0  # when its state began
    look_s: float = 0.0  # when its call is looked at next
    pid: int | None = None
    call: Call | None = None
    is_overdue: bool = False  # its call no longer counts as one of `workers`
    num_answered: int = 0
    level: int = 0  # how often it was demoted, which cannot be undone
    has_started: bool = False  # it has been ready
    has_lost: bool = False  # its call was never read
    fate: str = ""  # why it was killed, where its call has not been answered
    usage: Usage = field(default_factory=Usage)  # when its last call ended
    _out: bytes = b""
    _in: bytearray = field(default_factory=bytearray)

    @property
    def is_warm(self) -> bool:
        """It has answered before, and may soon answer again."""
        return self.num_answered > 0 and self.level == 0 and not self.is_overdue

    def give(self, call: Call, now_s: float) -> None:
        """Send it a call. It must be idle."""
        self.state, self.since_s, self.call = State.BUSY, now_s, call
        call.tries += 1
        self._out = FRAME.pack(len(call.body), call.number) + call.body
        self.send()

    def rest(self, usage: Usage) -> None:
        """Its call is answered."""
        self.state, self.call, self.is_overdue, self.usage = State.IDLE, None, False, usage
        self.num_answered += 1

    def send(self) -> bool:
        """Write what the channel takes; True if something is left."""
        try:
            while self._out:
                self._out = self._out[self.channel.send(self._out) :]
        except BlockingIOError:
            pass
        except OSError:  # it died while idle; its end will be told
            self.has_lost, self._out = True, b""
        return bool(self._out)

    def answers(self) -> list[tuple[int, Any]]:
        """Number and content of each answer that has come. Raises BrokenAnswerError; EOFError where nothing more will."""
        found: list[tuple[int, Any]] = []
        is_open = self._read()
        while len(self._in) >= FRAME.size:
            length, number = FRAME.unpack_from(self._in)
            if length > MAX_ANSWER:
                raise BrokenAnswerError
            if len(self._in) < FRAME.size + length:
                break
            body = bytes(self._in[FRAME.size : FRAME.size + length])
            del self._in[: FRAME.size + length]
            try:
                found.append((number, json.loads(body)))
            except (ValueError, RecursionError) as error:
                raise BrokenAnswerError from error
        if not is_open and not found:
            raise EOFError
        return found

    def _read(self) -> bool:
        try:
            while data := self.channel.recv(_BYTES):
                self._in += data
        except BlockingIOError:
            return True
        except ConnectionResetError:  # it died with the call unread
            self.has_lost = True
        return False

    def used(self, now_s: float) -> Usage:
        """By the present call."""
        return Usage() if self.pid is None else Usage.of(self.pid).since(self.usage, now_s - self.since_s)


class Nursery:
    """The driver's hold on the process that forks workers. Raises OSError where that has ended."""

    def __init__(self, setup: Setup, log: Path | None) -> None:
        """Ctrl-C belongs to the driver: SIGINT is blocked there, from before its first line, and the workers inherit that."""
        self.control, theirs = socket.socketpair()
        with theirs, log.open("ab") if log is not None else contextlib.nullcontext() as output:
            # This thread's mask travels to the child.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-u", "-c", _START, json.dumps(sys.path), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**_ONE_THREAD, **os.environ},
                    pass_fds=[theirs.fileno()],
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._text = b""
        body = pickle.dumps(setup)
        with contextlib.suppress(OSError):  # its end will be told
            self.control.sendall(LENGTH.pack(len(body)) + body)
        self.control.setblocking(False)

    def fork(self, number: int) -> Worker:
        """A new worker, which says when it is ready."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            socket.send_fds(self.control, [_line("fork", number)], [theirs.fileno()])
        return Worker(number=number, channel=ours)

    def tell(self, command: str, number: int) -> None:
        """`kill` the worker, whatever it does, with all that it has started; or one of DEMOTIONS."""
        self.control.sendall(_line(command, number))

    def news(self) -> list[list[Any]]:
        """What it said (module `nursery`). Raises EOFError once it has ended."""
        try:
            data = self.control.recv(_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError
        *lines, self._text = (self._text + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self, patience_s: float = 5.0) -> int:
        """End it with all its workers, and return its exit code. The kernel ends the workers of one that must be killed."""
        self.control.close()
        try:
            return self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _line(*words: object) -> bytes:
    return json.dumps(words).encode("ascii") + b"\n"
