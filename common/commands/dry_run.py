"""`train --dry-run`: what a run comes to, before anything is started, and a refusal of what cannot fit.

Where `cluster` declares GPUs the plan is for those and needs neither them nor the weights; else it is for this machine, and
all that a run checks first is checked.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common.config import Config
from common.plan_given import Given, of_names, of_prepared
from common.plan_memory import GB, Memory, Pool, check_counts, in_words, is_declared, plan_memory
from common.plan_run import Batches, Disk, plan_batches, plan_disk
from common.prepare import prepare

Rows = list[tuple[str, str]]


def dry_run(config: Config, run_dir: Path, console: Console, report: Callable[[str], None]) -> dict[str, Any]:
    """Prints the plan; returns its rows and all its figures. Raises ConfigError and DataError where the run cannot be."""
    check_counts(config)
    given = of_names(config, report) if is_declared(config) else of_prepared(prepare(config, report))
    memory, batches, disk = plan_memory(config, given), plan_batches(config, given), plan_disk(config, given, run_dir)
    rows = plan_rows(config, given, memory, batches, disk)
    table = Table(title=f"plan of {config.name}", show_header=False, title_justify="left")
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
    figures = {
        "num_params": given.num_params,
        "longest_prompt": given.longest_prompt,
        "max_model_len": given.max_model_len,
        "has_data": given.workload is not None,
        "memory": asdict(memory),
        "batches": asdict(batches),
        "disk": asdict(disk),
    }
    return {**dict(rows), "figures": figures}


def plan_rows(config: Config, given: Given, memory: Memory, batches: Batches, disk: Disk) -> Rows:
    """Name and value, for people."""
    per_update, num_updates = config.update_groups, batches.updates
    last = batches.groups - (num_updates - 1) * per_update
    width, rollout = config.width, config.rollout
    responses = f"{batches.groups} groups x {config.responses_per_group} responses = {batches.responses} responses"
    updates = f"{num_updates} a round of {per_update} groups" + (f", the last of {last}" if last != per_update else "")
    lengths = (
        f"prompt up to {given.longest_prompt}, response up to {config.sampling.max_tokens}, engine context {given.max_model_len}"
    )
    return [
        ("model", f"{given.model} ({given.num_params:,} parameters)"),
        ("problems", _problems(config, given)),
        ("rounds", f"{config.rounds}, schedule {config.schedule}, group order {config.group_order}"),
        ("a round", responses),
        ("updates", updates),
        ("frontier", f"{width} groups = {width * config.responses_per_group} requests"),
        ("engines", f"{rollout.replicas} x {rollout.capacity} requests in flight, {rollout.dtype}"),
        ("trainer", f"{config.trainer}, {_ranks(config)}, loss {config.training.loss}, {config.training.dtype}"),
        *_memory_rows(config, given, memory),
        ("lengths", lengths),
        *_batch_rows(config, batches),
        ("checkpoint", f"about {_size(disk.checkpoint)} (weights and two moments in float32)"),
        ("disk", _disk(config, disk)),
    ]


def _problems(config: Config, given: Given) -> str:
    workload = given.workload
    if workload is None:
        source = config.workload.path or config.workload.dataset
        return f"not looked at: tokenizer or data ({source}) are not here; planned with prompts of {given.longest_prompt} tokens"
    epochs = config.rounds * config.groups_per_round / len(workload.problems)
    left_out = f"{workload.num_filtered} too long, {workload.num_duplicates} repeated: left out"
    return f"{len(workload.problems):,} ({left_out}); {epochs:.2f} epochs"


def _memory_rows(config: Config, given: Given, memory: Memory) -> Rows:
    """Of both pools: which devices, and what lies on one of them."""
    rollout, trainer, tp = memory.rollout, memory.trainer, config.rollout.tensor_parallel
    rows = [
        ("rollout devices", f"{_devices(rollout)}; each replica takes {tp} of one node"),
        ("trainer devices", f"{_devices(trainer)}; {_processes(config)}"),
    ]
    if given.shape is None:
        return [*rows, ("memory", "not planned: a model of another family than Qwen3, Qwen2 and Llama")]
    cache = f"{memory.kv_tokens:,} tokens, {memory.full_requests} requests of {given.max_model_len}"
    if 0 < memory.full_requests < config.rollout.capacity:
        cache += f"; at that length not the {config.rollout.capacity} of rollout.capacity"
    return [
        *rows,
        ("engine memory", _parts(rollout, "device of a replica")),
        ("KV cache", cache if memory.kv_tokens else "what vLLM finds free"),
        ("trainer memory", _parts(trainer, "rank, at its peak")),
    ]


def _devices(pool: Pool) -> str:
    declared = f" of {pool.declared} declared" if pool.declared is not None else ""
    return f"{pool.needed} x {pool.device}{declared}, nodes: {pool.place}"


def _processes(config: Config) -> str:
    return "one process a rank" if config.trainer == "torch" else "one process drives all, so they must be of one node"


def _parts(pool: Pool, what: str) -> str:
    limit = f" of {pool.device_bytes / GB:.1f} GB" if pool.device_bytes is not None else ""
    return f"{_size(pool.total)}{limit} a {what}: {in_words(pool.parts)}"


def _batch_rows(config: Config, batches: Batches) -> Rows:
    """At the limits of lengths."""
    budget = f"at most {config.training.micro_batch_tokens:,} padded tokens a rank"
    steps = f"{batches.micro_batches_per_group} a rank for a group, {batches.micro_batches_per_update} for an update"
    return [
        ("tokens a round", f"at most {batches.sampled_tokens:,} sampled, {batches.trained_tokens:,} trained with their prompts"),
        ("micro-batch", f"{budget}; at the longest {steps} of {batches.rows_per_update} rows"),
    ]


def _disk(config: Config, disk: Disk) -> str:
    kept = f"{disk.checkpoints} checkpoint{'s' if disk.checkpoints > 1 else ''}"
    samples = f"samples at most {_size(disk.journal_round)} a round, {disk.journal_rounds} rounds kept"
    spool = f"spool {_size(disk.spool)}" if disk.spool else "the spool elsewhere"
    return f"at most {_size(disk.total)} of {_size(disk.free)} free: {kept}, {samples}, final model {_size(disk.model)}, {spool}"


def _ranks(config: Config) -> str:
    ranks, tp = config.training.ranks, config.training.tensor_parallel
    return f"{ranks} ranks" if config.trainer == "torch" else f"{ranks} devices (fsdp {ranks // tp} x tp {tp})"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GB:,.1f} GB" if num_bytes >= GB else f"{num_bytes / 1e6:,.1f} MB"
