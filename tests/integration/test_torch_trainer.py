"""The torch trainer on real Ray actors: one rank against two, bit-identical reruns, checkpoints, export, death."""

import asyncio
import hashlib
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from common.config import Config
from common.errors import ConfigError, DataError, TrainerDiedError, TrainerError, UsageError
from common.spool import check_spool, model_layout, spool_files
from rolloutpipe_torch.trainer import start_trainer
from tests.gradient_lab import distance

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_runtime")]


def config_of(model, ranks, **training):
    """Everything on: penalty, importance weights against the round's weights, several passes a group."""
    settings = {
        "ranks": ranks,
        "lr": 1e-2,
        "loss": "grpo",
        "kl": {"coef": 0.1},
        "importance_cap": 2.0,
        "keep_round_weights": True,
        "weight_decay": 0.01,
        "micro_batch_tokens": 40,
        **training,
    }
    return Config(
        model={"path": str(model)},
        training=settings,
        sampling={"max_tokens": 16, "temperature": 0.9},
        groups_per_round=4,
        groups_per_update=2,
        rounds=4,
    )


def start(model, logs, ranks):
    return asyncio.run(start_trainer(config_of(model, ranks), model, logs, 64))


@pytest.fixture(scope="module")
def trainers(tiny_model, tmp_path_factory, ray_runtime):
    """Trainers by number of ranks, each with a saved start to go back to."""
    directory = tmp_path_factory.mktemp("trainers")

    async def start_both():
        started = [start_trainer(config_of(tiny_model, ranks), tiny_model, directory / f"logs{ranks}", 64) for ranks in (1, 2)]
        return await asyncio.gather(*started)

    made = dict(zip((1, 2), asyncio.run(start_both()), strict=True))
    for ranks, trainer in made.items():
        save(trainer, directory / f"start{ranks}")
    yield made, directory
    for trainer in made.values():
        asyncio.run(trainer.close())


@pytest.fixture
def fresh(trainers):
    """(one rank, two ranks) at the starting weights; each was restored from what the other saved."""
    made, directory = trainers
    for trainer in made.values():
        asyncio.run(trainer.abort_update())
    asyncio.run(made[1].restore(directory / "start2"))
    asyncio.run(made[2].restore(directory / "start1"))
    return made[1], made[2]


async def train(trainer, groups, updates=2):
    """A round of `updates` updates over `groups`, in equal parts."""
    await trainer.begin_round()
    results, size = [], len(groups) // updates
    for index in range(updates):
        await trainer.begin_update()
        for group in groups[index * size : (index + 1) * size]:
            await trainer.accumulate([group])
        result = await trainer.finish_update()
        assert result.metrics["cpu_s"] > 0
        results.append(replace(result, metrics={**result.metrics, "cpu_s": 0.0}))  # the one number that a rerun changes
    return results


def save(trainer, directory):
    async def save_all():
        await trainer.save(directory)
        await trainer.saved()

    asyncio.run(save_all())


def export(trainer, spool):
    asyncio.run(trainer.export_weights(spool, 0))
    return {name: tensor for file in spool_files(spool) for name, tensor in load_file(file).items()}


def sha(weights):
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(weights[name].numpy().tobytes())
    return digest.hexdigest()


def gradients(trainer):
    (first, *_) = asyncio.run(trainer._ranks.call("gradients"))
    return np.concatenate([first[name].ravel().astype(np.float64) for name in sorted(first)])


def test_two_ranks_sum_the_gradients_of_one(fresh, make_group):
    async def open_update(trainer):
        await trainer.begin_update()
        await trainer.accumulate([make_group(0), make_group(1)])

    vectors = []
    for trainer in fresh:
        asyncio.run(open_update(trainer))
        vectors.append(gradients(trainer))
    one, two = vectors
    assert distance(two, one) < 1e-6  # float32 sums in another order
    assert distance(two / 2, one) > 0.4  # what averaging over ranks would give
    assert np.linalg.norm(one) > 0.1


def test_one_and_two_ranks_train_alike(fresh, make_group, tmp_path):
    one, two = fresh
    groups = [make_group(seed) for seed in range(4)]
    results = [asyncio.run(train(trainer, groups)) for trainer in fresh]
    for single, double in zip(*results, strict=True):
        assert double.grad_norm == pytest.approx(single.grad_norm, rel=1e-5)
        assert double.loss == pytest.approx(single.loss, rel=1e-4, abs=1e-6)
        assert double.num_tokens == single.num_tokens
        assert set(double.metrics) == set(single.metrics)
        for name, value in single.metrics.items():
            assert double.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    first, second = export(one, tmp_path / "one"), export(two, tmp_path / "two")
    for name in first:
        # AdamW divides by the root of tiny second moments, which magnifies rounding: 1 % of two steps of 1e-2.
        torch.testing.assert_close(second[name], first[name], rtol=0, atol=2e-4)


def test_fewer_rows_than_ranks_is_no_fault(fresh, make_group):
    results = [asyncio.run(train(trainer, [make_group(3, rewards=[1.0, 0.0], longest=1)], updates=1)) for trainer in fresh]
    assert results[0][0].grad_norm == pytest.approx(results[1][0].grad_norm, rel=1e-5)


