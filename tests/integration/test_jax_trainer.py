"""The JAX trainer in a process of its own: the contract, restarts, saves behind training, death. This process needs no JAX."""

import asyncio
import os
import signal

import pytest

from common.config import Config
from common.errors import ConfigError, DataError, DiskError, TrainerDiedError, TrainerError, UsageError
from common.spool import model_layout, read_manifest
from common.testing.contracts import check_trainer
from rolloutpipe_jax.trainer import start_trainer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_runtime")]
LONGEST = 32  # tokens; with as many to a micro-batch, one size to compile


def config_of(model, **training):
    settings = {"lr": 1e-2, "micro_batch_tokens": LONGEST, **training}
    return Config(
        trainer="jax",
        model={"path": str(model)},
        training=settings,
        sampling={"max_tokens": 16},
        groups_per_round=4,
        groups_per_update=2,
        rounds=4,
    )


def start(model, logs, **training):
    return start_trainer(config_of(model, **training), model, logs, LONGEST)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("jax")


@pytest.fixture(scope="module")
def trainer(tiny_model, home, ray_runtime):
    """Two devices, with its starting state in `start`."""
    made = asyncio.run(start(tiny_model, home / "logs", ranks=2))
    asyncio.run(save(made, home / "start"))
    yield made
    asyncio.run(made.close())


@pytest.fixture
def fresh(trainer, home):
    """The trainer at its start."""
    asyncio.run(trainer.abort_update())
    asyncio.run(trainer.restore(home / "start"))
    return trainer


async def save(trainer, directory):
    await trainer.save(directory)
    await trainer.saved()


async def update(trainer, *groups):
    await trainer.begin_update()
    for group in groups:
        await trainer.accumulate([group])
    return await trainer.finish_update()


async def checksums(trainer, spool):
    await trainer.export_weights(spool, 0)
    return {name: entry["crc32"] for name, entry in read_manifest(spool).items()}


def test_it_keeps_the_contract(fresh, tiny_model, make_group, tmp_path):
    asyncio.run(check_trainer(fresh, [make_group(0), make_group(1)], model_layout(tiny_model), tmp_path))
    assert not list(tmp_path.glob("*.partial"))


def test_training_goes_on_while_a_save_is_written(fresh, make_group, tmp_path):
    async def scenario():
        await fresh.save(tmp_path / "saved")
        saving = asyncio.create_task(fresh.saved())
        result = await update(fresh, make_group(0))
        await saving
        return result

    assert asyncio.run(scenario()).optimizer_step == 1
    assert (tmp_path / "saved" / "state.json").exists() and not (tmp_path / "saved.partial").exists()


def test_a_save_that_cannot_be_written_is_told_once_and_training_goes_on(fresh, make_group, tmp_path):
    async def scenario():
        await fresh.save(tmp_path / "saved")
        (tmp_path / "saved.partial" / "state.json").mkdir()  # stands where the driver writes last
        with pytest.raises(DiskError, match=r"saved cannot be written: Is a directory"):
            await fresh.saved()
        await fresh.saved()
        await save(fresh, tmp_path / "next")
        return await update(fresh, make_group(0))

    assert asyncio.run(scenario()).optimizer_step == 1


def test_a_failure_in_the_background_leaves_the_process_alive(fresh, make_group):
    async def scenario():
        with pytest.raises(TrainerError, match=r"trainer rank 0 failed with AttributeError: .*trainer-rank-0\.log"):
            await fresh._ranks.call_in_background("no_such_method")
        return await update(fresh, make_group(0))

    assert asyncio.run(scenario()).optimizer_step == 1


def test_checkpoints_that_are_not_its_own_are_refused_in_one_line(fresh, make_group, home, tmp_path):
    torch_like = tmp_path / "torch"
    torch_like.mkdir()
    (torch_like / "state.json").write_text('{"optimizer_step": 1, "num_ranks": 1}')
    (torch_like / "rank-00000-of-00001.safetensors").write_bytes(b"")
    for directory, said in (
        (torch_like, "must hold the trainer state of this model"),
        (tmp_path, "must be a directory that save"),
    ):
        with pytest.raises(DataError, match=f"^checkpoint: {said}.*") as error:
            asyncio.run(fresh.restore(directory))
        assert "\n" not in str(error.value)
    asyncio.run(fresh.restore(home / "start"))
    assert asyncio.run(update(fresh, make_group(0))).optimizer_step == 1


def test_bad_input_is_refused_and_the_trainer_goes_on(fresh, make_group):
    async def scenario():
        await fresh.begin_update()
        with pytest.raises(UsageError, match="sequences: must be of at most the 32 tokens that the trainer was compiled for"):
            await fresh.accumulate([make_group(0, longest=200)])
        await fresh.accumulate([make_group(0)])
        return await fresh.finish_update()

    assert asyncio.run(scenario()).num_groups == 1


def test_a_new_process_continues_from_a_checkpoint_and_its_death_is_named(fresh, tiny_model, make_group, tmp_path):
    asyncio.run(update(fresh, make_group(0), make_group(1)))
    asyncio.run(save(fresh, tmp_path / "saved"))
    expected = asyncio.run(update(fresh, make_group(2)))
    weights = asyncio.run(checksums(fresh, tmp_path / "expected"))

    async def scenario():
        other = await start(tiny_model, tmp_path / "logs", ranks=2)
        await other.restore(tmp_path / "saved")
        result = await update(other, make_group(2))
        assert (result.optimizer_step, result.loss, result.grad_norm) == (2, expected.loss, expected.grad_norm)
        assert await checksums(other, tmp_path / "found") == weights
        os.kill(other._ranks.pids()[0], signal.SIGKILL)
        await other.begin_update()
        for _ in range(2):
            with pytest.raises(TrainerError, match=r"trainer rank 0 died \(.*; see .*trainer-rank-0\.log"):
                await asyncio.wait_for(other.accumulate([make_group(0)]), 30)
        with pytest.raises(TrainerDiedError, match="rank 0 died"):
            await other.watch()
        await other.restart()
        (tmp_path / "contract").mkdir()
        await check_trainer(other, [make_group(0), make_group(1)], model_layout(tiny_model), tmp_path / "contract")
        await other.restore(tmp_path / "saved")
        result = await update(other, make_group(2))
        assert (result.optimizer_step, result.loss, result.grad_norm) == (2, expected.loss, expected.grad_norm)
        assert (await update(other, make_group(3))).metrics["compilations"] == 0  # all was compiled before, as at first
        await other.close()
        await other.close()

    asyncio.run(scenario())


def test_start_refuses_what_cannot_run(tiny_model, tmp_path):
    with pytest.raises(ConfigError, match=r"training\.tensor_parallel: must divide the model's 2 key and value heads, got 4"):
        asyncio.run(start(tiny_model, tmp_path, ranks=4, tensor_parallel=4))
    with pytest.raises(DataError, match=r"model\.path"):
        asyncio.run(start(tmp_path / "none", tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_start_that_takes_too_long_ends_with_an_error(tiny_model, tmp_path):
    config = config_of(tiny_model)
    config = config.model_copy(update={"limits": config.limits.model_copy(update={"start_timeout_s": 0.05})})
    with pytest.raises(TrainerError, match=r"did not start within 0\.05 s \(limits\.start_timeout_s\); see .*rank-0\.log"):
        asyncio.run(start_trainer(config, tiny_model, tmp_path, LONGEST))
