"""`kill -USR1 PID`: what every task and thread of a run does, in `logs/stacks-NNN.txt`, and who waits for whom. The run goes on.

The stacks of threads are written by `faulthandler`, at once and in C, so also while the event loop is blocked; tasks follow as
soon as the main thread runs Python. What is written and said is done by a thread of its own: the signal may have come while the
main thread holds a lock of the display. Engines and ranks that listen for the signal write their threads into their own logs.
"""

import asyncio
import faulthandler
import linecache
import os
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from common.rundir import RunDir
from common.timeline import Timeline

_MAX_NAMES = 8  # of tasks that stand at the same place
_SIGNAL = signal.SIGUSR1
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
        self._file: IO[str] | None = None  # of the next dump
        self._path = logs
        self._is_answering = False
        self._before: Any = None

    def open(self) -> None:
        """Nothing where it cannot be done, as on a full disk or outside the main thread."""
        with suppress(Exception):
            faulthandler.unregister(_SIGNAL)  # else it would take itself for installed
            self._before = signal.signal(_SIGNAL, self._answer)
            self._next()

    def close(self) -> None:
        with suppress(Exception):
            faulthandler.unregister(_SIGNAL)
            signal.signal(_SIGNAL, self._before or signal.SIG_DFL)
            faulthandler.register(_SIGNAL, all_threads=True)  # as `common.cli` has it
        with suppress(Exception):
            if self._file is not None:
                self._file.close()
                if self._path.stat().st_size == 0:
                    self._path.unlink()

    def _next(self) -> None:
        """Threads of the next signal go into a new file; Python's own answer comes after them."""
        numbers = [int(path.stem[7:]) for path in self._logs.glob("stacks-*.txt") if path.stem[7:].isdigit()]
        path = self._logs / f"stacks-{max(numbers, default=-1) + 1:03d}.txt"
        file = path.open("x", encoding="utf-8")
        faulthandler.register(_SIGNAL, file=file, all_threads=True, chain=True)
        self._file, self._path = file, path

    def _answer(self, number: int, frame: Any) -> None:
        file, path = self._file, self._path
        if file is None or self._is_answering:  # Python may call this again while it runs: one answer for both
            return
        self._is_answering = True
        with suppress(Exception):  # a dump never hurts the run
            who, tasks = _who_waits(self._timeline), list(task_stacks(frame))
            threads = {thread.ident or 0: thread.name for thread in threading.enumerate()}
            self._next()
            told = (file, path, who, tasks, threads)
            threading.Thread(target=self._write, args=told, name="stack dump", daemon=True).start()
        self._is_answering = False

    def _write(self, file: IO[str], path: Path, who: str, tasks: list[TaskStack], threads: dict[int, str]) -> None:
        with suppress(Exception):
            with file:
                file.write("\nThreads by name:\n" + "".join(f"  0x{ident:016x} {name}\n" for ident, name in threads.items()))
                file.write(f"\nWho waits for whom: {who}\n\n{show_tasks(tasks)}")
                file.write("".join(f"\nAlso asked: {told}" for told in ask_workers()) + "\n")
            self._console.print(f"stacks: {path}; {who}", markup=False, highlight=False, soft_wrap=True)


def _who_waits(timeline: Timeline) -> str:
    try:
        return timeline.describe() if timeline.describe is not None else "no round goes on"
    except Exception as error:  # the signal may have come in the middle of a change
        return f"cannot be told at this moment ({type(error).__name__}: {error})"


def task_stacks(frame: Any = None) -> Iterator[TaskStack]:
    """Of every task of the loop that runs in this thread, none without one. `frame`: where the running task is."""
    try:
        current, tasks = asyncio.current_task(), asyncio.all_tasks()
    except RuntimeError:
        return
    for task in tasks:
        with suppress(Exception):
            places = _frames(frame or sys._getframe()) if task is current else _awaits(task.get_coro())
            yield TaskStack(task.get_name(), tuple(places), "nothing: it runs" if task is current else _waits_for(task))


def _awaits(coroutine: Any) -> Iterator[Place]:
    """The chain of coroutines and generators that a suspended task consists of."""
    while coroutine is not None:
        frame = next((found for kind in ("cr", "gi", "ag") if (found := getattr(coroutine, f"{kind}_frame", None))), None)
        if frame is not None:
            yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname
        awaited = (getattr(coroutine, name, None) for name in ("cr_await", "gi_yieldfrom", "ag_await"))
        coroutine = next((found for found in awaited if found is not None), None)


def _frames(frame: Any) -> list[Place]:
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
        lines += (f"  {file}:{line} {name}: {linecache.getline(file, line).strip()}\n" for file, line, name in places)
    return "".join(lines)


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
