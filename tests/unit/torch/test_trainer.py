"""The trainer with one real rank in this process in place of Ray actors."""

import asyncio
import math
from contextlib import contextmanager

import numpy as np
import pytest
from local_ranks import LocalRanks

from common.batching import plan_micro_batches
from common.config import Config
from common.errors import ConfigError, DataError, TrainerError
from common.grpo import group_advantages, rewards_with_k1
from common.spool import check_spool, model_layout, read_manifest
from common.testing.contracts import check_trainer
from common.trainer import GroupTrainer
from rolloutpipe_torch.rank import TrainerRank
from rolloutpipe_torch.room import check_room


def joined_rank(config, model):
    rank = TrainerRank(config, model, 0, 1)
    rank.join(rank.listen())
    return rank


@contextmanager
def trainer_of(model, *, filter="drop", **training):
    settings = {"lr": 1e-2, "loss": "dapo", **training}
    config = Config(
        model={"path": str(model)},
        training=settings,
        sampling={"max_tokens": 16},
        filter=filter,
        groups_per_round=4,
        groups_per_update=2,
        rounds=2,
    )
    budget = config.training.micro_batch_tokens
    ranks = LocalRanks(joined_rank(config, model))
    trainer = GroupTrainer(config, ranks, lambda lengths: plan_micro_batches(lengths, budget, 1))
    try:
        yield trainer
    finally:
        asyncio.run(trainer.close())


async def update(trainer, *groups):
    await trainer.begin_update()
    for group in groups:
        await trainer.accumulate([group])
    return await trainer.finish_update()


def weights(trainer):
    return {name: shard.detach().clone() for name, shard in trainer._ranks.ranks[0]._optimizer.shards.items()}


def same(found, expected):
    return all(found[name].equal(expected[name]) for name in expected)


@pytest.mark.parametrize("model", ["tiny_model", "tiny_untied_model"])
def test_it_keeps_the_contract(request, model, make_group, tmp_path):
    directory = request.getfixturevalue(model)
    with trainer_of(directory, kl={"coef": 0.1}) as trainer:
        asyncio.run(check_trainer(trainer, [make_group(0), make_group(1)], model_layout(directory), tmp_path))


def test_an_update_counts_and_measures(tiny_model, make_group):
    groups = [make_group(0), make_group(1, rewards=[1.0, None, 0.0, 0.0])]
    counted = sum(sample.num_tokens for group in groups for sample in group.samples if sample.reward is not None)
    with trainer_of(tiny_model, lr_schedule="linear") as trainer:
        first = asyncio.run(update(trainer, *groups))
        second = asyncio.run(update(trainer, *groups))
    assert (first.optimizer_step, second.optimizer_step) == (1, 2)
    assert (first.num_groups, first.num_tokens, first.metrics["denominator"]) == (2, counted, counted)
    assert first.metrics["tokens"] == sum(group.num_tokens for group in groups)  # the gap is measured on all of them
    assert first.metrics["logprob_gap_max"] >= first.metrics["logprob_gap_mean"] > 0.1  # the sampler's are random here
    assert (first.metrics["lr"], second.metrics["lr"]) == (1e-2, 7.5e-3)  # four updates in the run
    assert 0 < first.metrics["entropy"] < math.log(45)
    assert first.grad_norm > 0 and math.isfinite(first.loss)


def test_gap_is_zero_where_the_sampler_is_the_trainer(tiny_model, make_group):
    from dataclasses import replace

    group = make_group(0)
    with trainer_of(tiny_model) as trainer:
        sequences = [(sample.request.prompt_ids, sample.response.token_ids) for sample in group.samples]
        found = asyncio.run(trainer.logprobs(sequences, 1.0))
        samples = [
            replace(sample, response=replace(sample.response, logprobs=tuple(values)))
            for sample, values in zip(group.samples, found, strict=True)
        ]
        result = asyncio.run(update(trainer, replace(group, samples=tuple(samples))))
    assert result.metrics["logprob_gap_max"] < 1e-5
    assert result.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert result.metrics["clip_fraction"] == 0.0


