"""The driver's side of the ranks, with ranks that only write down what they are given."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from local_ranks import LocalRanks

from common.batching import Row, plan_micro_batches
from common.config import Config
from common.errors import ConfigError, DataError, TrainerError, UsageError
from common.protocols import Trainer
from common.records import Group, UpdateResult
from common.trainer import GroupTrainer, check_advantages

MakeGroup = Callable[..., Group]


class ListRank:
    """A `TrainerRank` without a model: a token's log-prob is minus its id."""

    def __init__(self, **sums: float) -> None:
        self.sums = sums
        self.shares: list[list[list[list[Row]]]] = []  # of each accumulate
        self.finished: list[tuple[float, float]] = []
        self.restored: tuple[Any, ...] = ()

    def keep_round_weights(self) -> None:
        pass

    def accumulate(self, shares: list[list[list[Row]]]) -> None:
        self.shares.append(shares)

    def finish_update(self, denominator: float, lr: float) -> tuple[float, dict[str, float]]:
        self.finished.append((denominator, lr))
        return 2.0, dict(self.sums)

    def abort_update(self) -> None:
        self.shares.clear()

    def logprobs(self, shares: list[list[list[Row]]], temperature: float, model: str) -> list[list[list[list[float]]]]:
        return [[[[-float(token) for token in row.response_ids] for row in rows] for rows in share] for share in shares]

    def save(self, directory: Path) -> None:
        (directory / "rank.txt").write_text("state")

    def saved(self) -> None:
        pass

    def restore(self, *args: Any) -> None:
        self.restored = args

    def close(self) -> None:
        pass


class SlowRanks(LocalRanks):
    """A save is written when `may_end` is set; then it raises `error`, if there is one."""

    def __init__(self, *ranks: ListRank) -> None:
        super().__init__(*ranks)
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def call_in_background(self, method: str, *args: Any) -> list[Any]:
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return await self.call(method, *args)


def trainer_of(ranks: LocalRanks, *, planned: int = 1, **settings: Any) -> GroupTrainer:
    training = {"ranks": planned, "lr": 1e-2, "loss": "dapo", "micro_batch_tokens": 40, **settings.pop("training", {})}
    base = {"model": {"path": "unused"}, "sampling": {"max_tokens": 16}, "groups_per_round": 4, "rounds": 2}
    config = Config.model_validate({**base, "groups_per_update": 2, "training": training, **settings})
    return GroupTrainer(config, ranks, lambda lengths: plan_micro_batches(lengths, 40, planned))


async def update(trainer: GroupTrainer, *groups: Group) -> UpdateResult:
    await trainer.begin_update()
    for group in groups:
        await trainer.accumulate([group])
    return await trainer.finish_update()


def test_it_is_a_trainer() -> None:
    assert isinstance(trainer_of(LocalRanks(ListRank())), Trainer)


@pytest.mark.parametrize("num_processes", [1, 2, 3, 4])
def test_each_planned_rank_gets_its_micro_batches_whoever_drives_it(make_group: MakeGroup, num_processes: int) -> None:
    ranks = [ListRank() for _ in range(num_processes)]
    group = make_group(0, members=16)
    trainer = trainer_of(LocalRanks(*ranks), planned=4)
    asyncio.run(update(trainer, group))
    sizes = [len(rank.shares[0]) for rank in ranks]
    assert sum(sizes) == 4 and max(sizes) - min(sizes) <= 1
    shares = [share for rank in ranks for share in rank.shares[0]]
    assert len({len(share) for share in shares}) == 1  # as many passes everywhere
    rows = sorted(row.response_ids for share in shares for batch in share for row in batch)
    assert rows == sorted(sample.response.token_ids for sample in group.samples)


@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_logprobs_come_back_in_the_order_asked_for(make_group: MakeGroup, num_processes: int) -> None:
    trainer = trainer_of(LocalRanks(*(ListRank() for _ in range(num_processes))), planned=3)
    responses = [sample.response.token_ids for sample in make_group(3, members=9).samples]
    found = asyncio.run(trainer.logprobs([((1, 2), response) for response in responses], 1.0))
    assert found == [[-float(token) for token in response] for response in responses]


def test_logprobs_of_empty_responses_are_empty() -> None:
    trainer = trainer_of(LocalRanks(ListRank()))
    assert asyncio.run(trainer.logprobs([((1, 2), ()), ((1,), (3, 4))], 1.0)) == [[], [-3.0, -4.0]]
    assert asyncio.run(trainer.logprobs([((1,), ())], 1.0)) == [[]]
    with pytest.raises(UsageError, match="prompt of at least one token"):
        asyncio.run(trainer.logprobs([((), (1,))], 1.0))


def test_an_update_counts_and_adds_up_the_ranks(make_group: MakeGroup) -> None:
    one = ListRank(loss=3.0, tokens=10.0, gap_max=0.5, gap_sum=1.0, cpu_s=2.0, compilations=1.0)
    two = ListRank(loss=1.0, tokens=30.0, gap_max=0.1, gap_sum=1.0, cpu_s=1.0, compilations=2.0)
    trainer = trainer_of(LocalRanks(one, two), planned=2, training={"lr_schedule": "linear"})
    groups = [make_group(0), make_group(1, rewards=[1.0, None, 0.0, 0.0])]
    counted = sum(sample.num_tokens for group in groups for sample in group.samples if sample.reward is not None)
    result = asyncio.run(update(trainer, *groups))
    assert (result.optimizer_step, result.num_groups, result.num_tokens, result.grad_norm) == (1, 2, counted, 2.0)
    assert one.finished == two.finished == [(counted, 1e-2)]
    assert result.loss == 4.0 / counted
    metrics = result.metrics
    assert (metrics["logprob_gap_max"], metrics["logprob_gap_mean"], metrics["cpu_s"]) == (0.5, 0.05, 3.0)
    assert metrics["compilations"] == 3.0
    asyncio.run(update(trainer, *groups))
    assert one.finished[1] == (counted, 7.5e-3)  # four updates in the run


