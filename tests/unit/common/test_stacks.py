"""SIGUSR1 in a process of its own: what it writes and says, whatever the process does, and that it ends nothing (pain 20)."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from round_lab import run_round

from common.rundir import RunDir
from common.stacks import TaskStack, catches, show_tasks, task_stacks
from common.testing import FakeEngine, Fault

# Says which phase has begun, and waits for a line on stdin before the next.
CHILD = """
import asyncio, sys, threading, time
from pathlib import Path
from rich.console import Console
from common.display import LiveDisplay
from common.rundir import RunDir
from common.stacks import stack_dumps
from common.timeline import Timeline

run_dir = RunDir(Path(sys.argv[1]))
run_dir.logs.mkdir(parents=True, exist_ok=True)
timeline, console = Timeline(None), Console(force_terminal=len(sys.argv) > 2)

def say(phase):
    print(f"phase {phase}", flush=True)

async def never(event):
    await event.wait()

async def request_that_hangs(event):
    await never(event)

async def main():
    event = asyncio.Event()
    tasks = [asyncio.create_task(request_that_hangs(event), name=f"request {n}") for n in range(50)]
    tasks.append(asyncio.create_task(asyncio.wait_for(tasks[7], None), name="waits for 7"))
    timeline.describe = lambda: "round 3: 1 of 4 groups complete; request r3/g1/m2 in flight"
    await asyncio.sleep(0)
    say("loop")
    await asyncio.to_thread(sys.stdin.readline)
    timeline.describe = lambda: 1 / 0
    say("blocked")
    time.sleep(2)
    say("free")
    await asyncio.to_thread(sys.stdin.readline)
    event.set()
    await asyncio.gather(*tasks)

with LiveDisplay(timeline, console), stack_dumps(run_dir, timeline, console):
    say("before")
    sys.stdin.readline()
    asyncio.run(main())
say("after")
sys.stdin.readline()
print("ended well", flush=True)
"""


class Child:
    def __init__(self, root: Path, *arguments: str) -> None:
        self.logs = RunDir(root).logs
        script = root.with_name("child.py")
        script.write_text(CHILD)
        command = [sys.executable, str(script), str(root), *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.said: list[str] = []

    def wait_for(self, text: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} was never said: {self.said} {self.process.stderr.read()}")  # type: ignore[union-attr]

    def go_on(self) -> None:
        assert self.process.stdin is not None
        assert self.process.poll() is None, (self.process.returncode, self.process.stderr.read()[-3000:])  # type: ignore[union-attr]
        self.process.stdin.write("\n")

    def signal(self) -> None:
        os.kill(self.process.pid, signal.SIGUSR1)

    def dump(self, number: int) -> str:
        return (self.logs / f"stacks-{number:03d}.txt").read_text()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def make(*arguments: str) -> Child:
        children.append(Child(tmp_path / "run", *arguments))
        return children[-1]

    yield make
    for child in children:
        child.process.kill()
        child.process.communicate()


def until(is_true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.02)


def test_a_signal_is_answered_in_every_phase_of_a_run(start: Callable[..., Child]) -> None:
    """Before the loop, with tasks that wait, while the loop is blocked, and after the run; the process goes on each time."""
    child = start()
    child.wait_for("phase before")
    child.signal()
    assert re.search(r"stacks: .*stacks-000.txt; no round goes on", child.wait_for("stacks: "))
    assert "0 tasks" in child.dump(0) and "sys.stdin.readline()" in child.dump(0).split("MainThread")[1]
    child.go_on()
    child.wait_for("phase loop")
    child.signal()
    line = child.wait_for("stacks: ")
    assert "stacks-001.txt; round 3: 1 of 4 groups complete; request r3/g1/m2 in flight" in line
    text = child.dump(1)
    assert "Who waits for whom: round 3: 1 of 4 groups complete" in text and "52 tasks" in text
    assert re.search(r"request 0, .* and 4\d more \(waits for a Future\)", text)
    places = [text.rindex(name) for name in ("request_that_hangs: await never(event)", "never: await event.wait()", "Event.wait")]
    assert places == sorted(places)
    assert "waits for 7 (waits for task request 7)" in text
    child.go_on()
    child.wait_for("phase blocked")
    child.signal()
    line = child.wait_for("s")  # the next line: before the phase ends
    assert "stacks-002.txt; cannot be told at this moment (ZeroDivisionError" in line
    assert "52 tasks" in child.dump(2) and "time.sleep(2)" in child.dump(2).split("MainThread")[1]
    child.wait_for("phase free")
    for _ in range(20):
        child.signal()
        time.sleep(0.01)
    child.go_on()
    child.wait_for("phase after")
    child.signal()
    child.go_on()
    child.wait_for("ended well")
    assert child.process.wait(30) == 0
    assert all(path.stat().st_size for path in child.logs.iterdir()), "an empty file was left"
    assert "child.py" in child.process.stderr.read()  # type: ignore[union-attr]  # after the run


def test_above_a_live_display_too(start: Callable[..., Child]) -> None:
    """The display's lock may be held when the signal comes; a hundred of them end nothing."""
    child = start("live")
    child.wait_for("phase before")
    for _ in range(100):
        child.signal()
        time.sleep(0.002)
    child.wait_for("stacks: ")
    child.go_on()
    child.wait_for("phase loop")
    child.go_on()
    child.wait_for("phase free")
    child.go_on()
    child.go_on()
    child.wait_for("ended well")
    assert child.process.wait(30) == 0