def test_the_same_groups_give_the_same_bits(trainers, fresh, make_group, tmp_path):
    _, two = fresh
    groups = [make_group(seed) for seed in range(4)]
    _, directory = trainers
    hashes = []
    for run in ("first", "second"):
        asyncio.run(two.restore(directory / "start2"))
        asyncio.run(train(two, groups))
        hashes.append(sha(export(two, tmp_path / run)))
    assert hashes[0] == hashes[1]


def test_restored_on_one_rank_it_goes_on_as_on_two(fresh, make_group, tmp_path):
    one, two = fresh
    groups = [make_group(seed) for seed in range(8)]
    asyncio.run(train(two, groups[:4]))
    save(two, tmp_path / "saved")
    asyncio.run(one.restore(tmp_path / "saved"))
    assert sha(export(one, tmp_path / "a")) == sha(export(two, tmp_path / "b"))
    went_on = asyncio.run(train(two, groups[4:]))
    expected = sha(export(two, tmp_path / "c"))
    on_one = asyncio.run(train(one, groups[4:]))
    assert [result.optimizer_step for result in on_one] == [3, 4]
    assert on_one[-1].grad_norm == pytest.approx(went_on[-1].grad_norm, rel=1e-4)
    asyncio.run(two.restore(tmp_path / "saved"))  # the same number of ranks: the same bits
    assert asyncio.run(train(two, groups[4:])) == went_on
    assert sha(export(two, tmp_path / "d")) == expected
    assert not list(tmp_path.glob("*.partial"))


def test_exported_weights_are_the_trainers(fresh, make_group, tiny_model, tmp_path):
    _, two = fresh
    asyncio.run(train(two, [make_group(seed) for seed in range(4)]))
    weights = export(two, tmp_path / "spool")
    check_spool(tmp_path / "spool", 0, model_layout(tiny_model))
    assert "lm_head.weight" not in weights  # tied, sent once
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    prompt, response = (3, 1, 4), (1, 5, 9, 2, 6)
    (found,) = asyncio.run(two.logprobs([(prompt, response)], 0.9))
    with torch.no_grad():
        scores = (model(torch.tensor([prompt + response])).logits[0, 2:-1] / 0.9).log_softmax(-1)
    assert found == pytest.approx(scores.gather(-1, torch.tensor(response)[:, None])[:, 0].tolist(), abs=1e-5)


def test_bad_input_is_refused_and_the_trainer_goes_on(fresh, make_group):
    _, two = fresh
    group = make_group(0)
    bad = replace(group, samples=(replace(group.samples[0], request=replace(group.samples[0].request, prompt_ids=())),))

    async def scenario():
        await two.begin_update()
        with pytest.raises(UsageError, match="prompt_ids"):
            await two.accumulate([bad])
        await two.accumulate([group])
        return await two.finish_update()

    assert asyncio.run(scenario()).num_groups == 1


def test_a_call_cut_off_leaves_nothing_behind(fresh, make_group):
    one, _ = fresh

    async def scenario():
        await one.begin_update()
        call = asyncio.ensure_future(one.accumulate([make_group(0)]))
        await asyncio.sleep(0)  # sent, not answered
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(UsageError, match="call abort_update first"):
            await one.finish_update()
        await one.abort_update()
        return await train(one, [make_group(1)], updates=1)

    (result,) = asyncio.run(scenario())
    assert result.metrics["tokens"] == make_group(1).num_tokens


def test_new_processes_give_the_same_bits_and_a_dead_rank_is_named_and_started_again(fresh, tiny_model, make_group, tmp_path):
    trainer = start(tiny_model, tmp_path, 2)
    groups = [make_group(seed) for seed in range(4)]
    expected = asyncio.run(train(fresh[1], groups))
    assert asyncio.run(train(trainer, groups)) == expected
    trained = sha(export(fresh[1], tmp_path / "old"))
    assert sha(export(trainer, tmp_path / "new")) == trained

    async def scenario():
        await trainer.begin_update()
        os.kill(trainer._ranks.pids()[1], signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(TrainerError, match=r"trainer rank 1 died \(.*; see .*trainer-rank-1\.log"):
                await trainer.accumulate([make_group(0)])
        with pytest.raises(TrainerDiedError, match="rank 1 died"):
            await trainer.watch()
        await trainer.restart()
        watch = asyncio.ensure_future(trainer.watch())
        assert await train(trainer, groups) == expected  # as at first, from the starting weights and the first step on
        await trainer.export_weights(tmp_path / "again", 0)
        assert not watch.done()
        watch.cancel()
        await trainer.close()
        await trainer.close()

    asyncio.run(asyncio.wait_for(scenario(), 120))
    again = {name: tensor for file in spool_files(tmp_path / "again") for name, tensor in load_file(file).items()}
    assert sha(again) == trained
    assert (tmp_path / "trainer-rank-0.log").exists()


def test_start_refuses_what_cannot_run(tiny_model, tmp_path):
    with pytest.raises(ConfigError, match=r"training\.ranks"):
        start(tiny_model, tmp_path, 4096)
    with pytest.raises(DataError, match=r"model\.path"):
        start(tmp_path / "none", tmp_path, 1)


def test_start_that_takes_too_long_ends_with_an_error(tiny_model, tmp_path):
    config = config_of(tiny_model, 1)
    config = config.model_copy(update={"limits": config.limits.model_copy(update={"start_timeout_s": 0.05})})
    with pytest.raises(TrainerError, match=r"did not start within 0\.05 s \(limits\.start_timeout_s\); see .*rank-0\.log"):
        asyncio.run(start_trainer(config, tiny_model, tmp_path, 64))
