"""`rolloutpipe convert`: bit for bit both ways, and nothing where something is wrong."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from common.errors import ConfigError, DataError
from common.spool import model_layout
from rolloutpipe_jax.convert import convert
from rolloutpipe_jax.rank import TrainerRank
from tests.jax_lab import jax_config

ROOT = Path(__file__).parents[3]


def weights(directory):
    """All tensors of a Hugging Face directory, a tied head left out."""
    found = {name: value for file in sorted(directory.glob("*.safetensors")) for name, value in load_file(file).items()}
    return {name: found[name] for name in model_layout(directory)}


def same(found, expected):
    assert found.keys() == expected.keys()
    return all(found[name].dtype == value.dtype and found[name].equal(value) for name, value in expected.items())


def logits(directory):
    model = AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        return model(torch.arange(12)[None]).logits


@pytest.fixture(params=["tied float32", "untied bfloat16"])
def model(request, tiny_model, tiny_untied_model, tmp_path):
    """A copy, with files beside the weights."""
    source = shutil.copytree(tiny_model if "untied" not in request.param else tiny_untied_model, tmp_path / "model")
    (source / "tokenizer.json").write_text('{"a": 1}')
    (source / "pytorch_model.bin").write_bytes(b"old weights")
    (source / ".cache").mkdir()
    return source


def test_there_and_back_is_the_same_bit_for_bit(model, tmp_path):
    there = convert(model, tmp_path / "orbax")
    back = convert(tmp_path / "orbax", tmp_path / "back")
    assert same(weights(tmp_path / "back"), weights(model))
    assert (there["direction"], back["direction"]) == ("huggingface-to-orbax", "orbax-to-huggingface")
    assert there["tensors"] == back["tensors"] == len(model_layout(model))
    assert there["params"] == back["params"] == sum(value.numel() for value in weights(model).values())
    assert there["dtype"] == back["dtype"] == json.loads((model / "config.json").read_text())["dtype"]
    names = {path.name for path in (tmp_path / "back").iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    for name in names - {"model.safetensors"}:
        assert (tmp_path / "back" / name).read_bytes() == (model / name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "model", "orbax"]


def test_transformers_computes_the_same_with_what_came_back(model, tmp_path):
    convert(model, tmp_path / "orbax")
    convert(tmp_path / "orbax", tmp_path / "back")
    assert logits(tmp_path / "back").equal(logits(model))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_dtype_is_rounded_as_torch_rounds_and_named_in_the_config(model, tmp_path, dtype):
    convert(model, tmp_path / "orbax", dtype=dtype)
    assert convert(tmp_path / "orbax", tmp_path / "back")["dtype"] == dtype
    convert(model, tmp_path / "kept")
    convert(tmp_path / "kept", tmp_path / "late", dtype=dtype)
    expected = {name: value.to(getattr(torch, dtype)) for name, value in weights(model).items()}
    for directory in (tmp_path / "back", tmp_path / "late"):
        assert same(weights(directory), expected)
        assert json.loads((directory / "config.json").read_text())["dtype"] == dtype


@pytest.mark.parametrize("place", ["round-00001", "round-00001/trainer"])
def test_a_checkpoint_of_a_run_gives_the_trainers_weights(tiny_model, tmp_path, place):
    rank = TrainerRank(jax_config(tiny_model), tiny_model, 0, 1)
    rank.join()
    (tmp_path / "round-00001").mkdir()
    rank.save(tmp_path / "round-00001" / "trainer")
    rank.saved()
    convert(tmp_path / place, tmp_path / "model", like=tiny_model)
    found = weights(tmp_path / "model")
    assert all(np.array_equal(found[name].numpy(), value) for name, value in rank.weights().items())
    with pytest.raises(ConfigError, match=r"--like: must be given, as SOURCE holds no config\.json, got None; give"):
        convert(tmp_path / place, tmp_path / "none")


def test_a_large_model_comes_in_shards_that_transformers_reads(tiny_model, tmp_path, monkeypatch):
    convert(tiny_model, tmp_path / "orbax")
    monkeypatch.setattr("common.spool.SHARD_BYTES", 40_000)
    convert(tmp_path / "orbax", tmp_path / "back")
    assert len(list((tmp_path / "back").glob("model-*-of-*.safetensors"))) > 1
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == model_layout(tiny_model).keys()
    assert logits(tmp_path / "back").equal(logits(tiny_model))


def test_layers_of_different_dtypes_become_float32_which_holds_both(tiny_model, tmp_path):
    from safetensors.torch import save_file

    source = shutil.copytree(tiny_model, tmp_path / "model")
    mixed = weights(source)
    name = "model.layers.1.mlp.up_proj.weight"
    mixed[name] = mixed[name].to(torch.bfloat16)
    save_file(mixed, source / "model.safetensors", {"format": "pt"})
    convert(source, tmp_path / "orbax")
    convert(tmp_path / "orbax", tmp_path / "back")
    assert weights(tmp_path / "back")[name].equal(mixed[name].float())


def test_a_conversion_that_is_cut_off_leaves_nothing(tiny_model, tmp_path, monkeypatch):
    def cut_off(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rolloutpipe_jax.convert.Checkpoint.wait", cut_off)
    with pytest.raises(KeyboardInterrupt):
        convert(tiny_model, tmp_path / "orbax")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_conversion_left_is_no_hindrance(tiny_model, tmp_path):
    (tmp_path / ".orbax.partial" / "0").mkdir(parents=True)
    (tmp_path / "orbax").mkdir()  # empty: as good as none
    convert(tiny_model, tmp_path / "orbax")
    assert [path.name for path in tmp_path.iterdir()] == ["orbax"]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda held: held.pop("model.norm.weight"), "SOURCE: must hold tensor model.norm.weight, got"),
        (lambda held: held.update(extra=held["model.norm.weight"].clone()), "SOURCE: must not hold tensor extra, which"),
        (lambda held: held.update({"model.norm.weight": torch.ones(7)}), r"SOURCE: must hold model.norm.weight in the shape"),
        (lambda held: held.update({"model.norm.weight": torch.ones(32).long()}), "SOURCE: must hold model.norm.weight as one of"),
    ],
    ids=["missing", "extra", "misshapen", "integers"],
)
def test_tensors_that_do_not_fit_the_config_are_named(tiny_model, tmp_path, spoil, said):
    from safetensors.torch import save_file

    source = shutil.copytree(tiny_model, tmp_path / "model")
    held = weights(source)
    spoil(held)
    save_file(held, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=said):
        convert(source, tmp_path / "orbax")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_orbax_directory_of_another_model_names_the_tensor(tiny_model, tiny_untied_model, tmp_path):
    convert(tiny_model, tmp_path / "orbax")
    with pytest.raises(DataError, match="SOURCE: must hold tensor params/lm_head, to be the state of this model, got"):
        convert(tmp_path / "orbax", tmp_path / "back", like=tiny_untied_model)


def test_a_torn_orbax_directory_says_so_in_one_line(tiny_model, tmp_path):
    """In a process of its own: nothing that Orbax leaves behind may reach the terminal."""
    convert(tiny_model, tmp_path / "orbax")
    largest = max(
        (path for path in (tmp_path / "orbax" / "0").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    largest.write_bytes(largest.read_bytes()[:1000])
    done = run_cli("convert", tmp_path / "orbax", tmp_path / "back")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("rolloutpipe: SOURCE: must hold a readable tensor params/") and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["orbax"]


def test_the_terminal_gets_one_line_and_the_file_the_figures(tiny_model, tmp_path):
    done = run_cli("convert", tiny_model, tmp_path / "orbax", "--json", tmp_path / "result.json", "--dtype", "bfloat16")
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads((tmp_path / "result.json").read_text())
    assert result == {
        "source": str(tiny_model),
        "target": str(tmp_path / "orbax"),
        "direction": "huggingface-to-orbax",
        "tensors": len(model_layout(tiny_model)),
        "params": sum(value.numel() for value in weights(tiny_model).values()),
        "dtype": "bfloat16",
    }
    assert done.stdout == (
        f"converted {tiny_model} to {tmp_path}/orbax (huggingface-to-orbax): "
        f"{result['tensors']} tensors, {result['params']:,} parameters, bfloat16\n"
    )


def run_cli(*words):
    command = [sys.executable, "-m", "common.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
