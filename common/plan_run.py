"""What a run comes to in groups, tokens and bytes on disk, before it starts."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from common.batching import plan_micro_batches
from common.config import Config
from common.disk import existing
from common.disk_space import check_space, disk_needs
from common.plan_given import Given
from common.spool_place import planned_root


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
    spool: int  # two versions of the weights on their way to the engines; 0 where it lies elsewhere
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
    """Raises ConfigError where a disk has no room for what the run will keep there."""
    needs = disk_needs(config, given)
    spool_root = planned_root(config, run_dir, needs.spool)
    check_space(needs, run_dir, spool_root)
    spool = needs.spool if spool_root == run_dir else 0
    return Disk(
        checkpoint=needs.checkpoint,
        checkpoints=needs.num_checkpoints,
        journal_round=needs.journal,
        journal_rounds=needs.num_journals,
        spool=spool,
        model=needs.model,
        total=needs.kept + spool,
        free=shutil.disk_usage(existing(run_dir)).free,
    )
