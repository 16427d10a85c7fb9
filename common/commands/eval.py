"""`rolloutpipe eval`: a model's answers on problems, with engines and verifier as in a training, and no trainer."""

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from common.commands.json_file import write_json
from common.commands.train import told
from common.config import Config
from common.errors import RunError
from common.evaluation.checkpoint import Located, as_hugging_face, locate
from common.evaluation.evaluator import EvalParts, Evaluation, Evaluator
from common.evaluation.prepare import PreparedEval, check_out, prepare_eval, seen_line, started
from common.evaluation.serving import ServedModel, served
from common.evaluation.show import EvalDisplay, category_table, figures_table
from common.launch import check_cluster, ray_running
from common.prepare import check_remote, check_rewards
from common.report.groups import GroupWriter
from common.rundir import RunDir, create
from common.timeline import Timeline


@dataclass(frozen=True, slots=True)
class _Places:
    """Where things go; `scratch` is there while the command runs."""

    run_dir: RunDir
    scratch: Path


def evaluate(config: Config, checkpoint: Path | None, out: Path | None, console: Console) -> dict[str, Any]:
    """Evaluate, show it, and leave samples, timeline and `eval.json` in `out`. Returns what that holds.

    Raises ConfigError and DataError before anything is written, RunError where nothing could be scored.
    """

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    out = out or Path("runs") / f"{config.name}-eval-{time.strftime('%Y%m%d-%H%M%S')}"
    check_out(out)
    check_cluster(config, ["rollout"])
    check_rewards(config)
    located = locate(config, checkpoint, say)
    prepared = prepare_eval(config, located, say)
    check_remote(config, prepared.workload.examples)
    say(f"model: {located.weights}; {len(prepared.workload.problems)} problems of {prepared.workload.name}")
    places = _Places(RunDir(out), out / ".scratch")
    create(places.run_dir, config)
    try:
        evaluation = _record(config, prepared, places, console)
    finally:
        shutil.rmtree(places.scratch, ignore_errors=True)
    result = _result(config, prepared, evaluation, out)
    write_json(out / "eval.json", result)
    _show(config, prepared, evaluation, console, say)
    say(f"samples: {places.run_dir.eval_samples}")
    if evaluation.figures.accuracy is None:
        raise RunError(f"no sample was scored, of {evaluation.figures.samples}; reasons are in {places.run_dir.path}")
    return result


def _record(config: Config, prepared: PreparedEval, places: _Places, console: Console) -> Evaluation:
    num_samples = len(prepared.workload.problems) * config.eval.samples
    with Timeline(places.run_dir.timeline) as timeline, EvalDisplay(timeline, console, num_samples):
        try:
            model = _model(prepared.located, places, timeline)
            with ray_running(timeline, config.cluster):
                evaluation = asyncio.run(_run(config, prepared, model, places, timeline))
            timeline.check()
            return evaluation
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise KeyboardInterrupt from None
        except Exception as error:
            raise told(error, places.run_dir) from error


def _model(located: Located, places: _Places, timeline: Timeline) -> Path:
    if located.kind == "hf":
        return located.weights
    timeline.emit("phase", name="converting the checkpoint")
    places.scratch.mkdir()
    return as_hugging_face(located, places.scratch / "model")


async def _run(config: Config, prepared: PreparedEval, model: Path, places: _Places, timeline: Timeline) -> Evaluation:
    version, spool = prepared.located.version, places.scratch / "spool"
    timeline.emit("phase", name="starting engines and verifier")
    async with (
        started(config, prepared, model, places.run_dir.logs) as (pool, verifier, start),
        served(config, pool, ServedModel(config, pool, model, spool, version), start, timeline),
    ):
        timeline.emit("phase", name="evaluating")
        with GroupWriter(places.run_dir.eval_samples) as writer:
            parts = EvalParts(
                engine=pool,
                verifier=verifier,
                decode=lambda ids: str(prepared.tokenizer.decode(ids, skip_special_tokens=True)),
                timeline=timeline,
                problems=prepared.workload.problems,
                on_group=lambda group, problem: writer.write(version, group, prompt=problem.prompt),
            )
            return await Evaluator(config, parts, version=version).run()


def _result(config: Config, prepared: PreparedEval, evaluation: Evaluation, out: Path) -> dict[str, Any]:
    source = config.eval.workload or config.workload
    found = evaluation.to_json()
    return {
        "model": str(prepared.located.weights),
        "weight_version": evaluation.version,
        "workload": source.name,
        "part": "held out" if source.holdout > 0 else "all",
        "content_hash": prepared.workload.content_hash,
        "trained_on": prepared.num_seen,
        "settings": config.eval.model_dump(mode="json"),
        "seconds": round(evaluation.end_s - evaluation.start_s, 3),
        "figures": found["figures"],
        "categories": found["categories"],
        "out": str(out),
    }


def _show(config: Config, prepared: PreparedEval, evaluation: Evaluation, console: Console, say: Callable[[str], None]) -> None:
    console.print(figures_table(evaluation))
    if evaluation.categories:
        console.print(category_table(evaluation))
    say(seen_line(prepared))
