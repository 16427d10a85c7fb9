"""The real trainer over fake ranks."""

from collections.abc import Sequence
from pathlib import Path

from common.batching import Plan, plan_micro_batches
from common.config import Config
from common.ranks import RankOptions, Ranks, local_options
from common.trainer import GroupTrainer


async def start_trainer(
    config: Config, model_dir: Path, log_dir: Path, max_model_len: int, options: RankOptions | None = None
) -> GroupTrainer:
    """As every room's."""
    training = config.training
    options = options or (lambda process: local_options(0))
    ranks = Ranks("chaos.fake_room", config, model_dir, log_dir, num_processes=training.ranks, options=options)
    await ranks.join(config.limits.start_timeout_s)

    def plan(lengths: Sequence[int]) -> Plan:
        return plan_micro_batches(lengths, training.micro_batch_tokens, training.ranks)

    return GroupTrainer(config, ranks, plan)
