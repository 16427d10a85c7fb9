"""Checkpoints of the JAX trainer: captured at once, written behind, read onto any mesh, and refused when they are not whole."""

import gc
import shutil
import threading

import jax
import numpy as np
import pytest
from crafted_files import JSON_FILES, MARK, bomb
from orbax.checkpoint._src.serialization import serialization

from common.errors import DataError
from rolloutpipe_jax.checkpoint import MOMENTS, PARAMS, check, read
from tests.mesh_lab import on_mesh, same_bits


def save(lab, directory):
    lab.rank.save(directory)
    lab.rank.saved()
    return directory


@pytest.fixture(scope="module")
def good(wide_model, make_group, tmp_path_factory):
    """A whole checkpoint, after an update, of a mesh of one device."""
    lab = on_mesh(wide_model, 1, 1)
    lab.update(make_group(0), make_group(1))
    return save(lab, tmp_path_factory.mktemp("checkpoints") / "good")


@pytest.fixture
def copy(good, tmp_path):
    """A copy to be spoilt."""
    return shutil.copytree(good, tmp_path / "copy")


@pytest.fixture
def held_writer(monkeypatch):
    """An event that the writer waits for before it writes an array: until it is set, nothing is on disk."""
    write, may_write = serialization.async_serialize_from_host, threading.Event()

    async def wait_and_write(*args, **kwargs):
        assert may_write.wait(60)
        await write(*args, **kwargs)

    monkeypatch.setattr(serialization, "async_serialize_from_host", wait_and_write)
    yield may_write
    may_write.set()


def test_a_save_compiles_nothing(wide_model, make_group, tmp_path):
    """A run that saves after each round must not compile after the first."""
    lab = on_mesh(wide_model, 4, 2)
    lab.update(make_group(0))
    before = lab.rank._compilations()
    save(lab, tmp_path / "saved")
    assert lab.rank._compilations() == before


@pytest.mark.parametrize("mesh", [(1, 1), (4, 2)], ids=str)
def test_what_is_captured_outlives_steps_that_reuse_its_memory(wide_model, make_group, tmp_path, held_writer, mesh):
    """Weights and moments are donated to each step, and on a CPU Orbax writes from the arrays themselves."""
    lab = on_mesh(wide_model, *mesh)
    lab.update(make_group(0))
    captured = lab.state()
    lab.rank.save(tmp_path / "saved")
    for seed in range(1, 5):
        lab.update(make_group(seed))
    later = lab.state()
    assert not (tmp_path / "saved" / "0").exists()  # nothing was written before the steps
    held_writer.set()
    lab.rank.saved()
    assert not same_bits(later, captured)
    lab.rank.restore(tmp_path / "saved", 1, 1)
    assert same_bits(lab.state(), captured)


@pytest.mark.parametrize(("saving", "loading"), [((4, 2), (2, 4)), ((8, 1), (1, 8)), ((1, 1), (8, 1))], ids=str)
def test_another_mesh_goes_on_where_one_was_saved(wide_model, make_group, tmp_path, saving, loading):
    lab = on_mesh(wide_model, *saving)
    lab.update(make_group(0))
    directory, captured = save(lab, tmp_path / "saved"), lab.state()
    expected = [lab.update(make_group(seed)) for seed in (1, 2)]
    other = on_mesh(wide_model, *loading)
    places = {name: value.sharding for name, value in other.rank._params.items()}
    other.rank.restore(directory, 8, 1)
    assert same_bits(other.state(), captured)
    assert {name: value.sharding for name, value in other.rank._params.items()} == places
    assert [other.update(make_group(seed)) for seed in (1, 2)] == pytest.approx(expected, rel=0, abs=1e-6)


def test_the_same_mesh_goes_on_bit_for_bit(wide_model, make_group, tmp_path):
    lab = on_mesh(wide_model, 4, 2)
    lab.update(make_group(0))
    directory = save(lab, tmp_path / "saved")
    losses = [lab.update(make_group(seed)) for seed in (1, 2)]
    expected = lab.state()
    lab.reset().rank.restore(directory, 8, 1)
    assert [lab.update(make_group(seed)) for seed in (1, 2)] == losses
    assert same_bits(lab.state(), expected)


def test_moments_are_part_of_it(wide_model, make_group, good):
    """Without them the step after a restore would be another one."""
    lab = on_mesh(wide_model, 1, 1)
    lab.update(make_group(0), make_group(1))
    lab.update(make_group(2))
    expected = lab.rank.weights()
    lab.rank.restore(good, 1, 1)
    lab.update(make_group(2))
    assert all(np.array_equal(value, expected[name]) for name, value in lab.rank.weights().items())
    lab.rank.restore(good, 1, 1)
    lab.rank._moments = lab.rank._programs.init_moments(lab.rank._params)
    lab.update(make_group(2))
    assert not all(np.array_equal(value, expected[name]) for name, value in lab.rank.weights().items())


# --- what is no checkpoint of this model


