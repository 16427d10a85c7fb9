"""A run: version 0 is published, then rounds; after each round the next version (rule 6), metrics and, if due, a checkpoint.

    publish 0 ──> round 0, publish 1 ──> round 1, publish 2 ──> ... ──> round N-1, export N ──> model/

The last version is exported and checked, but not sent to the engines: nothing will be sampled from it, unless it is evaluated.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.config import Config
from common.disk import writing
from common.errors import TrainerError
from common.evaluation.evaluator import EvalParts
from common.evaluation.training import TrainingEvals
from common.history import History
from common.metrics import RoundCollector, RoundMetrics
from common.metrics_file import append_metrics, metrics_line, read_metrics
from common.protocols import Engine, Problem, Trainer, Verifier
from common.publish import Publisher
from common.records import Group
from common.report.groups import GroupWriter, round_path
from common.retention import prune_samples
from common.rollout_side import Parts
from common.round import Round
from common.rundir import RunDir, check_same_problems, checkpoint_dir, newest_checkpoint, prune, write_atomically
from common.timeline import Timeline
from common.workloads.load import Workload
from common.workloads.sampler import PromptSampler


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What a run works with; made and closed by `common.launch`."""

    engine: Engine
    trainer: Trainer
    verifier: Verifier
    publisher: Publisher
    decode: Callable[[Any], str]
    workload: Workload
    eval_problems: Sequence[Problem] = ()
    timeline: Timeline
    model_dir: Path  # of the starting weights


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run gave; also `result.json`."""

    schedule: str
    rounds: list[RoundMetrics]
    weight_version: int
    final_weights_sha256: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "rounds": [metrics.to_json() for metrics in self.rounds]}


class Run:
    """`await Run(...).run()`; with `resume`, from the newest finished checkpoint of the run directory."""

    def __init__(self, config: Config, parts: RunParts, run_dir: RunDir) -> None:
        self._config, self._parts, self._run_dir = config, parts, run_dir
        self._sampler = PromptSampler(len(parts.workload.problems), config.seed, config.workload.when_short)
        self._collector = RoundCollector(lambda metrics: append_metrics(run_dir.metrics, metrics))
        self._groups = GroupWriter(run_dir.groups)
        self._evals = TrainingEvals(config, self._eval_parts(), run_dir)
        self._history = History()  # of this process: a resumed run learns anew
        self._round = 0  # the next one
        self._saved_round = 0  # rounds in the newest checkpoint
        self._saving: asyncio.Task[None] | None = None  # of a checkpoint that is captured, and being written
        self._version = 0

    async def run(self, *, resume: bool = False) -> RunResult:
        """All rounds. Raises the first error; what was recorded until then stays readable."""
        parts, timeline = self._parts, self._parts.timeline
        timeline.listen(self._collector.listen)
        if resume:
            await self._restore()
        timeline.emit("phase", name=f"publishing weight version {self._version}")
        await parts.publisher.publish(self._version, None)
        try:
            await self._run_rounds()
            await self._end_save()
            if self._saved_round != self._round:
                await self._save()
                await self._end_save()
            self._write_model()
            if (evaluator := self._evals.at_the_end(self._version)) is not None:
                timeline.emit("phase", name=f"evaluating weight version {self._version}")
                await evaluator.run()
        except BaseException:
            await self._end_save_soon()
            raise
        finally:
            self._evals.close()
        timeline.check()
        result = RunResult(
            schedule=self._config.schedule,
            rounds=self._collector.rounds,
            weight_version=self._version,
            final_weights_sha256=parts.publisher.sha256(),
        )
        write_atomically(self._run_dir.result, json.dumps(result.to_json(), indent=1))
        return result

    async def _run_rounds(self) -> None:
        try:
            while self._round < self._config.rounds and (problems := self._draw()):
                await Round(self._config, self._round_parts(), index=self._round, version=self._version).run(problems)
                self._round += 1
                self._parts.timeline.check()
                if self._saving is not None and self._saving.done():
                    await self._end_save()  # where it failed, no further round is sampled
                if self._config.checkpoint.every and self._round % self._config.checkpoint.every == 0:
                    await self._save()
        finally:
            self._groups.close()

    def _round_parts(self) -> Parts:
        parts = self._parts
        return Parts(
            engine=parts.engine,
            trainer=parts.trainer,
            verifier=parts.verifier,
            decode=parts.decode,
            timeline=parts.timeline,
            on_group=self._store,
            refill=self._refill,
            publish=self._publish,
            evaluator=self._evals.in_round(self._round, self._version),
            history=self._history,
        )

    def _eval_parts(self) -> EvalParts:
        parts = self._parts
        return EvalParts(
            engine=parts.engine,
            verifier=parts.verifier,
            decode=parts.decode,
            timeline=parts.timeline,
            problems=parts.eval_problems,
        )

    def _draw(self) -> list[Problem]:
        """The round's problems; empty where the data ends the run (`when_short: stop`)."""
        return [self._parts.workload.problems[index] for index in self._sampler.draw(self._config.groups_per_round)]

    def _refill(self) -> Problem | None:
        index = self._sampler.draw_extra()
        return None if index is None else self._parts.workload.problems[index]

    def _store(self, group: Group, problem: Problem) -> None:
        self._parts.timeline.check()  # what could not be recorded must not be trained
        self._groups.write(self._round, group, prompt=problem.prompt)

    async def _publish(self) -> None:
        """The end of a round: its weights are the next version."""
        self._version += 1
        publisher = self._parts.publisher
        is_last = self._round + 1 == self._config.rounds and not self._evals.is_on
        await (publisher.export if is_last else publisher.publish)(self._version, self._round)

    async def _save(self) -> None:
        """Capture a checkpoint of the rounds so far; it is written while the next round samples."""
        await self._end_save()
        self._parts.timeline.emit("phase", name="saving a checkpoint")
        directory = checkpoint_dir(self._run_dir, self._round)
        shutil.rmtree(directory, ignore_errors=True)
        with writing(directory):
            directory.mkdir(parents=True)
        await self._bounded(self._parts.trainer.save(directory / "trainer"), "save")
        state = {
            "round": self._round,
            "version": self._version,
            "sampler": self._sampler.state(),
            "workload": self._parts.workload.content_hash,
        }
        self._saving = asyncio.create_task(self._finish_save(self._round, directory, json.dumps(state)))

    async def _finish_save(self, num_rounds: int, directory: Path, state: str) -> None:
        """Make the captured checkpoint count; one that is interrupted before its `state.json` counts for nothing."""
        await self._bounded(self._parts.trainer.saved(), "saved")
        write_atomically(directory / "state.json", state)
        self._saved_round = num_rounds
        prune(self._run_dir, self._config.checkpoint.keep)
        prune_samples(self._run_dir, self._config.retention, num_rounds)

    async def _end_save(self) -> None:
        """Wait for the open checkpoint; raises what kept it from being written. Cut off, it leaves the writing going on."""
        if self._saving is not None:
            await asyncio.wait((self._saving,))
            saving, self._saving = self._saving, None
            saving.result()

    async def _end_save_soon(self) -> None:
        """The same within the deadline of closing, after an error: that one is to be told, not what this one finds."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            await asyncio.wait((saving,), timeout=self._config.limits.close_timeout_s)
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)

    async def _restore(self) -> None:
        checkpoint, state = newest_checkpoint(self._run_dir)
        check_same_problems(state, self._parts.workload.content_hash)
        await self._bounded(self._parts.trainer.restore(checkpoint / "trainer"), "restore")
        self._sampler.restore(state["sampler"])
        self._round, self._version = state["round"], state["version"]
        self._saved_round = self._round
        self._forget_later_rounds()

    async def _bounded(self, call: Coroutine[Any, Any, None], name: str) -> None:
        limit = self._config.limits.update_timeout_s
        try:
            async with asyncio.timeout(limit):
                await call
        except TimeoutError as error:
            raise TrainerError(f"trainer call {name} did not end within limits.update_timeout_s ({limit:g} s)") from error

    def _forget_later_rounds(self) -> None:
        """Rounds after the checkpoint are sampled again; their first try must not stand beside the second."""
        kept = [metrics for metrics in read_metrics(self._run_dir.metrics) if metrics.round < self._round]
        write_atomically(self._run_dir.metrics, "".join(map(metrics_line, kept)))
        self._collector.rounds[:] = kept
        self._evals.restore(self._round)
        for path in self._run_dir.groups.glob("round-*.jsonl"):
            if path >= round_path(self._run_dir.groups, self._round):
                path.unlink()

    def _write_model(self) -> None:
        """`model/`: the last weights with the starting model's configuration and tokenizer, for transformers and vLLM."""
        partial = self._run_dir.path / ".model.partial"
        shutil.rmtree(partial, ignore_errors=True)
        keep = shutil.ignore_patterns("*.safetensors", "*.safetensors.index.json", "*.bin", "*.gguf")
        with writing(self._run_dir.model):
            shutil.copytree(self._parts.model_dir, partial, ignore=keep)
            self._parts.publisher.write_model(partial)
            shutil.rmtree(self._run_dir.model, ignore_errors=True)
            partial.rename(self._run_dir.model)
