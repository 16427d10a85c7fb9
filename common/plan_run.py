"""What a run comes to in groups, tokens and bytes on disk, before it starts."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from common.batching import plan_micro_batches
from common.config import Config
from common.errors import ConfigError, explain
from common.plan_given import Given

GB = 1e9
# A line of groups/ for one token: its id, its log-prob with all its digits, its text as JSON; for a prompt its id alone.
_TOKEN_BYTES, _PROMPT_TOKEN_BYTES, _SAMPLE_BYTES = 36, 8, 500
_STATE_BYTES = 12  # of a checkpoint for each parameter: weight and two moments in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """A round at the limits: every prompt and response as long as allowed."""

    groups: int
    responses: int
    updates: int
    rows_per_update: int
    micro_batches_per_group: int  # on each rank; all ranks do the same number
    micro_batches_per_update: int
    micro_batch_tokens: int  # padded, of one of them
    sampled_tokens: int
    trained_tokens: int  # that the trainer reads: prompts and responses


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """Bytes in the run directory."""

    checkpoint: int
    checkpoints: int  # that lie there at the same time
    journal_round: int  # samples of a round at the limits
    journal_rounds: int  # that stay
    model: int  # the final weights
    total: int
    free: int


def plan_batches(config: Config, given: Given) -> Batches:
    """In rows and tokens."""
    members, training = config.responses_per_group, config.training
    longest = given.longest_prompt + config.sampling.max_tokens
    places = training.ranks // training.tensor_parallel
    plan = plan_micro_batches([longest] * members, training.micro_batch_tokens, places)
    responses = config.groups_per_round * members
    return Batches(
        groups=config.groups_per_round,
        responses=responses,
        updates=config.updates_per_round,
        rows_per_update=config.update_groups * members,
        micro_batches_per_group=len(plan[0]),
        micro_batches_per_update=config.update_groups * len(plan[0]),
        micro_batch_tokens=longest * max(len(run) for rank in plan for run in rank),
        sampled_tokens=responses * config.sampling.max_tokens,
        trained_tokens=responses * longest,
    )


def plan_disk(config: Config, given: Given, run_dir: Path) -> Disk:
    """Raises ConfigError where the disk of `run_dir` has no room for what the run will keep there."""
    checkpoint = _STATE_BYTES * given.num_params
    every = config.checkpoint.every
    saves = 1 if every is None else -(-config.rounds // every)
    checkpoints = min(saves, config.checkpoint.keep + 1)  # the oldest goes when the newest is there
    journal = journal_bytes(
        config.groups_per_round * config.responses_per_group, given.longest_prompt, config.sampling.max_tokens
    )
    rounds = min(config.rounds, config.retention.groups or config.rounds)
    total = checkpoints * checkpoint + rounds * journal + given.model_bytes
    free = shutil.disk_usage(_existing(run_dir)).free
    if total > free:
        rule = f"must be on a disk with {total / GB:.1f} GB free ({checkpoints} checkpoints of {checkpoint / GB:.1f} GB"
        rule += f", samples {rounds * journal / GB:.1f} GB, the final model {given.model_bytes / GB:.1f} GB)"
        remedy = f"only {free / GB:.1f} GB are free: choose another disk, or lower checkpoint.keep or retention.groups"
        raise ConfigError(explain("run_dir", rule, str(run_dir), remedy))
    return Disk(
        checkpoint=checkpoint,
        checkpoints=checkpoints,
        journal_round=journal,
        journal_rounds=rounds,
        model=given.model_bytes,
        total=total,
        free=free,
    )


def journal_bytes(responses: int, prompt_tokens: int, response_tokens: int) -> int:
    """Of so many samples of these lengths, about."""
    return responses * (_SAMPLE_BYTES + _PROMPT_TOKEN_BYTES * prompt_tokens + _TOKEN_BYTES * response_tokens)


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
