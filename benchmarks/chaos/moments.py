"""Where a run can be struck: the fakes and the driver say which moment they reach, and the plan of the run says what dies there.

    home/plan.json      [{"number": 3, "point": "publish", "nth": 5, "target": "engine", "delay_s": 0.0}, ...]
    home/counts/POINT   a byte each time that the point was reached, by whatever process: so nth counts over restarts too
    home/pids/PART      pid and start time of the process that plays this part now
    home/strikes.jsonl  what was killed, when (wall clock), at which point

A strike without delay kills within the moment, from the process that reached it; the others are the harness's, which reads
`home/reached.jsonl`. Only processes that have entered themselves in `home/pids` are ever killed, and their children.
"""

import fcntl
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import psutil

HOME = "CHAOS_HOME"
# Of real runs, whose processes do not enter themselves: how their titles begin.
TITLES = {"vllm-actor": "ray::VllmEngine", "vllm-core": "VLLM::EngineCore", "fsdp-rank": "ray::RankProcess"}


def home() -> Path:
    """The directory of this run's plan and records."""
    return Path(os.environ[HOME])


def enter(part: str) -> None:
    """This process plays `part` (driver, engine-0, rank-1) from now on."""
    place = home() / "pids" / part
    partial = place.with_name(f".{part}.{os.getpid()}")
    partial.write_text(json.dumps([os.getpid(), psutil.Process().create_time()]))
    partial.replace(place)


def process_of(place: Path) -> psutil.Process | None:
    """The process entered there, where it still runs."""
    try:
        pid, born = json.loads(place.read_text())
        process = psutil.Process(pid)
        return process if process.create_time() == born and process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, ValueError, psutil.Error):
        return None


def reach(point: str) -> None:
    """Say that this process is at `point`; it may not return."""
    for strike in due(point):
        if strike["delay_s"] > 0:
            append(home() / "reached.jsonl", {**strike, "wall_s": time.time()})
        else:
            kill(strike)


def due(point: str) -> list[dict[str, Any]]:
    """The same, for who carries out the strikes himself: those of this time."""
    planned = [strike for strike in _plan() if strike["point"] == point]
    if not planned:
        return []
    count = _count(point)
    return [strike for strike in planned if strike["nth"] == count]


def kill(strike: dict[str, Any]) -> bool:
    """kill -9 of the target; False where it has no process now."""
    victims = targets(strike["target"])
    if not victims:
        return False
    victim = random.Random(strike["number"]).choice(victims)
    append(home() / "strikes.jsonl", {**strike, "pid": victim.pid, "name": _name(victim), "wall_s": time.time()})
    try:
        victim.send_signal(signal.SIGKILL)
    except psutil.Error:
        return False
    return True


def targets(kind: str) -> list[psutil.Process]:
    """Running processes of this run that a strike at `kind` may hit."""
    if kind in ("engine", "rank", "driver"):
        places = sorted((home() / "pids").glob(f"{kind}*"))
        return [process for place in places if (process := process_of(place)) is not None]
    if kind in TITLES:
        return [process for process in marked(str(home())) if " ".join(_cmdline(process)).startswith(TITLES[kind])]
    driver = process_of(home() / "pids" / "driver")
    nurseries = [child for child in _children(driver) if "common.rewards.nursery" in " ".join(_cmdline(child))]
    return nurseries if kind == "nursery" else [worker for nursery in nurseries for worker in _children(nursery)]


def marked(path: str) -> list[psutil.Process]:
    """All processes of the run whose home this is, by their environment, wherever they stand in the tree."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(HOME) == path:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _children(process: psutil.Process | None) -> list[psutil.Process]:
    try:
        return process.children() if process is not None else []
    except psutil.Error:
        return []


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _name(process: psutil.Process) -> str:
    return " ".join(_cmdline(process))[:60]


def append(path: Path, row: dict[str, Any]) -> None:
    """One line, whole."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _plan() -> list[dict[str, Any]]:
    global _PLAN
    if _PLAN is None:
        _PLAN = json.loads((home() / "plan.json").read_text())
    return _PLAN


_PLAN: list[dict[str, Any]] | None = None


def _count(point: str) -> int:
    with (home() / "counts" / point).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(b".")
        file.flush()
        return file.tell()
