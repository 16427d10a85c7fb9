"""The trainer as the round sees it: the driver's side of the ranks, the same for every framework.

The driver turns groups into rows, plans the micro-batches of all ranks, counts the denominator and sets the learning rate.
Ranks only compute, so they cannot disagree. A room's `TrainerRank` has the methods that are called here by name.
"""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from common.batching import Plan, Row, rows_of
from common.config import Config
from common.disk import writing
from common.errors import ConfigError, TrainerError, UsageError, explain
from common.grpo import LossRules, group_advantages, rewards_with_k1
from common.records import Group, UpdateResult
from common.schedule import learning_rate
from common.trainer_metrics import merge_sums, update_metrics
from common.trainer_save import OpenSave, finish_save, read_trainer_state


class RankSet(Protocol):
    """The ranks together: processes (`common.ranks.Ranks`), or plain objects in this one."""

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Call `method` with the same arguments everywhere; the answers in order."""
        ...

    async def scatter(self, method: str, shares: Sequence[Any], *args: Any) -> list[Any]:
        """Deal out `shares`, one for each planned rank, in lists; the answers one for each share, or none at all."""
        ...

    async def call_in_background(self, method: str, *args: Any) -> list[Any]:
        """As `call`, while other calls go on."""
        ...

    async def watch(self) -> None:
        """Never returns; raises TrainerDiedError when a process dies."""
        ...

    async def restart(self) -> None:
        """End all processes and start new ones, as they were at first."""
        ...

    def close(self) -> None:
        """End all processes; idempotent."""
        ...


@dataclass(slots=True)
class _OpenUpdate:
    """What the driver counts of an update; the ranks hold its gradient sums."""

    num_groups: int = 0
    num_tokens: int = 0  # of rows with a loss
    denominator: int = 0
    kl_sum: float = 0.0  # k1 only: sampler - reference over `kl_tokens`
    kl_tokens: int = 0
    is_torn: bool = False  # a call was cancelled within: the ranks may have added what is not counted here


class GroupTrainer:
    """A `common.protocols.Trainer` over `ranks`. `plan` cuts rows of these lengths into each rank's micro-batches.

    `warm_up` is what new processes still need once they have joined.
    """

    def __init__(
        self,
        config: Config,
        ranks: RankSet,
        plan: Callable[[Sequence[int]], Plan],
        warm_up: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._config, self._ranks, self._plan_lengths, self._warm_up = config, ranks, plan, warm_up
        self._rules = LossRules.from_config(config)
        self._update: _OpenUpdate | None = None
        self._optimizer_step = 0
        self._open_save: OpenSave | None = None
        self._saving = asyncio.Lock()

    @property
    def ranks(self) -> RankSet:
        """For what is no part of an update: the way that weights take to the engines (`common.weight_routes`)."""
        return self._ranks

    async def begin_round(self) -> None:
        """Note that a round starts, and keep its weights where they will be needed after its first update."""
        self._need_no_update("begin_round")
        training = self._config.training
        if training.importance_cap is not None and training.keep_round_weights and self._config.updates_per_round > 1:
            await self._ranks.call("keep_round_weights")

    async def begin_update(self) -> None:
        """Open an update. The ranks' sums are empty already."""
        self._need_no_update("begin_update")
        self._update = _OpenUpdate()

    async def accumulate(self, groups: Sequence[Group]) -> None:
        """Add the gradient sums of whole groups.

        Raises UsageError and ConfigError before anything was added, TrainerError where a rank failed: the update is lost.
        """
        update = self._need_update("accumulate")
        if self._config.training.kl is not None and self._config.training.kl.kind == "k1":
            rows = [row for group in groups for row in await self._rows_with_k1(group, update)]
        else:
            rows = [row for group in groups for row in rows_of(group)]
        if rows:
            micro_batches, _ = self._plan(rows)
            try:
                await self._ranks.scatter("accumulate", micro_batches)
            except asyncio.CancelledError:
                update.is_torn = True
                raise
        update.num_groups += len(groups)
        update.num_tokens += sum(len(row.response_ids) for row in rows if row.is_counted and row.has_spread)
        update.denominator += sum(self._rules.denominator(len(row.response_ids)) for row in rows if row.is_counted)

    async def finish_update(self) -> UpdateResult:
        """Divide once, clip, step. Where no token has a loss nothing is stepped: no momentum, no weight decay.

        Raises TrainerError where the gradient is not finite; weights and moments are then as before.
        """
        update = self._need_update("finish_update")
        training = self._config.training
        lr = learning_rate(training, self._optimizer_step, self._config.total_updates)
        has_loss = update.num_tokens > 0
        self._update = None
        results = await self._ranks.call("finish_update", update.denominator if has_loss else 0, lr)
        grad_norm, sums = results[0][0], merge_sums([sums for _, sums in results])
        if not grad_norm < float("inf"):
            raise TrainerError(
                f"gradient norm of optimizer step {self._optimizer_step + 1} is {grad_norm}; nothing was stepped: "
                "look for extreme log-probs in the groups of this update"
            )
        self._optimizer_step += has_loss
        return UpdateResult(
            update_index=0,
            optimizer_step=self._optimizer_step,
            loss=sums.get("loss", 0.0) / update.denominator if has_loss else 0.0,
            grad_norm=grad_norm,
            num_groups=update.num_groups,
            num_tokens=update.num_tokens,
            metrics={"lr": lr, "denominator": float(update.denominator), **update_metrics(sums, update.kl_sum, update.kl_tokens)},
        )

    async def abort_update(self) -> None:
        """Forget the open update; without one, nothing."""
        if self._update is not None:
            self._update = None
            await self._ranks.call("abort_update")

    async def logprobs(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float) -> list[list[float]]:
        """Log-probs of the second part of each (prompt ids, response ids) under the current weights."""
        rows = [_bare_row(prompt, response) for prompt, response in sequences]
        return await self._score(rows, temperature, "policy")

    async def export_weights(self, spool: Path, version: int) -> None:
        """Stream the weights into `spool` as `version`."""
        await self._ranks.call("export_weights", spool.absolute(), version)

    async def save(self, directory: Path) -> None:
        """Capture the state for the new `directory`, which appears when all of it is there: when `saved` returns.

        Not within an update, and between rounds where the round's weights are kept: that copy is not saved. Awaits an
        open save first.
        """
        self._need_no_update("save")
        await self.saved()
        if directory.exists():
            raise UsageError(explain("save", "must be given a new directory", str(directory), "choose another name"))
        partial = directory.absolute().with_name(f"{directory.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a save that was killed
        with writing(partial):
            partial.mkdir(parents=True)
        await self._ranks.call("save", partial)
        state = {"optimizer_step": self._optimizer_step, "num_ranks": self._config.training.ranks}
        self._open_save = OpenSave(directory.absolute(), partial, json.dumps(state))

    async def saved(self) -> None:
        """Wait until the last save is durable; without an open one, nothing. Cut off, it leaves the save open."""
        async with self._saving:
            if (save := self._open_save) is None:
                return
            try:
                await self._ranks.call_in_background("saved")
                with writing(save.directory):
                    await asyncio.to_thread(finish_save, save)
            except Exception:
                self._open_save = None  # told once; the next save starts anew
                raise
            self._open_save = None

    async def restore(self, directory: Path) -> None:
        """Continue exactly where `save` was called, on any number of ranks.

        Raises DataError; where it comes from a rank, the trainer's state is undefined and it must be closed.
        """
        self._need_no_update("restore")
        state = read_trainer_state(directory)
        await self._ranks.call("restore", directory.absolute(), state["num_ranks"], state["optimizer_step"])
        self._optimizer_step = state["optimizer_step"]

    async def watch(self) -> None:
        """Never returns; raises TrainerDiedError when a rank dies."""
        await self._ranks.watch()

    async def restart(self) -> None:
        """New processes with the starting weights, as if nothing had been trained."""
        self._update, self._open_save, self._optimizer_step = None, None, 0
        await self._ranks.restart()
        if self._warm_up is not None:
            await self._warm_up()

    async def close(self) -> None:
        """End all processes; idempotent."""
        self._ranks.close()

    def _plan(self, rows: Sequence[Row]) -> tuple[list[list[list[Row]]], Plan]:
        """(micro-batches, plan), both by rank and step."""
        plan = self._plan_lengths([row.num_tokens for row in rows])
        return [[[rows[index] for index in run] for run in steps] for steps in plan], plan

    async def _score(self, rows: Sequence[Row], temperature: float, model: str) -> list[list[float]]:
        """Log-probs of the response tokens of `rows`, in their order; of no token, none."""
        scored: list[list[float]] = [[] for _ in rows]
        places = [place for place, row in enumerate(rows) if row.response_ids]
        if not places:
            return scored
        micro_batches, plan = self._plan([rows[place] for place in places])
        answers = await self._ranks.scatter("logprobs", micro_batches, temperature, model)
        for steps, answer in zip(plan, answers, strict=True):
            for run, values in zip(steps, answer, strict=True):
                for index, row_values in zip(run, values, strict=True):
                    scored[places[index]] = row_values
        return scored

    async def _rows_with_k1(self, group: Group, update: _OpenUpdate) -> list[Row]:
        """Rows with advantages of the penalised rewards. The penalty counts as reward, so the spread test sees it."""
        kl = self._config.training.kl
        assert kl is not None
        sampler = [sample.response.logprobs for sample in group.samples]
        rows = [_bare_row(sample.request.prompt_ids, sample.response.token_ids) for sample in group.samples]
        ref = await self._score(rows, self._config.sampling.temperature, "reference")
        rewards = rewards_with_k1([sample.reward for sample in group.samples], sampler, ref, kl.coef)
        update.kl_sum += sum(map(sum, sampler)) - sum(map(sum, ref))
        update.kl_tokens += group.num_tokens
        return rows_of(group, group_advantages(rewards, std=self._config.advantage_std))

    def _need_update(self, call: str) -> _OpenUpdate:
        if self._update is None:
            raise UsageError(explain(call, "needs an open update", None, "call begin_update first"))
        if self._update.is_torn:
            raise UsageError(explain(call, "must not follow an accumulate that was cut off", None, "call abort_update first"))
        return self._update

    def _need_no_update(self, call: str) -> None:
        if self._update is not None:
            state = f"{self._update.num_groups} groups accumulated"
            raise UsageError(explain(call, "must not come within an update", state, "call finish_update or abort_update first"))


def check_advantages(config: Config) -> None:
    """Raises ConfigError where the trainer would have to know a batch before it is complete."""
    kl = config.training.kl
    if kl is not None and kl.kind == "k1" and config.advantage_std == "batch":
        rule = "must be `group` or `none` with training.kl.kind k1, which changes rewards group by group in the trainer"
        raise ConfigError(explain("advantage_std", rule, "batch", "use advantage_std=group"))


def _bare_row(prompt: Sequence[int], response: Sequence[int]) -> Row:
    """A row to be scored, not trained."""
    if not prompt:
        raise UsageError(explain("logprobs", "needs a prompt of at least one token", prompt, "start prompts with a BOS token"))
    return Row(tuple(prompt), tuple(response), (0.0,) * len(response), 0.0, False, False)
