"""All that `rolloutpipe eval` can know, and refuse, before anything is started or written; then engines and verifier."""

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config import Config
from common.errors import ConfigError, DataError, explain
from common.evaluation.checkpoint import Located
from common.evaluation.problems import evaluation_length, load_evaluation
from common.keeper import Start
from common.launch import close_all, together
from common.pool import Pool
from common.prepare import context_length
from common.protocols import Verifier
from common.rewards.verifier import make_verifier
from common.workloads.load import Workload, load_problems, overlap
from common.workloads.prompts import load_tokenizer

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedEval:
    """What an evaluation starts from."""

    located: Located
    tokenizer: Any
    workload: Workload
    max_model_len: int  # tokens of prompt and response together
    num_seen: int | None  # problems that are trained on in the model's run; None: not known


def prepare_eval(config: Config, located: Located, report: Report) -> PreparedEval:
    """Raises ConfigError and DataError, each one line."""
    pool_room = importlib.import_module("rolloutpipe_torch.rollout.pool")
    pool_room.check_room(config, located.files if located.kind != "orbax" else None)
    context = context_length(located.files)
    tokenizer = load_tokenizer(located.files)
    workload = load_evaluation(config, tokenizer, context, report, None)
    max_model_len = max(evaluation_length(config, workload), config.rollout.max_model_len or 0)
    num_seen = _num_seen(located.run, tokenizer, context, workload)
    engine = importlib.import_module("rolloutpipe_torch.rollout.engine")
    if not (engine.eos_token_ids(located.files) or config.sampling.stop_token_ids):
        report("the model names no token that ends a response (eos_token_id): all will run to max_tokens")
    return PreparedEval(located=located, tokenizer=tokenizer, workload=workload, max_model_len=max_model_len, num_seen=num_seen)


def _num_seen(run: Config | None, tokenizer: Any, context: int, workload: Workload) -> int | None:
    """How many of the problems are in the training part of the run's workload; None where that is not at hand."""
    if run is None:
        return None
    try:
        training = load_problems(run.workload, tokenizer, context - run.sampling.max_tokens, needs_gold=run.rewards.needs_gold)
    except (ConfigError, DataError, OSError):  # its file has moved on
        return None
    return overlap(training, workload)


def seen_line(prepared: PreparedEval) -> str:
    """What is known of what the model has seen of the problems: of its run alone, never of what the run started from."""
    located, num_problems = prepared.located, len(prepared.workload.problems)
    if located.run_dir is None:
        return f"what {'the starting model' if located.is_start else 'this model'} has seen is not known"
    if prepared.num_seen is None:
        return f"whether these problems were trained on in {located.run_dir} is not known: its problems are not at hand"
    if prepared.num_seen == 0:
        return f"none of these problems was trained on in {located.run_dir}"
    return f"{prepared.num_seen} of these {num_problems} problems are among those that are trained on in {located.run_dir}"


@asynccontextmanager
async def started(config: Config, prepared: PreparedEval, model: Path, logs: Path) -> AsyncIterator[tuple[Pool, Verifier, Start]]:
    """Engines, with random weights, and verifier workers, for the time of the block; and what starts one more engine.

    Ray must run. No trainer is started.
    """
    pool_room = importlib.import_module("rolloutpipe_torch.rollout.pool")
    placing = importlib.import_module("rolloutpipe_torch.placing").Placing(config, ["rollout"])
    of_model = (model, logs, prepared.max_model_len)
    verifier = make_verifier(config.rewards, examples=prepared.workload.examples, log=logs / "verifier.log")
    closing: list[Any] = [verifier]

    async def keep(start: Callable[[], Awaitable[Any]]) -> Any:
        part = await start()
        closing.append(part)
        return part

    try:
        pool, _ = await together(
            keep(lambda: pool_room.start_pool(config, *of_model, placing=placing)),
            verifier.start(config.limits.start_timeout_s),
        )
        yield pool, verifier, lambda place: pool_room.start_engine(config, place, *of_model, placing)
    finally:
        await close_all(closing, config.limits.close_timeout_s)


def check_out(out: Path) -> None:
    """Raises ConfigError unless it is new, or empty."""
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists():
        raise ConfigError(explain("--out", "must be a new directory, or an empty one", str(out), "choose another name"))
