"""What durable rounds cost on the quickstart: the time of a resume beyond process start, and the share of writing in a round.

    python benchmarks/resume_cost.py [key=value ...]

The driver is killed in the middle of a round and resumed. Process start lasts until engines, trainer and verifiers are there.
What comes then, until the first request of a group that was not on disk, is the resume's cost: checkpoint, replay, publish.
Writing is timed around the journal's calls and around the capture of a checkpoint, in the same run as the rounds themselves.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared import ROOT, Marks, where

sys.path.insert(0, str(ROOT))

SETTINGS = ("checkpoint.every=1", "rounds=8", "name=resume-cost")
KILL_ROUND, KILL_GROUPS = 5, 12  # killed when so many groups of this round (of 32) are on disk
MOST_RESUME_S, MOST_SHARE = 30.0, 0.03
SYNC = "fdatasync, in a thread of its own beside the round"
Event = dict[str, Any]


def main() -> None:
    """Run, kill, resume, print."""
    if sys.argv[1:2] == ["--driver"]:
        drive(Path(sys.argv[2]), sys.argv[3:])
        return
    root = Path(tempfile.mkdtemp(prefix="resume-cost-"))
    run_dir = root / "run"
    words = [str(ROOT / "configs" / "quickstart.yaml"), f"run_dir={run_dir}", *SETTINGS, *sys.argv[1:]]
    first = start(root, "train", *words)
    journal = run_dir / "groups" / f"round-{KILL_ROUND:05d}.jsonl"
    while first.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > KILL_GROUPS):
        time.sleep(0.005)
    first.kill()
    first.wait()
    if start(root, "train", "--resume", str(run_dir)).wait() != 0:
        sys.exit("the resume failed")
    show(read_lines(run_dir / "timeline.jsonl"), read_lines(root / "writing.jsonl"))
    shutil.rmtree(root)


def start(root: Path, *words: str) -> subprocess.Popen[bytes]:
    """The command, with timers in it."""
    return subprocess.Popen([sys.executable, __file__, "--driver", str(root / "writing.jsonl"), *words], cwd=ROOT)


def drive(output: Path, words: list[str]) -> None:
    """The real command; each durable write leaves its name, seconds and round in `output`."""
    from common import cli, journal, run

    file = output.open("a", buffering=1)

    def note(name: str, seconds: float) -> None:
        file.write(json.dumps({"name": name, "seconds": seconds}) + "\n")

    for name in ("open", "group", "drop", "end"):
        setattr(journal.Journal, name, timed(getattr(journal.Journal, name), lambda s, name=name: note(f"journal {name}", s)))
    time_saves(run, lambda seconds: note("checkpoint capture", seconds))
    os.fdatasync = timed(os.fdatasync, lambda seconds: note(SYNC, seconds))
    go = run.Run.run

    async def noted(self: Any, *, resume: bool = False) -> Any:
        file.write(json.dumps({"ready_s": self._parts.timeline.now()}) + "\n")
        return await go(self, resume=resume)

    run.Run.run = noted  # type: ignore[method-assign]
    sys.argv = ["rolloutpipe", *words]
    cli.main()


def timed(call: Callable[..., Any], note: Callable[[float], None]) -> Callable[..., Any]:
    """The same call, which tells how long it took."""

    def run(*arguments: Any, **settings: Any) -> Any:
        start_s = time.perf_counter()
        try:
            return call(*arguments, **settings)
        finally:
            note(time.perf_counter() - start_s)

    return run


def time_saves(run: Any, note: Callable[[float], None]) -> None:
    """The part of a save that the rounds wait for."""
    save = run.Run._save

    async def timed_save(self: Any) -> None:
        start_s = time.perf_counter()
        await save(self)
        note(time.perf_counter() - start_s)

    run.Run._save = timed_save


def show(events: list[Event], writing: list[dict[str, Any]]) -> None:
    """The figures against their marks."""
    marks = Marks()
    print(f"\n{where()}")
    starts = [index for index, event in enumerate(events) if event["kind"] == "run_start"]
    ready = [row["ready_s"] for row in writing if "ready_s" in row]
    cost_s = 0.0
    for name, part, ready_s in zip(("first start", "resume"), (events[: starts[1]], events[starts[1] :]), ready, strict=True):
        cost_s = next(event["t"] for event in part if event["kind"] == "dispatch") - ready_s
        print(f"{name}: {ready_s - part[0]['t']:.1f} s of process start, then {cost_s:.1f} s to the first new request")
    marks.check("a resume beyond process start", f"{cost_s:.1f} s", f"under {MOST_RESUME_S:g} s", cost_s < MOST_RESUME_S)
    rounds_s = sum(seconds for seconds in round_seconds(events))
    by_name: dict[str, list[float]] = {}
    for row in (row for row in writing if "name" in row):
        by_name.setdefault(row["name"], []).append(row["seconds"])
    for name, seconds in sorted(by_name.items()):
        print(
            f"{name}: {len(seconds)} times, {1000 * sum(seconds) / len(seconds):.2f} ms each, "
            f"{100 * sum(seconds) / rounds_s:.2f} % of the rounds"
        )
    share = sum(sum(seconds) for name, seconds in by_name.items() if name != SYNC) / rounds_s
    marks.check("durable writing, share of the rounds", f"{100 * share:.2f} %", "under 3 %", share < MOST_SHARE)
    marks.end()


def round_seconds(events: list[Event]) -> list[float]:
    """Of each round that has ended: from its start to that of the next, which the writing of a checkpoint precedes."""
    seconds, start_s = [], None
    for event in events:
        if event["kind"] == "run_start":
            start_s = None
        elif event["kind"] == "round_start":
            if start_s is not None:
                seconds.append(event["t"] - start_s)
            start_s = event["t"]
    return seconds


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


if __name__ == "__main__":
    main()
