"""How long it took to notice a death, and until all was well again, from the run's own timeline and the record of strikes."""

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from chaos.harness import Outcome, read_lines
from chaos.judge import read_events

# What the timeline calls the part that a struck process belongs to.
PARTS = dict.fromkeys(("engine", "vllm-actor", "vllm-core", "rollout-node"), "engine")
PARTS |= dict.fromkeys(("rank", "fsdp-rank", "trainer-node"), "trainer")
Times = dict[str, list[tuple[float, float]]]  # by kind: (noticed after, recovered after) in seconds


def recovery_times(home: Path) -> Times:
    """Of one run. A driver is noticed by whoever resumes it; it has recovered with the first new group."""
    strikes, events = read_lines(home / "strikes.jsonl"), _with_wall_clock(home)
    starts = [row["wall_s"] for row in read_lines(home / "starts.jsonl")]
    times: Times = defaultdict(list)
    for strike in strikes:
        kind, struck_s = strike["target"], strike["wall_s"]
        later = [event for event in events if event["wall_s"] >= struck_s - 0.005]
        if kind == "driver":
            start_s = min((wall_s for wall_s in starts if wall_s > struck_s), default=None)
            done_s = min((event["wall_s"] for event in later if event["kind"] in ("group_complete", "round_end")), default=None)
            if start_s is not None and done_s is not None:
                times[kind].append((start_s - struck_s, done_s - start_s))
            continue
        part = PARTS.get(kind)
        found = _fault_and_recovery(later, part) if part is not None else None
        if found is not None:
            times[kind].append((found[0] - struck_s, found[1] - struck_s))
    return times


def _fault_and_recovery(later: list[dict[str, Any]], part: str) -> tuple[float, float] | None:
    """Wall-clock times of the first fault of a part and of its recovery, if the driver lived to see both."""
    for event in later:
        if event["kind"] == "run_start":
            return None
        if event["kind"] == "fault" and str(event["part"]).startswith(part):
            for after in later:
                if after["kind"] == "recovered" and after["part"] == event["part"] and after["wall_s"] >= event["wall_s"]:
                    return event["wall_s"], after["wall_s"]
            return None
    return None


def _with_wall_clock(home: Path) -> list[dict[str, Any]]:
    """The events in order; each start of the driver has its own zero."""
    clocks = read_lines(home / "clocks.jsonl")
    number, events = -1, []
    for event in read_events(home / "run"):
        number += event["kind"] == "run_start"
        events.append({**event, "wall_s": event["t"] + clocks[max(0, number)]["zero_s"]})
    return events


def table(outcomes: list[tuple[Outcome, Path]]) -> list[str]:
    """Lines: kind, strikes, and what they took."""
    strikes: dict[str, int] = defaultdict(int)
    times: Times = defaultdict(list)
    for outcome, home in outcomes:
        for strike in outcome.strikes:
            strikes[strike["target"]] += 1
        for kind, values in recovery_times(home).items():
            times[kind] += values
    lines = ["| killed | times | noticed after, median (most) | all well after, median (most) |", "| --- | --- | --- | --- |"]
    for kind, count in sorted(strikes.items()):
        columns = list(zip(*times[kind], strict=True)) or [(), ()]
        lines.append(f"| {kind} | {count} | {_shown(columns[0])} | {_shown(columns[1])} |")
    return lines


def _shown(seconds: Any) -> str:
    return f"{median(seconds):.1f} ({max(seconds):.1f}) s" if seconds else ""