def worker(title: str, code: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen([title, "-c", code], executable=sys.executable, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    return process


LISTENS = "import faulthandler, signal, time; faulthandler.register(signal.SIGUSR1, open({log!r}, 'w'), False);"
REST = "print('up', flush=True); time.sleep(60)"


def test_engines_and_ranks_that_listen_are_asked_and_no_other_process_is(tmp_path: Path) -> None:
    """The signal would end a process that has no answer to it."""
    from common.stacks import ask_workers

    log = tmp_path / "engine.log"
    started = [
        worker("ray::Engine", LISTENS.format(log=str(log)) + REST),
        worker("ray::IDLE", "import time;" + REST),
        worker("other", LISTENS.format(log=str(tmp_path / "other.log")) + REST),
    ]
    try:
        assert [catches(process.pid) for process in started] == [True, False, True]
        (told,) = ask_workers()
        assert told.startswith("ray::Engine") and f"process {started[0].pid}" in told
        until(lambda: "File" in log.read_text())
        assert [process.poll() for process in started] == [None, None, None]
        assert (tmp_path / "other.log").read_text() == ""
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_who_waits_for_whom_is_the_watchdogs_line_of_the_open_round() -> None:
    """Pain 20: without waiting for a stall."""
    told: list[str] = []
    engine = FakeEngine(faults={"r0/g2/m3": [Fault.HANG] * 3})

    async def look(lab: object, task: "asyncio.Task[object]") -> None:
        await asyncio.sleep(20)
        watchdog = next(one for one in asyncio.all_tasks() if one.get_name() == "watchdog")
        timeline = watchdog.get_coro().cr_frame.f_locals["self"]._timeline  # type: ignore[union-attr]
        told.append(timeline.describe())
        names = {stack.name for stack in task_stacks(sys._getframe())}
        assert {"watchdog", "rollout side", "train side"} <= names
        task.add_done_callback(lambda _: told.append(str(timeline.describe)))

    lab = run_round(engine=engine, meanwhile=look, limits={"group_timeout_s": 40})
    assert lab.error is None
    assert told[0].startswith("round 0: 3 of 4 groups complete") and "r0/g2/m3" in told[0] and told[1] == "None"


def test_tasks_at_the_same_place_are_shown_once_and_the_rarest_first() -> None:
    many = [TaskStack(f"request {n:04d}", (("a.py", 1, "serve"),), "a Future") for n in range(1000)]
    text = show_tasks([*many, TaskStack("train side", (("b.py", 2, "run"),), "its turn")])
    assert text.startswith("1001 tasks:\n\ntrain side (waits for its turn)\n  b.py:2 run")
    assert text.count("a.py:1 serve") == 1 and "request 0007 and 992 more" in text
