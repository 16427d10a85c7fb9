"""A run: version 0 is published, then rounds; after each round the next version (rule 6), metrics and, if due, a checkpoint.

    publish 0 ──> round 0, publish 1 ──> round 1, publish 2 ──> ... ──> round N-1, export N ──> model/
        ↑
    restore the newest checkpoint <── trainer died, or the run is resumed

A resume and a trainer that starts again are one thing: the trainer goes back to the newest checkpoint (or to the starting
weights), and each round from there is fed with what its journal holds, and samples the rest. A round that is whole on disk needs
no engine, so its weights are not sent to them. The last version is exported and checked only, unless it is evaluated.
"""

import asyncio
import json
import shutil
from collections.abc import Sequence

from common.checkpoints import Checkpoints
from common.config import Config
from common.disk import writing
from common.errors import DataError, RunError, TrainerDiedError, explain
from common.evaluation.evaluator import EvalParts, Evaluator
from common.evaluation.training import TrainingEvals
from common.history import History
from common.journal import Journal, Recorded, problems_hash
from common.journal_lines import Entry, Head
from common.metrics import RoundCollector
from common.metrics_file import MetricsFile
from common.protocols import Problem
from common.recorded import misfit
from common.records import Group
from common.report.groups import round_path
from common.requests import group_requests
from common.restarts import RestartBudget
from common.rollout_side import Parts
from common.round import Round
from common.run_parts import RunParts, RunResult
from common.rundir import RunDir, check_same_problems, write_atomically
from common.workloads.sampler import PromptSampler


