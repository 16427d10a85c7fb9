"""The process that forks the verifier's workers: the pool's only child, warmed up once, with a single thread.

    driver  --control-->  nursery  --fork-->  worker, worker, ...
       `----------- one channel a worker ---------'

Not the fork server of `multiprocessing`: that imports the driver's main module again in each child (a user's script without a
guard would run again, a console script costs 0.3 s a worker), and outlives the pool.

A worker is forked with everything imported, so one that was killed is replaced in milliseconds. Each worker leads a process
group, which is killed as a whole: what a reward function has started ends with it. All workers are children of this process,
which reaps them; it ends when the driver's end of `control` closes, and the kernel kills the workers when it ends (`worker`).

Lines on `control` are JSON lists:

    driver    ["fork", n] (with the worker's end of its channel), ["kill", n], ["nice", n], ["idle", n]
    nursery   ["ready"] or ["fault", kind, message], ["born", n, pid], ["ended", n, exit code]
"""

import contextlib
import gc
import importlib
import json
import os
import pickle
import selectors
import signal
import socket
import struct
import sys
from collections import deque

from common.rewards import scorers, worker

LENGTH = struct.Struct("!I")  # of the pickled Setup, the first thing on `control`
DEMOTIONS = ("nice", "idle")  # one after the other
_BYTES = 65536
_FILES = 32  # at one time


def main(fileno: int) -> None:
    """Until the driver closes the other end of the socket `fileno`."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the driver does with it; the workers inherit this
    control = socket.socket(fileno=fileno)
    setup = pickle.loads(_exactly(control, LENGTH.unpack(_exactly(control, LENGTH.size))[0]))
    for name in setup.preload:
        importlib.import_module(name)
    fault = worker.warm_up(setup) if setup.function is None else None
    if fault is not None:
        _say(control, "fault", fault["kind"], fault["message"])
        return
    if setup.function is None:
        for task in setup.examples:  # the first call of a library is slow: let all workers have it behind them
            scorers.score(None, task, "\\boxed{1}")
    gc.collect()
    gc.freeze()  # a collection in a worker must not touch, and so copy, the pages that all of them share
    _Nursery(control, setup).run()


class _Nursery:
    def __init__(self, control: socket.socket, setup: worker.Setup) -> None:
        self._control = control
        self._setup = setup
        self._lifeline, self._own_end = os.pipe()
        self._pids: dict[int, int] = {}  # by the worker's number
        self._files: deque[int] = deque()  # channels received and not yet given to a worker
        self._text = b""
        self._ended, self._ended_writer = socket.socketpair()

    def run(self) -> None:
        self._ended.setblocking(False)
        self._ended_writer.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._ended_writer.fileno(), warn_on_full_buffer=False)
        try:
            _say(self._control, "ready")
            with selectors.DefaultSelector() as selector:
                selector.register(self._control, selectors.EVENT_READ)
                selector.register(self._ended, selectors.EVENT_READ)
                while self._serve(selector):
                    pass
        except OSError:  # the driver is gone
            pass
        finally:
            for pid in self._pids.values():
                kill_group(pid)
                os.waitpid(pid, 0)

    def _serve(self, selector: selectors.BaseSelector) -> bool:
        """One turn; False once the driver has closed."""
        ready = {key.fileobj for key, _ in selector.select()}
        if self._ended in ready:
            with contextlib.suppress(BlockingIOError):
                self._ended.recv(_BYTES)
            self._reap()
        return self._control not in ready or self._receive()

    def _receive(self) -> bool:
        data, files, _, _ = socket.recv_fds(self._control, _BYTES, _FILES)
        self._files.extend(files)
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            command, number = json.loads(line)
            if command == "fork":
                self._fork(number, self._files.popleft())
            elif number in self._pids:  # else it ended a moment ago
                {"kill": kill_group, "nice": _nice, "idle": _idle}[command](self._pids[number])
        return bool(data)

    def _fork(self, number: int, file: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_worker(file)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # here too: a kill may come before the child has done it
        os.close(file)
        self._pids[number] = pid
        _say(self._control, "born", number, pid)

    def _become_worker(self, file: int) -> None:
        """Never returns."""
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for socket_ in (self._control, self._ended, self._ended_writer):
                socket_.close()
            os.close(self._own_end)
            for other in self._files:
                os.close(other)
            worker.run(self._setup, socket.socket(fileno=file), self._lifeline)
        except ConnectionError:
            pass
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                kill_group(pid)  # what it has left behind
                del self._pids[number]
                _say(self._control, "ended", number, os.waitstatus_to_exitcode(status))


def kill_group(group: int) -> None:
    """Kill a worker with all that it has started; `group` is its process id."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _nice(pid: int) -> None:
    """A tenth of the share that others have."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 10)


def _idle(pid: int) -> None:
    """Let it run only where nobody else wants the core."""
    with contextlib.suppress(OSError):
        if sys.platform == "linux":
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.setpriority(os.PRIO_PROCESS, pid, 19)


def _say(control: socket.socket, *words: object) -> None:
    control.sendall(json.dumps(words).encode("ascii") + b"\n")


def _exactly(control: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = control.recv(length - len(data))
        if not part:
            raise SystemExit("the driver ended")
        data += part
    return data
