"""The JAX trainer: one process that drives all devices, behind the driver's side that it shares with the torch trainer."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from common.batching import Plan, plan_micro_batches
from common.config import Config
from common.errors import TrainerError, UsageError, explain
from common.ranks import RankOptions, Ranks, local_options
from common.trainer import GroupTrainer, check_advantages
from rolloutpipe_jax.batch import Rung, planned_length
from rolloutpipe_jax.room import check_room, num_gpus


async def start_trainer(
    config: Config, model_dir: Path, log_dir: Path, max_model_len: int, options: RankOptions | None = None
) -> GroupTrainer:
    """Start the process, load `model_dir` and compile for sequences of up to `max_model_len` tokens.

    Ray must run. `options` place the process on a cluster; without them it takes the GPUs of this machine. Its output goes to
    `log_dir`/trainer-rank-0.log. Raises ConfigError and DataError before anything starts, TrainerError where the process
    died or took too long.
    """
    check_advantages(config)
    check_room(config, model_dir)
    gpus = float(config.training.ranks) if num_gpus() else 0.0
    ranks = Ranks(
        "rolloutpipe_jax", config, model_dir, log_dir, num_processes=1, options=options or (lambda process: local_options(gpus))
    )
    await ranks.join(config.limits.start_timeout_s)

    async def warm_up() -> Rung:
        return await _warm_up(ranks, config, log_dir, max_model_len)

    plan = planner(await warm_up(), config.training.ranks // config.training.tensor_parallel)
    return GroupTrainer(config, ranks, plan, warm_up)


async def _warm_up(ranks: Ranks, config: Config, log_dir: Path, max_model_len: int) -> Rung:
    """The largest size of a micro-batch, when all is compiled. Where that fails, no process is left."""
    limit = config.limits.start_timeout_s
    try:
        async with asyncio.timeout(limit):
            (top,) = await ranks.call("warm_up", max_model_len)
            return top
    except TimeoutError as error:
        ranks.close()
        log = log_dir / "trainer-rank-0.log"
        raise TrainerError(
            f"the trainer's programs did not compile within {limit:g} s (limits.start_timeout_s); see {log}"
        ) from error
    except BaseException:
        ranks.close()
        raise


def planner(top: Rung, ranks: int) -> Callable[[Sequence[int]], Plan]:
    """The common planner for `ranks` places on the mesh's `fsdp` axis, in shares of packed rows. `top` is the largest rung."""

    def plan(lengths: Sequence[int]) -> Plan:
        if max(lengths, default=0) > top.length:
            rule = f"must be of at most the {top.length} tokens that the trainer was compiled for"
            raise UsageError(explain("sequences", rule, max(lengths), "raise rollout.max_model_len"))
        return plan_micro_batches([planned_length(length, top.length) for length in lengths], top.num_tokens, ranks)

    return plan
