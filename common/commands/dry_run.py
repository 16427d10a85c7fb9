"""`train --dry-run`: the derived plan, so that nobody has to guess what a batch is."""

from rich.table import Table

from common.config import Config
from common.prepare import Prepared


def plan_table(config: Config, prepared: Prepared) -> Table:
    """What the settings come to, in prompts, responses and tokens."""
    table = Table(title=f"plan of {config.name}", show_header=False, title_justify="left")
    for name, value in plan_rows(config, prepared):
        table.add_row(name, value)
    return table


def plan_rows(config: Config, prepared: Prepared) -> list[tuple[str, str]]:
    """Name and value."""
    groups, members, per_update = config.groups_per_round, config.responses_per_group, config.update_groups
    responses, num_updates = groups * members, config.updates_per_round
    last = groups - (num_updates - 1) * per_update
    num_parameters = sum(_size(tensor.shape) for tensor in prepared.layout.values())
    epochs = config.rounds * groups / len(prepared.workload.problems)
    longest = max(len(problem.prompt_ids) for problem in prepared.workload.problems)
    return [
        ("model", f"{prepared.model_dir} ({num_parameters:,} parameters)"),
        (
            "problems",
            f"{len(prepared.workload.problems):,} ({prepared.workload.num_filtered} too long, "
            f"{prepared.workload.num_duplicates} repeated: left out); {epochs:.2f} epochs",
        ),
        ("rounds", f"{config.rounds}, schedule {config.schedule}, group order {config.group_order}"),
        ("a round", f"{groups} groups x {members} responses = {responses} responses"),
        ("updates", f"{num_updates} a round of {per_update} groups" + (f", the last of {last}" if last != per_update else "")),
        ("frontier", f"{config.width} groups = {config.width * members} requests"),
        ("engines", f"{config.rollout.replicas} x {config.rollout.capacity} requests in flight, {config.rollout.dtype}"),
        ("trainer", f"{config.trainer}, {_ranks(config)}, loss {config.training.loss}, {config.training.dtype}"),
        (
            "lengths",
            f"prompt up to {longest}, response up to {config.sampling.max_tokens}, engine context {prepared.max_model_len}",
        ),
        ("tokens a round", f"at most {responses * config.sampling.max_tokens:,} sampled"),
        ("micro-batch", f"at most {config.training.micro_batch_tokens:,} padded tokens a rank"),
        ("checkpoint", f"about {_mib(12 * num_parameters)} (weights and two moments in float32)"),
    ]


def _ranks(config: Config) -> str:
    ranks, tp = config.training.ranks, config.training.tensor_parallel
    return f"{ranks} ranks" if config.trainer == "torch" else f"{ranks} devices (fsdp {ranks // tp} x tp {tp})"


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
