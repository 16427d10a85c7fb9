"""`rolloutpipe plan`: how many devices to give to rollout, and how many to training. docs/plan.md."""

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.config_errors import read_yaml, validate, with_overrides
from common.figures import number, percent, seconds
from common.simulation.calibrate import calibrate
from common.simulation.lengths import LengthModel, RecordedLengths
from common.simulation.recording import read_recording
from common.simulation.split import Split, SplitConfig, best, splits

ASSUMED = (
    "assumed: a replica is as fast as measured, however many there are; training grows with its devices to the power of "
    "{power:g}; neither side slows the other down; further devices are like those that the side was measured on"
)


def plan(source: Path, overrides: list[str], devices: int | None, console: Console) -> dict[str, Any]:
    """Every split of the budget with its predicted round; `source` is a run directory or a YAML file of rates."""
    data, recorded = _of_run(source) if source.is_dir() else (read_yaml(source), None)
    data = with_overrides(data, overrides)
    config = validate(SplitConfig, data if devices is None else {**data, "devices": devices})
    found = splits(config, recorded)
    chosen = best(found)
    console.print(_table(config, found, chosen))
    best_line = f"* best: {chosen.rollout_devices} for rollout, {chosen.training_devices} for training"
    console.print(f"{best_line}; {seconds(chosen.r2t_end_s)} a round", markup=False, highlight=False, soft_wrap=True)
    assumed = ASSUMED.format(power=config.training.scaling_exponent)
    console.print(assumed, markup=False, highlight=False, soft_wrap=True)
    return {
        "devices": config.devices,
        "schedule": config.schedule,
        "splits": [{**split.to_json(), "is_best": split is chosen} for split in found],
        "best": chosen.to_json(),
        "assumed": assumed,
    }


def _of_run(directory: Path) -> tuple[dict[str, Any], LengthModel]:
    """What a `SplitConfig` needs, and the recorded lengths; by default the budget is what the run had."""
    recording = read_recording(directory, "SOURCE")
    found, config = calibrate(recording, "SOURCE"), recording.config
    per_replica, rounds = config.rollout.tensor_parallel, recording.rounds
    data = {
        "name": config.name,
        "devices": config.rollout.replicas * per_replica + config.training.ranks,
        # A serial run is what measures the rates best, and no schedule to plan for.
        "schedule": "fgd" if config.schedule == "serial" else config.schedule,
        "rounds": len(rounds),
        "groups_per_round": config.groups_per_round,
        "responses_per_group": config.responses_per_group,
        "groups_per_update": config.update_groups,
        "frontier_width": config.frontier_width,
        "request_order": config.request_order,
        "group_order": config.group_order,
        "prompt_tokens": found.prompt_tokens,
        "verifier_s": found.verifier.seconds,
        "seed": config.seed,
        "rollout": {
            "devices": config.rollout.replicas * per_replica,
            "devices_per_replica": per_replica,
            "capacity": config.rollout.capacity,
            "step_s": found.engine.step_s,
            "step_per_request_s": found.engine.step_per_request_s,
            "prefill_s_per_token": found.engine.prefill_s_per_token,
        },
        "training": {
            "devices": config.training.ranks,
            "devices_multiple": config.training.tensor_parallel,
            "token_s": found.trainer.token_s,
            "group_s": found.trainer.group_s,
            "update_s": found.trainer.update_s,
        },
    }
    return data, RecordedLengths([one.lengths for one in rounds])


def _table(config: SplitConfig, found: list[Split], chosen: Split) -> Table:
    title = f"{config.name}: {number(config.devices)} devices, schedule {config.schedule}"
    table = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("rollout +\ntraining", no_wrap=True)
    for heading in ("round", "first\ndispatch", "waits", "rollout\nalone", "compute"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("bottleneck", no_wrap=True)
    for split in found:
        idle = f" ({split.idle_devices} idle)" if split.idle_devices else ""
        table.add_row(
            f"{'*' if split is chosen else ' '} {split.rollout_devices} + {split.training_devices}{idle}",
            seconds(split.r2t_end_s),
            seconds(split.first_dispatch_s),
            percent(split.waiting_ratio),
            seconds(split.rollout_s),
            seconds(split.trainer_compute_s),
            split.bottleneck,
        )
    return table
