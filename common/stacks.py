"""`kill -USR1 PID`: what every task and thread of a run does, in `logs/stacks-NNN.txt`, and who waits for whom. The run goes on.

A thread of its own is woken by the signal (`signal.set_wakeup_fd`) and does all of it, so the answer comes also while the event
loop is blocked, and no lock that the main thread holds can be in its way. `faulthandler` is not asked for all threads: it reads
their frames while they run, which ended the process in one of five tests of a hundred signals. Engines and ranks that listen
for the signal write into their own logs.
"""

import asyncio
import faulthandler
import linecache
import os
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from common.rundir import RunDir
from common.timeline import Timeline

_MAX_NAMES = 8  # of tasks that stand at the same place
_SIGNAL = signal.SIGUSR1
_CLOSE_S = 5.0  # for a dump that is being written
_WORKERS = "ray::"  # titles of the processes that are signalled

Place = tuple[str, int, str]  # file, line, function


@dataclass(frozen=True, slots=True)
class TaskStack:
    """Where a task stands, outermost call first, and what it waits for."""

    name: str
    places: tuple[Place, ...]
    waits_for: str


@contextmanager
def stack_dumps(run_dir: RunDir, timeline: Timeline, console: Console) -> Iterator[None]:
    """For the time of the block the signal writes into the run's logs, and says so on the console."""
    dumps = _Dumps(run_dir.logs, timeline, console)
    dumps.open()
    try:
        yield
    finally:
        dumps.close()


class _Dumps:
    def __init__(self, logs: Path, timeline: Timeline, console: Console) -> None:
        self._logs, self._timeline, self._console = logs, timeline, console
        self._main = threading.get_ident()
        self._before: Any = signal.SIG_DFL
        self._pipe: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._watch, name="stack dumps", daemon=True)

    def open(self) -> None:
        """Nothing where it cannot be done, as outside the main thread."""
        with suppress(ValueError):
            faulthandler.unregister(_SIGNAL)
            self._before = signal.signal(_SIGNAL, lambda *_: None)
            self._pipe = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._pipe[1], False)
            signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
            self._thread.start()

    def close(self) -> None:
        if self._pipe is None:
            return
        signal.set_wakeup_fd(-1)
        faulthandler.register(_SIGNAL, all_threads=False)  # as `common.cli` has it
        os.close(self._pipe[1])
        self._thread.join(_CLOSE_S)

    def _watch(self) -> None:
        """One byte for each signal of the process; the end of the pipe is the end of the block."""
        assert self._pipe is not None
        while numbers := os.read(self._pipe[0], 4096):
            if _SIGNAL in numbers:  # several that came at once have one answer
                with suppress(Exception):  # a dump never hurts the run
                    self._answer()
        os.close(self._pipe[0])

    def _answer(self) -> None:
        frames, names = sys._current_frames(), {thread.ident: thread.name for thread in threading.enumerate()}
        who, tasks = _who_waits(self._timeline), list(task_stacks(frames[self._main]))
        numbers = [int(path.stem[7:]) for path in self._logs.glob("stacks-*.txt") if path.stem[7:].isdigit()]
        path = self._logs / f"stacks-{max(numbers, default=-1) + 1:03d}.txt"
        with path.open("x", encoding="utf-8") as file:
            file.write(f"Who waits for whom: {who}\n\n{show_tasks(tasks)}\n{len(frames)} threads:\n")
            for ident, frame in frames.items():
                file.write(f"\n{names.get(ident, f'thread {ident}')}\n{_show(_frames(frame))}")
            file.write("".join(f"\nAlso asked: {told}" for told in ask_workers()) + "\n")
        self._console.print(f"stacks: {path}; {who}", markup=False, highlight=False, soft_wrap=True)


def _who_waits(timeline: Timeline) -> str:
    try:
        return timeline.describe() if timeline.describe is not None else "no round goes on"
    except Exception as error:  # the signal may have come in the middle of a change
        return f"cannot be told at this moment ({type(error).__name__}: {error})"


def task_stacks(frame: FrameType | None) -> Iterator[TaskStack]:
    """Of every task of the event loop whose thread is at `frame`; none where none runs there."""
    loop = _loop_of(frame)
    if loop is None:
        return
    current = asyncio.current_task(loop)
    for task in asyncio.all_tasks(loop):
        with suppress(Exception):
            places = _frames(frame) if task is current else list(_awaits(task.get_coro()))
            yield TaskStack(task.get_name(), tuple(places), "nothing: it runs" if task is current else _waits_for(task))


def _loop_of(frame: FrameType | None) -> asyncio.AbstractEventLoop | None:
    while frame is not None:
        if isinstance(loop := frame.f_locals.get("self"), asyncio.AbstractEventLoop):
            return loop
        frame = frame.f_back
    return None


def _awaits(coroutine: Any) -> Iterator[Place]:
    """The chain of coroutines and generators that a suspended task consists of."""
    while coroutine is not None:
        frame = next((found for kind in ("cr", "gi", "ag") if (found := getattr(coroutine, f"{kind}_frame", None))), None)
        if frame is not None:
            yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname
        awaited = (getattr(coroutine, name, None) for name in ("cr_await", "gi_yieldfrom", "ag_await"))
        coroutine = next((found for found in awaited if found is not None), None)


def _frames(frame: FrameType | None) -> list[Place]:
    places: list[Place] = []
    while frame is not None:
        places.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    return places[::-1]


def _waits_for(task: "asyncio.Task[Any]") -> str:
    waiter = getattr(task, "_fut_waiter", None)
    if isinstance(waiter, asyncio.Task):
        return f"task {waiter.get_name()}"
    children = [child for child in getattr(waiter, "_children", ()) if not child.done()]  # of a gather
    if children:
        return "tasks " + ", ".join(child.get_name() if isinstance(child, asyncio.Task) else "a future" for child in children)
    return "its turn" if waiter is None else f"a {type(waiter).__name__}"


def show_tasks(tasks: list[TaskStack]) -> str:
    """Those that stand at the same place together, the rarest first: a thousand requests are one stack."""
    groups: defaultdict[tuple[tuple[Place, ...], str], list[str]] = defaultdict(list)
    for task in tasks:
        groups[task.places, task.waits_for].append(task.name)
    lines = [f"{len(tasks)} tasks:\n"]
    for (places, waits_for), names in sorted(groups.items(), key=lambda item: len(item[1])):
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        lines.append(f"\n{', '.join(sorted(names)[:_MAX_NAMES])}{more} (waits for {waits_for})\n")
        lines.append(_show(places))
    return "".join(lines)


def _show(places: Iterable[Place]) -> str:
    return "".join(f"  {file}:{line} {name}: {linecache.getline(file, line).strip()}\n" for file, line, name in places)


def ask_workers() -> Iterator[str]:
    """Signal the run's engines and ranks on this machine that listen for it; it would end any other process."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):
            title = " ".join(process.cmdline())
            if title.startswith(_WORKERS) and catches(process.pid):
                os.kill(process.pid, _SIGNAL)
                yield f"{title.strip()} (process {process.pid}), in its own log"


def catches(pid: int) -> bool:
    """Whether a process has an answer to the signal. Linux; elsewhere no."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    mask = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")), 0)
    return bool(mask >> (_SIGNAL - 1) & 1)
