"""`rolloutpipe train`: a run from a configuration, or the rest of one (`--resume`)."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console

from common.config import Config, load_config
from common.display import LiveDisplay, final_table
from common.errors import ConfigError, explain
from common.launch import launched, ray_running
from common.prepare import Prepared, prepare
from common.report.html import write_report
from common.report.tensorboard import TensorboardListener
from common.report.trace import write_trace
from common.run import Run, RunResult
from common.rundir import RunDir, create, plan_run_dir
from common.timeline import Timeline, read_timeline

FIXED = ("seed", "model", "workload", "trainer", "groups_per_round", "responses_per_group", "groups_per_update")


def resolve(config_path: Path | None, overrides: list[str], resume: Path | None) -> tuple[Config, RunDir]:
    """The configuration and its run directory; nothing is made yet."""
    if resume is None:
        if config_path is None:
            raise ConfigError(explain("CONFIG", "must be given", None, "for example configs/quickstart.yaml"))
        config = load_config(config_path, overrides)
        return config, plan_run_dir(config)
    run_dir = RunDir(resume)
    if not run_dir.config.is_file():
        raise ConfigError(
            explain("--resume", "must be a run directory", str(resume), "give the directory that holds config.yaml")
        )
    before = load_config(run_dir.config)
    config = load_config(config_path or run_dir.config, overrides)
    for field in FIXED:
        if getattr(config, field) != getattr(before, field):
            rule = f"must be what the run was started with ({_plain(getattr(before, field))})"
            raise ConfigError(explain(field, rule, _plain(getattr(config, field)), "leave it out, or start a new run"))
    return config, run_dir


def _plain(value: object) -> object:
    return value.model_dump(exclude_defaults=True) if isinstance(value, BaseModel) else value


def train(config: Config, run_dir: RunDir, console: Console, *, resume: bool = False) -> RunResult:
    """Run to the end, show it, and write the reports. Raises the run's error after the reports of what there is."""
    prepared = prepare(config, lambda line: console.print(line, highlight=False))
    if not resume:
        create(run_dir, config)
    try:
        result = _record(config, prepared, run_dir, console, resume)
    finally:
        if run_dir.timeline.exists():
            write_trace(run_dir.path)
            write_report(run_dir.path)
    console.print(final_table(result.rounds, run_dir.path))
    return result


def _record(config: Config, prepared: Prepared, run_dir: RunDir, console: Console, resume: bool) -> RunResult:
    """The run within its timeline, which ends by saying how the run ended."""
    start_s = _last_event_s(run_dir) if resume else 0.0
    with Timeline(run_dir.timeline, offset_s=start_s) as timeline:
        tensorboard = TensorboardListener(timeline, run_dir.tensorboard)
        status, detail = "failed", ""
        try:
            with LiveDisplay(timeline, console):
                _emit_start(config, timeline)
                # Outside the event loop: there Ctrl-C would wait until Ray has started.
                with ray_running(timeline):
                    result = asyncio.run(_run(config, prepared, run_dir, timeline, resume))
            status = "finished"
            return result
        except (KeyboardInterrupt, asyncio.CancelledError):
            status = "stopped"
            raise KeyboardInterrupt from None
        except Exception as error:
            detail = " ".join(str(error).split())
            raise
        finally:
            timeline.emit("run_end", status=status, detail=detail)
            tensorboard.close()


async def _run(config: Config, prepared: Prepared, run_dir: RunDir, timeline: Timeline, resume: bool) -> RunResult:
    _end_on_sigterm()
    async with launched(config, prepared, run_dir, timeline) as parts:
        return await Run(config, parts, run_dir).run(resume=resume)


def _emit_start(config: Config, timeline: Timeline) -> None:
    timeline.emit(
        "run_start",
        name=config.name,
        schedule=config.schedule,
        rounds=config.rounds,
        groups_per_round=config.groups_per_round,
        responses_per_group=config.responses_per_group,
        groups_per_update=config.update_groups,
        max_logprob_gap=config.limits.max_logprob_gap,
    )


def _last_event_s(run_dir: RunDir) -> float:
    """Where a resumed timeline goes on."""
    events = read_timeline(run_dir.timeline) if run_dir.timeline.exists() else iter(())
    return max((float(event["t"]) for event in events), default=0.0)


def _end_on_sigterm() -> None:
    """SIGTERM ends the run as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    cancel: Callable[[], object] = task.cancel
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, cancel)
