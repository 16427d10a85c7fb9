"""The torch trainer: `common.trainer` over FSDP2 ranks on this machine's cores (gloo) or GPUs (nccl). Imports no torch."""

from collections.abc import Sequence
from pathlib import Path

from common.batching import Plan, plan_micro_batches
from common.config import Config
from common.ranks import RankOptions, Ranks, local_options
from common.spool import model_layout
from common.trainer import GroupTrainer, check_advantages
from rolloutpipe_torch.room import check_room, has_gpus


async def start_trainer(
    config: Config, model_dir: Path, log_dir: Path, max_model_len: int, options: RankOptions | None = None
) -> GroupTrainer:
    """Start the ranks and load `model_dir`; output of rank N goes to `log_dir`/trainer-rank-N.log.

    `max_model_len`, the longest sequence in tokens, is not needed here: torch takes sizes as they come. `options` place the
    ranks on a cluster (`placing.Placing.rank_options`); without them each takes a GPU of this machine, if it has any.

    What a trainer room offers to `common.launch`, under the same name in each room. Ray must run
    (`rolloutpipe_torch.cluster.start_ray`). Raises ConfigError and DataError before anything starts, DataError for a
    model that cannot be loaded, TrainerError for a rank that died or took too long; then no rank is left.
    """
    check_advantages(config)
    model_layout(model_dir)
    check_room(config, model_dir)
    training = config.training
    options = options or (lambda process: local_options(int(has_gpus())))
    ranks = Ranks("rolloutpipe_torch", config, model_dir, log_dir, num_processes=training.ranks, options=options)
    await ranks.join(config.limits.start_timeout_s)

    def plan(lengths: Sequence[int]) -> Plan:
        return plan_micro_batches(lengths, training.micro_batch_tokens, training.ranks)

    return GroupTrainer(config, ranks, plan)