@pytest.mark.parametrize("rewards", [[None, None], [0.3, 0.3]])
def test_update_without_a_loss_steps_nothing(tiny_model, make_group, rewards):
    with trainer_of(tiny_model, weight_decay=0.1) as trainer:
        asyncio.run(update(trainer, make_group(0)))  # so that there is momentum
        before = weights(trainer)
        result = asyncio.run(update(trainer, make_group(1, rewards=rewards)))
        empty = asyncio.run(update(trainer))
        assert same(weights(trainer), before)
    assert result.optimizer_step == empty.optimizer_step == 1
    assert (result.loss, result.grad_norm, result.num_tokens, result.num_groups) == (0.0, 0.0, 0, 1)
    assert all(math.isfinite(value) for value in [*result.metrics.values(), *empty.metrics.values()])


def test_kept_group_without_spread_dilutes_but_does_not_steer(tiny_model, make_group):
    flat, steep = make_group(1, rewards=[0.3, 0.3]), make_group(0)
    with trainer_of(tiny_model, filter="keep", kl={"coef": 5.0}, max_grad_norm=None) as trainer:
        alone = asyncio.run(update(trainer, steep))
    with trainer_of(tiny_model, filter="keep", kl={"coef": 5.0}, max_grad_norm=None) as trainer:
        both = asyncio.run(update(trainer, steep, flat))
    share = steep.num_tokens / (steep.num_tokens + flat.num_tokens)
    assert both.grad_norm == pytest.approx(alone.grad_norm * share, rel=1e-5)


def test_abort_forgets_the_update(tiny_model, make_group):
    async def scenario(trainer):
        await trainer.abort_update()  # none open: nothing
        await trainer.begin_update()
        await trainer.accumulate([make_group(5)])
        await trainer.abort_update()
        return await update(trainer, make_group(0))

    with trainer_of(tiny_model) as trainer:
        clean = asyncio.run(update(trainer, make_group(0))).metrics | {"cpu_s": 0.0}
        expected = weights(trainer)
    with trainer_of(tiny_model) as trainer:
        assert asyncio.run(scenario(trainer)).metrics | {"cpu_s": 0.0} == clean
        assert same(weights(trainer), expected)


def test_k1_changes_rewards_and_recomputes_advantages(tiny_model, make_group):
    group = make_group(1, rewards=[0.3, 0.3, 0.3, 0.3])  # no spread before the penalty
    with trainer_of(tiny_model, filter="keep", kl={"coef": 0.1, "kind": "k1"}) as trainer:
        sequences = [(sample.request.prompt_ids, sample.response.token_ids) for sample in group.samples]
        ref = asyncio.run(trainer.logprobs(sequences, 1.0))  # the policy has not moved: it is the reference
        sampler = [sample.response.logprobs for sample in group.samples]
        expected = group_advantages(rewards_with_k1([0.3] * 4, sampler, ref, 0.1))
        seen = []
        accumulate = trainer._ranks.ranks[0].accumulate
        trainer._ranks.ranks[0].accumulate = lambda shares: (seen.extend(shares[0]), accumulate(shares))
        result = asyncio.run(update(trainer, group))
    by_tokens = {row.response_ids: row.advantage for rows in seen for row in rows}
    for sample, advantage in zip(group.samples, expected, strict=True):
        assert by_tokens[sample.response.token_ids] == pytest.approx(advantage, rel=1e-4)
    assert result.num_tokens == group.num_tokens
    gap = sum(map(sum, sampler)) - sum(map(sum, ref))
    assert result.metrics["kl_ref"] == pytest.approx(gap / group.num_tokens, rel=1e-5)


def test_importance_weights_are_reported(tiny_model, make_group):
    with trainer_of(tiny_model, importance_cap=1.5, keep_round_weights=True) as trainer:
        asyncio.run(trainer.begin_round())
        first = asyncio.run(update(trainer, make_group(0)))
        second = asyncio.run(update(trainer, make_group(1)))
    assert first.metrics["ratio_mean"] == 1.0  # against the trainer's own log-probs, before any step
    assert second.metrics["ratio_mean"] != 1.0
    assert 0 < first.metrics["importance_mean"] <= 1.5 and 0 < first.metrics["importance_capped"] < 1


