"""A whole run with fakes in virtual time, in a real run directory."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from round_lab import RecordingTrainer, config_of

from common.config import Config
from common.errors import InputError, RolloutPipeError
from common.protocols import Engine
from common.publish import Publisher
from common.report.groups import read_groups
from common.run import Run
from common.run_parts import RunParts, RunResult
from common.rundir import RunDir, create
from common.testing import FakeEngine, FakeVerifier, make_problems, run_virtual
from common.testing.fakes import FAKE_LAYOUT
from common.timeline import Event, Timeline, read_timeline
from common.workloads.load import Workload


@dataclass
class Lab:
    """A run that has ended, or was stopped."""

    config: Config
    run_dir: RunDir
    engine: FakeEngine
    trainer: RecordingTrainer
    verifier: FakeVerifier = field(default_factory=FakeVerifier)
    result: RunResult | None = None
    error: BaseException | None = None
    events: list[Event] = field(default_factory=list)  # of this process, not of those before it

    def of(self, kind: str, **fields: Any) -> list[Event]:
        """Events of one kind with these fields."""
        return [e for e in self.events if e["kind"] == kind and all(e.get(name) == value for name, value in fields.items())]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl."""
        return [json.loads(line) for line in self.run_dir.metrics.read_text().splitlines()]

    @property
    def all_events(self) -> list[Event]:
        """Of timeline.jsonl."""
        return list(read_timeline(self.run_dir.timeline))

    def trained_problems(self) -> list[list[str]]:
        """Prompts of the groups on disk, by round."""
        return [sorted(stored.prompt for stored in read_groups(path)) for path in sorted(self.run_dir.groups.glob("*.jsonl"))]


def workload_of(num_problems: int, content_hash: str = "c0ffee") -> Workload:
    """Problems of the fakes."""
    return Workload(
        name="fake",
        problems=tuple(make_problems(num_problems)),
        content_hash=content_hash,
        examples=(),
    )


def model_dir(root: Path) -> Path:
    """What `model/` takes over from the starting model."""
    directory = root / "start"
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"old weights")
    return directory


def run_run(
    root: Path,
    *,
    engine: FakeEngine | None = None,
    trainer: RecordingTrainer | None = None,
    problems: Workload | None = None,
    num_eval: int = 0,
    reward: Callable[[dict[str, Any], str], float | None] | None = None,
    resume: bool = False,
    stop_when: Callable[[Event], bool] | None = None,
    seconds: Callable[[Any], float] = lambda request: 1.0,
    verifier: FakeVerifier | None = None,
    **settings: Any,
) -> Lab:
    """R=4, K=4, U=2, 3 rounds, 20 problems, `num_eval` more for evaluations. `stop_when`: cancelled at that event, as by Ctrl-C.

    Errors are kept in `error`.
    """
    config = config_of(**{"rounds": 3, "sampling": {"max_tokens": 16}, **settings})
    lab = Lab(config, RunDir(root / "run"), engine or FakeEngine(64, seconds=seconds), trainer or RecordingTrainer())
    lab.verifier = verifier or FakeVerifier(reward=reward)
    if not resume:
        create(lab.run_dir, config)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        start_s = max((e["t"] for e in lab.all_events), default=0.0) if resume else 0.0
        with Timeline(lab.run_dir.timeline, loop.time, offset_s=start_s) as timeline:
            timeline.listen(lab.events.append)
            timeline.emit("run_start", schedule=config.schedule)
            task = loop.create_task(_run(lab, timeline, problems or workload_of(20), num_eval, model_dir(root), resume))
            if stop_when is not None:
                timeline.listen(lambda event: task.cancel() and None if stop_when(event) else None)
            await asyncio.wait((task,), timeout=1e6)
            assert task.done(), "the run hangs"
            if task.cancelled():
                lab.error = asyncio.CancelledError()
            elif isinstance(error := task.exception(), RolloutPipeError | InputError | RuntimeError):
                lab.error = error
            else:
                lab.result = task.result()

    run_virtual(main())
    return lab


async def _run(lab: Lab, timeline: Timeline, workload: Workload, num_eval: int, start: Path, resume: bool) -> RunResult:
    engine: Engine = lab.engine
    publisher = Publisher(
        lab.config,
        engines=engine,
        trainer=lab.trainer,
        layout=FAKE_LAYOUT,
        spool_root=lab.run_dir.path / "spool",
        probe_prompts=[problem.prompt_ids for problem in workload.problems[:2]],
        timeline=timeline,
    )
    parts = RunParts(
        engine=engine,
        trainer=lab.trainer,
        verifier=lab.verifier,
        publisher=publisher,
        decode=str,
        workload=workload,
        eval_problems=make_problems(100 + num_eval)[100:],
        timeline=timeline,
        model_dir=start,
    )
    return await Run(lab.config, parts, lab.run_dir).run(resume=resume)