class Run:
    """`await Run(...).run()`; with `resume`, from what the run directory holds."""

    def __init__(self, config: Config, parts: RunParts, run_dir: RunDir) -> None:
        self._config, self._parts, self._run_dir = config, parts, run_dir
        self._metrics = MetricsFile(run_dir.metrics)
        self._collector = RoundCollector(self._metrics.add)
        self._journal = Journal(run_dir.groups, self._tell_left_out)
        self._checkpoints = Checkpoints(config, parts.trainer, run_dir)
        self._evals = TrainingEvals(config, self._eval_parts(), run_dir)
        self._budget = RestartBudget(config.supervision)
        self._furthest, self._progress_s = 0, -1.0  # rounds ended, and when that last became more (seconds of the timeline)
        self._begin_at(0, 0)

    def _begin_at(self, index: int, version: int) -> None:
        """Round and version that come next, as after a start; what a checkpoint knows beside them is put back by the caller."""
        self._round, self._version = index, version
        self._history = History()  # of this try: learned anew after a restart
        self._sampler = self._new_sampler()
        self._is_verified = False  # the engines serve this version, as far as this process has seen

    async def run(self, *, resume: bool = False) -> RunResult:
        """All rounds. Raises the first error; what was recorded until then stays readable, and can be resumed."""
        self._parts.timeline.listen(self._collector.listen)
        fault: TrainerDiedError | None = None
        try:
            while True:
                try:
                    if resume or fault is not None:
                        await self._restore(fault)
                    await self._go_on()
                    break
                except TrainerDiedError as error:
                    fault = error
        except BaseException:
            await self._checkpoints.end_soon()
            raise
        finally:
            self._journal.close()
            self._evals.close()
        self._parts.timeline.check()
        result = RunResult(
            schedule=self._config.schedule,
            rounds=self._metrics.rounds,
            weight_version=self._version,
            final_weights_sha256=self._parts.publisher.sha256(),
        )
        write_atomically(self._run_dir.result, json.dumps(result.to_json(), indent=1))
        return result

    async def _go_on(self) -> None:
        """From the trainer's present state to the end."""
        publisher, timeline = self._parts.publisher, self._parts.timeline
        timeline.emit("phase", name=f"publishing weight version {self._version}")
        await publisher.export(self._version, None)
        await self._run_rounds()
        await self._checkpoints.end()
        if self._checkpoints.saved_rounds != self._round:
            await self._save()
            await self._checkpoints.end()
        self._write_model()
        if (evaluator := self._evals.at_the_end(self._version)) is not None:
            timeline.emit("phase", name=f"evaluating weight version {self._version}")
            await self._serve(None)
            await evaluator.run()

    async def _run_rounds(self) -> None:
        while self._round < self._config.rounds and (problems := self._draw(self._sampler)):
            await self._run_round(problems)
            self._round += 1
            if self._round > self._furthest:
                self._furthest, self._progress_s = self._round, self._parts.timeline.now()
            self._parts.timeline.check()
            if self._checkpoints.is_done:
                await self._checkpoints.end()  # where it failed, no further round is sampled
            if self._config.checkpoint.every and self._round % self._config.checkpoint.every == 0:
                await self._save()

    async def _run_round(self, problems: Sequence[Problem]) -> None:
        config, index = self._config, self._round
        is_batch = config.advantage_std == "batch"
        head, members = self._head(index, problems), config.responses_per_group
        recorded = self._journal.open(
            head, num_members=members, is_batch=is_batch, fault_of=lambda entry: self._fault(entry, problems)
        )
        if not recorded.entries:
            self._evals.forget_from(index)  # of a try that came out otherwise
        evaluator = self._evals.in_round(index, self._version)
        if not recorded.is_whole or evaluator is not None:
            await self._serve(None)
        self._metrics.is_replay = recorded.is_whole
        await Round(config, self._round_parts(recorded, evaluator), index=index, version=self._version).run(problems)

    async def _serve(self, index: int | None) -> None:
        """The engines serve the last export, and this process has seen it, before anything is asked of them (rule 6)."""
        publisher = self._parts.publisher
        if not self._is_verified or publisher.served != (self._version, publisher.fingerprint()):
            await publisher.serve(index)
            self._is_verified = True

    def _head(self, index: int, problems: Sequence[Problem]) -> Head:
        return Head(
            round=index,
            version=self._version,
            weights=self._parts.publisher.fingerprint(),
            problems=problems_hash(problems),
            num_groups=len(problems),
        )

    def _round_parts(self, recorded: Recorded, evaluator: Evaluator | None) -> Parts:
        parts, journal = self._parts, self._journal
        return Parts(
            engine=parts.engine,
            trainer=parts.trainer,
            verifier=parts.verifier,
            decode=parts.decode,
            timeline=parts.timeline,
            on_group=self._store,
            on_drop=journal.drop,
            on_rollout_end=journal.end,
            recorded=recorded.entries,
            is_whole=recorded.is_whole,
            reject=self._reject,
            refill=self._refill,
            publish=self._publish,
            evaluator=evaluator,
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

    def _new_sampler(self) -> PromptSampler:
        return PromptSampler(len(self._parts.workload.problems), self._config.seed, self._config.workload.when_short)

    def _draw(self, sampler: PromptSampler) -> list[Problem]:
        """The next round's problems; empty where the data ends the run (`when_short: stop`)."""
        return [self._parts.workload.problems[index] for index in sampler.draw(self._config.groups_per_round)]

    def _refill(self) -> Problem | None:
        index = self._sampler.draw_extra()
        return None if index is None else self._parts.workload.problems[index]

    def _store(self, group: Group, problem: Problem) -> None:
        self._parts.timeline.check()  # what could not be recorded must not be trained
        self._journal.group(group, problem)

    def _reject(self, entry: Entry, why: str) -> None:
        """A recorded group does not fit its round. Where engines were left out of account, the journal has lied."""
        if self._metrics.is_replay:
            rule, remedy = (
                f"must fit its round: {entry.group_id} {why}",
                "remove that round's file from groups/, and resume again",
            )
            raise DataError(explain("journal", rule, f"round {self._round}", remedy))
        self._journal.reject(entry, why)

    def _fault(self, entry: Entry, problems: Sequence[Problem]) -> str:
        """Why a recorded group is not of this round; of a refill, that is known only when the round asks for it."""
        if entry.order >= len(problems):
            return ""
        problem, config = problems[entry.order], self._config
        requests = group_requests(self._round, entry.order, problem.prompt_ids, config.responses_per_group, config.seed)
        return misfit(entry, problem, requests, self._version, config)

    def _tell_left_out(self, message: str) -> None:
        self._parts.timeline.emit("left_out", message=message)

    async def _publish(self) -> None:
        """The end of a round: its weights are the next version; the engines get them where they are needed."""
        self._version += 1
        await self._parts.publisher.export(self._version, self._round)
        self._is_verified = False
        if self._is_needed(self._round + 1):
            await self._serve(self._round)

    def _is_needed(self, index: int) -> bool:
        """Round `index` asks the engines for something."""
        if index >= self._config.rounds:
            return self._evals.is_due_at_the_end(self._version)
        if self._evals.is_due(index, self._version):
            return True
        if not round_path(self._run_dir.groups, index).exists():
            return True
        ahead = self._new_sampler()
        ahead.restore(self._sampler.state())
        head = self._head(index, self._draw(ahead))
        return not self._journal.has_all(head, num_members=self._config.responses_per_group)

    async def _save(self) -> None:
        """Capture a checkpoint of the rounds so far; it is written while the next round samples."""
        self._parts.timeline.emit("phase", name="saving a checkpoint")
        state = {
            "round": self._round,
            "version": self._version,
            "sampler": self._sampler.state(),
            "workload": self._parts.workload.content_hash,
            "history": self._history.state(),
        }
        await self._checkpoints.save(self._round, state)

    async def _restore(self, fault: TrainerDiedError | None) -> None:
        """Back to the newest checkpoint, or to the start; after a `fault`, with new trainer processes."""
        timeline = self._parts.timeline
        start_s = timeline.now()
        if fault is not None:
            timeline.emit("fault", part="trainer", detail=" ".join(str(fault).split()))
            pause_s = self._spend(start_s, fault)
            await self._checkpoints.end_soon()
            await asyncio.sleep(pause_s)
            await self._parts.trainer.restart()
        state = await self._checkpoints.restore()
        if state is not None:
            check_same_problems(state, self._parts.workload.content_hash)
            self._begin_at(state["round"], state["version"])
            self._sampler.restore(state["sampler"])
            if "history" in state:  # older checkpoints have none: it is learned anew
                self._history.restore(state["history"])
        else:
            self._begin_at(0, 0)
        self._evals.restore()
        if fault is not None:
            where = f"the checkpoint after round {self._round - 1}" if self._round else "the starting weights"
            timeline.emit("recovered", start=round(start_s, 6), part="trainer", detail=f"started again from {where}")

    def _spend(self, now_s: float, fault: TrainerDiedError) -> float:
        try:
            return self._budget.spend("trainer", now_s, fault, since_s=self._progress_s)
        except RunError as error:
            raise error from fault

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