def test_importance_without_kept_weights_takes_the_current_ones_in_each_round(tiny_model, make_group):
    with trainer_of(tiny_model, importance_cap=1.5, keep_round_weights=True) as trainer:
        config = trainer._config.model_copy(update={"groups_per_update": "round"})
        trainer._config = config  # one update a round: nothing is kept
        for seed in range(2):
            asyncio.run(trainer.begin_round())
            assert asyncio.run(update(trainer, make_group(seed))).metrics["ratio_mean"] == 1.0
        assert "keep_round_weights" not in trainer._ranks.calls


def test_exports_have_the_given_version_and_the_dtypes_of_the_files(tiny_untied_model, tmp_path):
    with trainer_of(tiny_untied_model) as trainer:
        asyncio.run(trainer.export_weights(tmp_path / "spool", 7))
    layout = model_layout(tiny_untied_model)
    assert {spec.dtype for spec in layout.values()} == {"bfloat16"} and "lm_head.weight" in layout
    check_spool(tmp_path / "spool", 7, layout)
    assert {entry["dtype"] for entry in read_manifest(tmp_path / "spool").values()} == {"bfloat16"}


def test_gradient_that_is_not_finite_is_an_error(tiny_model, make_group):
    from dataclasses import replace

    group = make_group(0)
    samples = [
        replace(sample, advantage=-1.0, response=replace(sample.response, logprobs=(-1e6,) * sample.num_tokens))
        for sample in group.samples
    ]
    with trainer_of(tiny_model) as trainer, pytest.raises(TrainerError, match="gradient norm of optimizer step 1 is"):
        asyncio.run(update(trainer, replace(group, samples=tuple(samples))))


def test_checkpoint_faults_are_data_errors(tiny_model, tmp_path):
    with trainer_of(tiny_model) as trainer:
        asyncio.run(trainer.save(tmp_path / "saved"))
        asyncio.run(trainer.saved())
        (file,) = (tmp_path / "saved").glob("rank-*")
        file.write_bytes(file.read_bytes()[:-9])
        with pytest.raises(DataError, match="checkpoint: must hold the trainer state of this model"):
            asyncio.run(trainer.restore(tmp_path / "saved"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]


def test_too_many_ranks_are_refused_before_anything_starts(tiny_model):
    config = Config(model={"path": str(tiny_model)}, training={"ranks": 4096})
    with pytest.raises(ConfigError, match=r"training\.ranks: must be at most the .* got 4096; use"):
        check_room(config)


def test_memory_is_checked_where_the_model_is_known(tiny_model, monkeypatch):
    monkeypatch.setattr("common.room.psutil.virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    config = Config(model={"path": str(tiny_model)})
    check_room(config)
    with pytest.raises(ConfigError, match=r"training\.ranks: must fit in 0\.0 GB of free memory"):
        check_room(config, tiny_model)


def test_gradients_and_weights_come_whole_in_float32_under_the_names_of_the_files(tiny_untied_model, make_group):
    with trainer_of(tiny_untied_model, weight_decay=0.0, max_grad_norm=None) as trainer:
        rank, layout = trainer._ranks.ranks[0], model_layout(tiny_untied_model)
        before = rank.weights()
        asyncio.run(trainer.begin_update())
        asyncio.run(trainer.accumulate([make_group(0)]))
        gradients = rank.gradients()
        result = asyncio.run(trainer.finish_update())
        after = rank.weights()
    for found in (before, gradients, after):
        assert {name: values.shape for name, values in found.items()} == {name: spec.shape for name, spec in layout.items()}
        assert {values.dtype for values in found.values()} == {np.dtype(np.float32)}
    norm = math.sqrt(sum(float((values.astype(np.float64) ** 2).sum()) for values in gradients.values()))
    assert norm == pytest.approx(result.grad_norm * result.metrics["denominator"], rel=1e-5)  # sums: nothing is divided yet
    assert any((after[name] != before[name]).any() for name in before)  # copies: a step does not change what was given
