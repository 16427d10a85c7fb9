"""`rolloutpipe compare`: the same prompts from the same starting weights under each schedule, side by side."""

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from common.commands.train import train
from common.config import Config
from common.config_errors import validate
from common.metrics import COMPARED, RoundMetrics, summarize
from common.report.compare import write_compare_report
from common.run_parts import RunResult
from common.rundir import RunDir, plan_run_dir, write_atomically


def compare(config: Config, schedules: list[str], console: Console) -> dict[str, Any]:
    """One run per schedule in a directory of its own; returns what `compare.json` holds."""
    root = plan_run_dir(config).path
    configs = [_with_schedule(config, schedule, root) for schedule in schedules]
    for one in configs:
        plan_run_dir(one)  # refuses before the first run, not after it
    results = []
    for one in configs:
        console.rule(f"schedule {one.schedule}")
        results.append(train(one, RunDir(root / one.schedule), console))
    table = comparison(results)
    write_atomically(root / "compare.json", json.dumps(table, indent=1))
    console.print(comparison_table(table))
    for line in contention_lines(table):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {write_compare_report(root)}", markup=False, highlight=False, soft_wrap=True)
    return table


def _with_schedule(config: Config, schedule: str, root: Path) -> Config:
    data = config.model_dump(mode="json")
    return validate(Config, {**data, "schedule": schedule, "run_dir": str(root / schedule)})


def comparison(results: list[RunResult]) -> dict[str, Any]:
    """What `compare.json` holds: each round's figures (COMPARED), and their medians by schedule."""
    return {
        "schedules": [
            {
                "schedule": result.schedule,
                "rounds": [_round(metrics) for metrics in result.rounds],
                "median": {name: value for name, value in summarize(result.rounds).items() if name in COMPARED},
                "final_weights_sha256": result.final_weights_sha256,
            }
            for result in results
        ]
    }


def _round(metrics: RoundMetrics) -> dict[str, Any]:
    values = metrics.to_json()
    return {"round": metrics.round, **{name: values[name] for name in COMPARED}}


def comparison_table(data: dict[str, Any]) -> Table:
    """Medians side by side; ratios against the first schedule."""
    table = Table(box=box.SIMPLE_HEAD, title="medians of the rounds, seconds", title_justify="left", padding=(0, 1, 0, 0))
    for heading in ("schedule", "train\nend", "ratio", "first\ndispatch", "waits", "rollout", "compute", "tokens", "weights"):
        table.add_column(heading, justify="left" if heading in ("schedule", "weights") else "right", no_wrap=True)
    base = data["schedules"][0]["median"]
    for row in data["schedules"]:
        median = row["median"]
        table.add_row(
            row["schedule"],
            f"{median['r2t_end_s']:.2f}",
            f"{median['r2t_end_s'] / base['r2t_end_s']:.2f}",
            f"{median['first_dispatch_s']:.2f}",
            f"{100 * median['waiting_ratio']:.1f} %",
            f"{median['rollout_s']:.2f}",
            f"{median['trainer_compute_s']:.2f}",
            f"{sum(one['tokens'] for one in row['rounds']):,}",
            row["final_weights_sha256"][:10],
        )
    return table


def contention_lines(data: dict[str, Any]) -> list[str]:
    """How much longer rollout and training take when they share the machine than alone (`serial` measures them alone)."""
    by_name = {row["schedule"]: row["median"] for row in data["schedules"]}
    if "serial" not in by_name:
        return []
    alone = by_name["serial"]
    lines = []
    for name, median in by_name.items():
        if name != "serial":
            rollout, compute = median["rollout_s"] / alone["rollout_s"], median["trainer_compute_s"] / alone["trainer_compute_s"]
            lines.append(f"contention under {name}: rollout takes {rollout:.2f}, training {compute:.2f} times as long as alone")
    return lines