def test_compilations_stand_in_the_metrics_only_where_ranks_count_them(make_group: MakeGroup) -> None:
    assert "compilations" not in asyncio.run(update(trainer_of(LocalRanks(ListRank())), make_group(0))).metrics


def test_update_without_a_loss_is_no_step(make_group: MakeGroup) -> None:
    rank = ListRank()
    result = asyncio.run(update(trainer_of(LocalRanks(rank)), make_group(1, rewards=[0.3, 0.3])))
    assert rank.finished == [(0, 1e-2)] and (result.optimizer_step, result.num_tokens, result.loss) == (0, 0, 0.0)


@pytest.mark.parametrize(("updates", "keeps"), [(2, True), ("round", False)])
def test_round_weights_are_kept_where_they_will_be_needed(updates: int | str, keeps: bool) -> None:
    ranks = LocalRanks(ListRank())
    trainer = trainer_of(ranks, training={"importance_cap": 1.5, "keep_round_weights": True}, groups_per_update=updates)
    asyncio.run(trainer.begin_round())
    assert ("keep_round_weights" in ranks.calls) == keeps


def test_calls_out_of_order_name_the_right_call(make_group: MakeGroup, tmp_path: Path) -> None:
    async def open_update() -> None:
        await trainer.begin_update()
        for call in (trainer.begin_update(), trainer.begin_round(), trainer.save(tmp_path / "a"), trainer.restore(tmp_path)):
            with pytest.raises(UsageError, match="must not come within an update"):
                await call

    trainer = trainer_of(LocalRanks(ListRank()))
    for call in (lambda: trainer.accumulate([make_group(0)]), lambda: trainer.finish_update()):
        with pytest.raises(UsageError, match="call begin_update first"):
            asyncio.run(call())
    asyncio.run(open_update())


def test_k1_does_not_go_with_the_deviation_of_a_batch() -> None:
    config = Config.model_validate(
        {
            "model": {"path": "m"},
            "training": {"kl": {"coef": 0.1, "kind": "k1"}},
            "filter": "keep",
            "advantage_std": "batch",
            "schedule": "serial",
        }
    )
    with pytest.raises(ConfigError, match="advantage_std: must be `group` or `none`"):
        check_advantages(config)


def test_a_save_is_there_when_it_is_durable_and_training_goes_on_meanwhile(make_group: MakeGroup, tmp_path: Path) -> None:
    async def scenario() -> None:
        ranks = SlowRanks(ListRank())
        trainer = trainer_of(ranks, planned=3)
        await update(trainer, make_group(0))
        await trainer.save(tmp_path / "saved")
        waiting = asyncio.ensure_future(trainer.saved())
        assert (await update(trainer, make_group(1))).optimizer_step == 2
        assert not waiting.done() and not (tmp_path / "saved").exists()
        ranks.may_end.set()
        await waiting
        await trainer.saved()  # none open: nothing
        assert ranks.calls.count("saved") == 1
        await trainer.restore(tmp_path / "saved")
        assert ranks.ranks[0].restored == (tmp_path / "saved", 3, 1)  # as it was captured, not as it was written

    asyncio.run(scenario())
    assert json.loads((tmp_path / "saved" / "state.json").read_text()) == {"optimizer_step": 1, "num_ranks": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_the_next_save_awaits_the_open_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        ranks = SlowRanks(ListRank())
        trainer = trainer_of(ranks)
        await trainer.save(tmp_path / "a")
        again, second = asyncio.ensure_future(trainer.save(tmp_path / "a")), asyncio.ensure_future(trainer.save(tmp_path / "b"))
        await asyncio.sleep(0.01)
        assert ranks.calls == ["save"]
        ranks.may_end.set()
        with pytest.raises(UsageError, match="must be given a new directory"):
            await again
        await second
        assert (tmp_path / "a" / "state.json").exists() and not (tmp_path / "b").exists()
        await trainer.saved()

    asyncio.run(scenario())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_wait_that_is_cut_off_leaves_the_save_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        ranks = SlowRanks(ListRank())
        trainer = trainer_of(ranks)
        await trainer.save(tmp_path / "a")
        waiting = asyncio.ensure_future(trainer.saved())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not (tmp_path / "a").exists()
        ranks.may_end.set()
        await trainer.saved()

    asyncio.run(scenario())
    assert (tmp_path / "a" / "state.json").exists()


def test_a_save_that_cannot_be_written_is_told_once_and_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        ranks = SlowRanks(ListRank())
        trainer = trainer_of(ranks)
        ranks.may_end.set()
        ranks.error = TrainerError("disk full")
        await trainer.save(tmp_path / "a")
        with pytest.raises(TrainerError, match="disk full"):
            await trainer.saved()
        await trainer.saved()
        ranks.error = None
        await trainer.save(tmp_path / "a")
        await trainer.saved()

    asyncio.run(scenario())
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("state", [None, "{", "[]", '{"optimizer_step": 1}', '{"optimizer_step": "x", "num_ranks": 1}'])
def test_a_directory_that_save_did_not_write_is_a_data_error(tmp_path: Path, state: str | None) -> None:
    if state is not None:
        (tmp_path / "state.json").write_text(state)
    with pytest.raises(DataError, match="checkpoint: must be a directory that save wrote"):
        asyncio.run(trainer_of(LocalRanks(ListRank())).restore(tmp_path))