def refusal(model, directory):
    lab = on_mesh(model, 1, 1)
    with pytest.raises(DataError) as error:
        lab.rank.restore(directory, 1, 1)
    said = str(error.value)
    assert said.startswith("checkpoint: must ") and "\n" not in said
    assert f"got '{directory}'; move {directory} away, then resume again: the one before it counts" in said
    return said


def test_a_checkpoint_of_another_model_names_the_tensor(wide_model, tiny_model, tmp_path):
    directory = save(on_mesh(tiny_model, 1, 1), tmp_path / "saved")
    said = refusal(wide_model, directory)
    assert "must hold tensor params/embed_tokens in this model's shape (48, 64) (here it is (45, 32))" in said


def test_tensors_too_many_or_too_few_are_named(wide_model, good):
    wanted = on_mesh(wide_model, 1, 1).rank._programs.params()
    check(good, {PARAMS: wanted})
    with pytest.raises(DataError, match="must hold tensor params/lm_head, "):
        check(good, {PARAMS: {**wanted, "lm_head": wanted["embed_tokens"]}})
    wanted.pop("embed_tokens")
    with pytest.raises(DataError, match="must not hold tensor params/embed_tokens, "):
        check(good, {PARAMS: wanted})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax drops the reads that wait beside it
@pytest.mark.parametrize("spoil", ["delete", "truncate"])
@pytest.mark.parametrize("file", ["largest", "0/params/manifest.ocdbt", "0/moments/_METADATA"])
def test_a_torn_checkpoint_is_told(wide_model, copy, file, spoil):
    largest = max(copy.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    path = largest if file == "largest" else copy / file
    if spoil == "delete":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "must hold the trainer state of this model" in refusal(wide_model, copy)
    gc.collect()


def test_weights_without_moments_are_told(wide_model, copy):
    shutil.rmtree(copy / "0" / "moments")
    assert "(there is no 0/moments in it)" in refusal(wide_model, copy)


def test_an_empty_directory_is_told_and_stays_empty(wide_model, tmp_path):
    assert "(there is no 0/params in it)" in refusal(wide_model, tmp_path)
    refusal(wide_model, tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_the_torch_trainer_is_told(wide_model, tmp_path):
    (tmp_path / "rank-00000-of-00001.safetensors").write_bytes(b"")
    (tmp_path / "state.json").write_text("{}")
    assert "the trainer and model that wrote it" in refusal(wide_model, tmp_path)


def test_a_refused_checkpoint_leaves_the_rank_as_it_was(wide_model, tmp_path):
    lab = on_mesh(wide_model, 1, 1)
    before = lab.state()
    with pytest.raises(DataError):
        lab.rank.restore(tmp_path, 1, 1)
    assert same_bits(lab.state(), before)


def test_a_writer_that_fails_is_told_once_and_the_rank_goes_on(wide_model, make_group, tmp_path, monkeypatch):
    async def fail(*_, **__):
        raise OSError("no space left on device")

    lab = on_mesh(wide_model, 1, 1)
    with monkeypatch.context() as patch:
        patch.setattr(serialization, "async_serialize_from_host", fail)
        lab.rank.save(tmp_path / "lost")
        with pytest.raises(OSError, match="no space left"):
            lab.rank.saved()
    lab.rank.saved()
    assert not (tmp_path / "lost" / "0").exists()
    lab.update(make_group(0))
    directory, captured = save(lab, tmp_path / "next"), lab.state()
    lab.reset().rank.restore(directory, 1, 1)
    assert same_bits(lab.state(), captured)


def test_saved_without_a_save_is_nothing(wide_model):
    assert on_mesh(wide_model, 1, 1).rank.saved() is None


def test_items_can_be_read_alone(wide_model, good):
    programs = on_mesh(wide_model, 1, 1).rank._programs
    assert set(read(good, {MOMENTS: programs.moments()})) == {MOMENTS}


# Orbax leaves tasks of its own behind where it meets a file that it cannot read.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_pickle_in_any_file_of_a_checkpoint_is_not_opened(copy, tmp_path):
    """Whatever name Orbax knows it by: metadata, arrays, or one that it might look for."""
    wanted = {PARAMS: {"w": jax.ShapeDtypeStruct((1,), np.float32)}}
    for file in [path for path in copy.rglob("*") if path.is_file()]:
        whole = file.read_bytes()
        file.write_bytes(bomb(tmp_path))
        for name in ("checkpoint", "data.pkl", "metadata.pkl"):
            (file.parent / name).write_bytes(bomb(tmp_path))
        for reader in (check, read):
            with pytest.raises(DataError):
                reader(copy, wanted)
        file.write_bytes(whole)
    assert not (tmp_path / MARK).exists()
    gc.collect()  # so that they are told here, and not in a later test


@pytest.mark.parametrize("content", JSON_FILES.values(), ids=JSON_FILES.keys())
def test_crafted_metadata_of_a_checkpoint_is_refused(copy, content):
    for file in copy.rglob("_METADATA"):
        file.write_bytes(content)
    wanted = {PARAMS: {"w": jax.ShapeDtypeStruct((1,), np.float32)}}
    with pytest.raises(DataError):
        check(copy, wanted)
