"""One scenario under several schedules, side by side: a table, and run directories for `rolloutpipe report`.

All schedules get the same response lengths and verifier times, so a difference is the schedule's and not luck.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from common.errors import ConfigError, explain
from common.figures import percent, seconds
from common.metrics import COMPARED, summarize
from common.report.compare import write_compare_report
from common.rundir import write_atomically
from common.simulation.models import SCHEDULES, Scenario
from common.simulation.out_directory import new_directory
from common.simulation.run import SimulatedRun, simulate
from common.simulation.scenario_file import describe

FIGURES = tuple(name for name in COMPARED if name != "trainer_cpu_s")  # nothing is computed
MAX_DETAIL = 50_000  # requests of a run, above which its timeline has no events of single ones
_HEADINGS = ("schedule", "train\nend", "ratio", "first\ndispatch", "waits", "rollout", "compute", "tokens")


def simulate_scenario(scenario: Scenario, schedules: Sequence[str], out: Path | None, console: Console) -> dict[str, Any]:
    """Each round's FIGURES and their medians by schedule; prints the medians.

    `out`: a directory that gets a run directory for each schedule, compare.json and report.html. Raises ConfigError for an
    unknown or repeated schedule, and where `out` holds something already or cannot be made. An interrupted one leaves nothing.
    """
    scenarios = _with_schedules(scenario, schedules)
    with new_directory(out):
        runs = [_simulate(one, out, console) for one in scenarios]
        data = {"simulated": True, "scenario": describe(scenario), "schedules": [_row(run) for run in runs]}
        console.print(schedules_table(data))
        if out is not None:
            write_atomically(out / "compare.json", json.dumps(data, indent=1))
            console.print(f"report: {write_compare_report(out)}", markup=False, highlight=False, soft_wrap=True)
    return data


def _with_schedules(scenario: Scenario, schedules: Sequence[str]) -> list[Scenario]:
    if not schedules or len(set(schedules)) != len(schedules):
        given = ",".join(schedules)
        raise ConfigError(explain("--schedules", "must name each schedule once", given, "for example serial,cgp,fgd"))
    for name in schedules:
        if name not in SCHEDULES:
            rule = f"must be some of {','.join(SCHEDULES)}"
            raise ConfigError(explain("--schedules", rule, name, "separate them with commas"))
    return [replace(scenario, schedule=name) for name in schedules]


def _simulate(scenario: Scenario, out: Path | None, console: Console) -> SimulatedRun:
    if out is None:
        return simulate(scenario)
    directory = out / scenario.schedule
    directory.mkdir(parents=True)
    text = yaml.safe_dump({"simulated": True, **describe(scenario)}, sort_keys=False)
    (directory / "config.yaml").write_text(text, encoding="utf-8")
    num_requests = scenario.rounds * scenario.groups_per_round * scenario.responses_per_group
    has_detail = num_requests <= MAX_DETAIL
    if not has_detail:
        limit = f"more than {MAX_DETAIL:,}: the timeline has no events of single ones"
        console.print(f"{scenario.schedule}: {num_requests:,} requests, {limit}", markup=False, highlight=False, soft_wrap=True)
    return simulate(scenario, path=directory / "timeline.jsonl", has_detail=has_detail)


def _row(run: SimulatedRun) -> dict[str, Any]:
    rounds = [metrics.to_json() for metrics in run.rounds]
    return {
        "schedule": run.scenario.schedule,
        "rounds": [{"round": row["round"], **{name: row[name] for name in FIGURES}} for row in rounds],
        "median": {name: value for name, value in summarize(run.rounds).items() if name in FIGURES},
    }


def schedules_table(data: dict[str, Any]) -> Table:
    """Medians of the rounds; ratios against the first schedule."""
    table = Table(box=box.SIMPLE_HEAD, title="simulated: medians of the rounds", title_justify="left", padding=(0, 1, 0, 0))
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "schedule" else "right", no_wrap=True)
    base = data["schedules"][0]["median"]["r2t_end_s"]
    for row in data["schedules"]:
        median = row["median"]
        table.add_row(
            row["schedule"],
            seconds(median["r2t_end_s"]),
            f"{median['r2t_end_s'] / base:.3f}" if base else "",
            seconds(median["first_dispatch_s"]),
            percent(median["waiting_ratio"]),
            seconds(median["rollout_s"]),
            seconds(median["trainer_compute_s"]),
            f"{sum(one['tokens'] for one in row['rounds']):,}",
        )
    return table
