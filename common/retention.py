"""What of a run's samples stays on disk (`retention.groups`): the newest N finished rounds, and all that a resume may need.

A resume goes on from a kept checkpoint, and feeds the rounds after it from `groups/`. So nothing of the oldest kept
checkpoint's next round, or of later ones, is removed; before the first checkpoint, nothing is.
"""

from pathlib import Path

from common.config import RetentionConfig
from common.rundir import RunDir, finished_checkpoints


def prune_samples(run_dir: RunDir, retention: RetentionConfig, num_rounds: int) -> list[int]:
    """Remove from `groups/` what need not stay after `num_rounds` finished rounds; the rounds removed.

    Of `eval/` as many evaluations stay as rounds.
    """
    finished = finished_checkpoints(run_dir)
    if retention.groups is None or not finished:
        return []
    limit = min(num_rounds - retention.groups, _number(finished[0]))
    removed = [path for path in _files(run_dir.groups) if _number(path) < limit]
    for path in (*removed, *_files(run_dir.eval_samples)[: -retention.groups]):
        path.unlink(missing_ok=True)
    return [_number(path) for path in removed]


def first_kept(groups: Path) -> int:
    """The oldest round in `groups/`; 0 where there is none. Finished rounds before it were removed."""
    return min(map(_number, _files(groups)), default=0)


def _files(directory: Path) -> list[Path]:
    """Oldest first."""
    return sorted((path for path in directory.glob("round-*.jsonl") if path.stem[6:].isdigit()), key=_number)


def _number(path: Path) -> int:
    """Of `round-00003.jsonl`, and of a checkpoint's directory `round-00003` the rounds that it holds."""
    return int(path.stem.removeprefix("round-"))
