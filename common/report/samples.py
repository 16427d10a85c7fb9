"""The samples that a page carries: a bounded choice from `groups/`, spread over rounds and groups."""

import json
from pathlib import Path
from typing import Any

from common.metrics import RoundMetrics
from common.report.gantt import evenly
from common.report.groups import StoredGroup, read_groups, round_path
from common.retention import first_kept

MAX_BYTES = 2_000_000  # of all samples in one page
MAX_ROUNDS = 40
MAX_TEXT = 6_000  # characters of one prompt or response
_MAX_READ = 400  # groups of one round that are read to choose from


def choose_samples(run_dir: Path, rounds: list[RoundMetrics]) -> dict[str, Any]:
    """`{"rounds": [{"round", "groups": [...]}], "shown", "total", "removed"}` within MAX_BYTES; removed: number of rounds."""
    numbers = [metrics.round for metrics in rounds if round_path(run_dir / "groups", metrics.round).is_file()]
    chosen = evenly(numbers, MAX_ROUNDS)
    budget = MAX_BYTES // max(1, len(chosen))
    shown = [{"round": number, "groups": _of_round(round_path(run_dir / "groups", number), budget)} for number in chosen]
    total = sum(_count_lines(round_path(run_dir / "groups", number)) for number in numbers)
    removed = sum(metrics.round < first_kept(run_dir / "groups") for metrics in rounds)
    return {"rounds": shown, "shown": sum(len(entry["groups"]) for entry in shown), "total": total, "removed": removed}


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _of_round(path: Path, budget: int) -> list[dict[str, Any]]:
    """As many groups as the budget allows, evenly over the round, in submission order."""
    rows: list[dict[str, Any]] = []
    for stored in read_groups(path):
        rows.append(_row(stored))
        if len(rows) == _MAX_READ:
            break
    rows.sort(key=lambda row: row["order"])
    size = sum(len(json.dumps(row)) for row in rows)
    while rows and size > budget:
        keep = min(len(rows) - 1, int(len(rows) * budget / size))
        rows = evenly(rows, keep) if keep else []
        size = sum(len(json.dumps(row)) for row in rows)
    return rows


def _cut(text: str) -> str:
    rest = len(text) - MAX_TEXT
    return text if rest <= 0 else f"{text[:MAX_TEXT]} … ({rest} more characters in groups/)"


def _row(stored: StoredGroup) -> dict[str, Any]:
    group = stored.group
    return {
        "group": str(group.group_id),
        "order": group.order,
        "version": group.weight_version,
        "filtered": group.filtered,
        "prompt": _cut(stored.prompt),
        "samples": [
            {
                "member": sample.request.member,
                "reward": sample.reward,
                "advantage": sample.advantage,
                "tokens": sample.num_tokens,
                "finish": sample.response.finish_reason,
                "status": sample.status,
                "reason": _cut(sample.reason),
                "extracted": _cut(sample.extracted),
                "parts": sample.parts,
                "text": _cut(sample.text),
            }
            for sample in group.samples
        ],
    }
