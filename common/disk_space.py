"""How much a run may write, and whether the disks have room for it: asked before anything starts, and by a dry run."""

from dataclasses import dataclass
from pathlib import Path

from common.config import Config
from common.disk import existing, free_bytes, size
from common.errors import ConfigError, explain
from common.plan_given import Given
from common.rundir import RunDir, finished_checkpoints
from common.spool_place import NUM_SPOOLS

_STATE_BYTES = 12  # a parameter in a checkpoint: the weight and two moments, float32
# A line of groups/ for one token: its id, its log-prob with all its digits, its text as JSON; for a prompt its id alone.
_TOKEN_BYTES, _PROMPT_TOKEN_BYTES, _SAMPLE_BYTES = 36, 8, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNeeds:
    """Bytes, apart from logs."""

    checkpoint: int  # one
    num_checkpoints: int  # that will be on disk at one time and are not yet: `checkpoint.keep`, and the one being written
    journal: int  # samples of one round, every prompt and response as long as allowed
    num_journals: int  # that will stay and are not there yet
    spool: int  # weights on their way to the engines: the last version, and the one being exported
    model: int  # final weights

    @property
    def kept(self) -> int:
        """In the run directory, wherever the spool is."""
        return self.num_checkpoints * self.checkpoint + self.num_journals * self.journal + self.model


def disk_needs(config: Config, given: Given, run_dir: RunDir | None = None) -> DiskNeeds:
    """Of a run of this model and data; with `run_dir`, what a resume adds to what is there."""
    every = config.checkpoint.every
    made = 1 if every is None else min(config.checkpoint.keep + 1, -(-config.rounds // every))
    stay = min(config.rounds, config.retention.groups or config.rounds)
    saved = written = 0
    if run_dir is not None:
        saved, written = len(finished_checkpoints(run_dir)), len(list(run_dir.groups.glob("round-*.jsonl")))
    responses = config.groups_per_round * config.responses_per_group
    return DiskNeeds(
        checkpoint=_STATE_BYTES * given.num_params,
        num_checkpoints=max(made - saved, 1),
        journal=journal_bytes(responses, given.longest_prompt, config.sampling.max_tokens),
        num_journals=max(stay - written, 1),
        spool=NUM_SPOOLS * given.model_bytes,
        model=given.model_bytes,
    )


def journal_bytes(responses: int, prompt_tokens: int, response_tokens: int) -> int:
    """Of so many samples of these lengths, about."""
    return responses * (_SAMPLE_BYTES + _PROMPT_TOKEN_BYTES * prompt_tokens + _TOKEN_BYTES * response_tokens)


def check_space(needs: DiskNeeds, run_dir: Path, spool_root: Path) -> None:
    """Raises ConfigError, with the numbers, where a disk has less room. `spool_root`: see `spool_place.planned_root`.

    Of samples one round counts: all of them at their limits is more than most runs will ever write, and a disk that fills up
    stops a run cleanly.
    """
    count = needs.num_checkpoints
    parts = [
        (f"{count} checkpoints" if count > 1 else "checkpoint", count * needs.checkpoint, run_dir),
        ("samples of a round, at most", needs.journal, run_dir),
        ("model", needs.model, run_dir),
        ("spool", needs.spool, spool_root),
    ]
    for field, place in (("run_dir", run_dir), ("cluster.spool_dir", spool_root)):
        here = [(name, num_bytes) for name, num_bytes, where in parts if _device(where) == _device(place)]
        needed, free = sum(num_bytes for _, num_bytes in here), free_bytes(place)
        if free is not None and needed > free:
            rule = f"must have {size(needed)} free ({', '.join(f'{name} {size(num_bytes)}' for name, num_bytes in here)})"
            lower = ", or lower checkpoint.keep" if len(here) > 1 else ""
            remedy = f"make room on the disk of {existing(place)}, or set {field} to another disk{lower}"
            raise ConfigError(explain(field, rule, f"{size(free)} free", remedy))


def _device(path: Path) -> int:
    return existing(path).stat().st_dev
