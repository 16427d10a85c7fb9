"""`rolloutpipe train`: a run from a configuration, or the rest of one (`--resume`)."""

import asyncio
import json
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from common.config import Config, load_config
from common.disk import stopped
from common.disk_space import check_space, disk_needs
from common.display import LiveDisplay, final_table
from common.errors import ConfigError, DataError, DiskError, InputError, RolloutPipeError, RunError, explain
from common.evaluation.training import check_same_evaluations
from common.event_fields import whole_event
from common.json_lines import read_lines
from common.launch import check_cluster, launched, ray_running
from common.plan_given import of_prepared
from common.prepare import Prepared, prepare
from common.report.html import write_report
from common.report.tensorboard import TensorboardListener
from common.report.trace import write_trace
from common.resume import check_same_run, model_identity
from common.run import Run
from common.run_parts import RunResult
from common.rundir import (
    RunDir,
    begun,
    check_same_problems,
    check_same_start,
    create,
    finished_checkpoints,
    has_begun,
    held,
    plan_run_dir,
    read_state,
    undo,
    write_atomically,
    write_config,
)
from common.spool_place import planned_root
from common.stacks import stack_dumps
from common.timeline import Timeline


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
    check_same_run(config, before, run_dir)
    if config.run_dir is not None and config.run_dir != before.run_dir and Path(config.run_dir).resolve() != resume.resolve():
        raise ConfigError(explain("run_dir", f"must be the run to resume ({resume})", config.run_dir, "leave it out"))
    check_same_evaluations(config, before, run_dir)
    return config, run_dir


def finished_result(config: Config, run_dir: RunDir) -> dict[str, Any] | None:
    """What a run that has nothing left to do gave (`result.json`); None where rounds are left."""
    finished = finished_checkpoints(run_dir)
    if not finished or read_state(finished[-1])["round"] < config.rounds:
        return None
    if not (run_dir.result.is_file() and run_dir.model.is_dir()):
        return None
    try:
        return dict(json.loads(run_dir.result.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(explain("--resume", "needs a readable result.json", str(run_dir.path), "remove that file")) from error


def train(config: Config, run_dir: RunDir, console: Console, *, resume: bool = False) -> RunResult:
    """Run to the end, show it, and write the reports. Raises the run's error after the reports of what there is."""
    check_cluster(config)
    with held(run_dir) if resume else begun(run_dir):
        return _train(config, run_dir, console, resume)


def _train(config: Config, run_dir: RunDir, console: Console, resume: bool) -> RunResult:
    prepared = prepare(config, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
    start = {"workload": prepared.workload.content_hash, "model": model_identity(prepared.model_dir)}
    needs = disk_needs(config, of_prepared(prepared), run_dir if resume else None)
    check_space(needs, run_dir.path, planned_root(config, run_dir.path, needs.spool))
    if resume:
        check_same_start(run_dir, start)
        if finished := finished_checkpoints(run_dir):
            check_same_problems(read_state(finished[-1]), prepared.workload.content_hash)
        run_dir.logs.mkdir(exist_ok=True)  # of a directory that holds nothing but what a resume needs
    was_empty = not any(run_dir.path.iterdir())
    if not resume:
        create(run_dir, config, start)
    try:
        result = _record(config, prepared, run_dir, console, resume)
    except BaseException as error:
        if isinstance(error, InputError) and not (resume or has_begun(run_dir)):
            undo(run_dir, was_empty=was_empty)
            raise
        _write_reports(run_dir, console)
        raise
    written = _write_reports(run_dir, console)
    console.print(final_table(result.rounds, run_dir.path))
    if "report.html" in written:
        console.print(f"report: {written['report.html']}", markup=False, highlight=False, soft_wrap=True)
    return result


def _write_reports(run_dir: RunDir, console: Console) -> dict[str, Path]:
    """Those that could be written. Why one could not is told, and never in place of how the run itself ended."""
    written = {}
    for name, write in (("trace.json", write_trace), ("report.html", write_report)) if run_dir.timeline.exists() else ():
        try:
            written[name] = write(run_dir.path)
        except Exception as error:  # whatever it was: it is not the run's
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            console.print(f"{name} was not written: {cause}", markup=False, highlight=False, soft_wrap=True)
    return written


def _record(config: Config, prepared: Prepared, run_dir: RunDir, console: Console, resume: bool) -> RunResult:
    """The run within its timeline, which ends by saying how the run ended."""
    start_s = _last_event_s(run_dir) if resume else 0.0
    if resume:
        write_config(run_dir, config)
    with Timeline(run_dir.timeline, offset_s=start_s) as timeline:
        tensorboard = TensorboardListener(timeline, run_dir.tensorboard)
        status, detail = "failed", ""
        try:
            with LiveDisplay(timeline, console), stack_dumps(run_dir, timeline, console):
                _emit_start(config, timeline)
                # Outside the event loop: there Ctrl-C would wait until Ray has started.
                with ray_running(timeline, config.cluster):
                    result = asyncio.run(_run(config, prepared, run_dir, timeline, resume))
            status = "finished"
            return result
        except (KeyboardInterrupt, asyncio.CancelledError):
            status = "stopped"
            raise KeyboardInterrupt from None
        except Exception as error:
            detail = " ".join(str(error).split())
            failure = told(error, run_dir)
            raise stopped(error, run_dir.path) or failure from error
        finally:
            timeline.emit("run_end", status=status, detail=detail)
            with suppress(DiskError):  # `timeline.check` has told it
                tensorboard.close()


async def _run(config: Config, prepared: Prepared, run_dir: RunDir, timeline: Timeline, resume: bool) -> RunResult:
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
    return max(read_lines(run_dir.timeline, lambda line: float(whole_event(line)["t"])), default=0.0)


def told(error: Exception, run_dir: RunDir) -> Exception:
    """The same error with the place of the logs; its traceback goes there, not to the terminal."""
    log = run_dir.logs / "driver.log"
    with suppress(DiskError):  # that the disk is full may be the very thing to tell
        write_atomically(log, "".join(traceback.format_exception(error)))
    if isinstance(error, InputError):
        return error
    text = str(error) if isinstance(error, RolloutPipeError) else f"{type(error).__name__}: {error}"
    return RunError(text if str(run_dir.logs) in text else f"{text}; see {log}")
