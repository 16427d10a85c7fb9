"""Weights from Hugging Face files onto a mesh and back into a spool, bit for bit; what is wrong with files is told by name."""

import json
import tracemalloc
from pathlib import Path

import jax
import jax_lab  # noqa: F401  (8 devices, before JAX is used)
import numpy as np
import pytest
import torch
from jax_models import make_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import common.spool
from common.errors import DataError
from common.spool import SpoolWriter, check_spool, model_layout, spool_files, write_safetensors
from rolloutpipe_jax import weights as weights_module
from rolloutpipe_jax.model import check_model, skeleton
from rolloutpipe_jax.parallelize import make_mesh
from rolloutpipe_jax.shape import read_shape
from rolloutpipe_jax.weights import export_weights, load_params, whole_tensors

# Bit patterns that a careless conversion loses: a negative zero, a subnormal number, the extremes.
ODD = {"float32": (-0.0, 1e-42, 3.4e38), "bfloat16": (-0.0, 1e-40, 3.3e38), "float16": (-0.0, 6e-8, 65504.0)}


def save_odd(directory, family, *, tied, dtype, **options):
    """A random model whose every tensor holds the odd numbers of its dtype."""
    model = make_model(family, tied=tied, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.view(-1)[:3] = torch.tensor(ODD[dtype], dtype=parameter.dtype)
    model.save_pretrained(directory, **options)
    return model


def bits(files):
    """Dtype, shape and bytes by name."""
    found = {}
    for file in files:
        for name, tensor in load_file(file).items():
            found[name] = (tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found


def loaded(directory, mesh=(1, 1)):
    return load_params(directory, skeleton(read_shape(directory)), make_mesh(*mesh))


@pytest.mark.parametrize(
    ("family", "dtype", "tied", "mesh"),
    [
        ("qwen3", "float32", True, (1, 1)),
        ("qwen3", "bfloat16", False, (4, 2)),
        ("qwen2", "bfloat16", True, (4, 2)),
        ("qwen2", "float16", False, (4, 2)),
        ("llama-bias", "float32", False, (4, 2)),
        ("llama-bias", "float16", True, (2, 4)),
    ],
)
@pytest.mark.parametrize("size", ["1GB", "30KB"])
def test_a_spool_holds_the_bits_of_the_files(tmp_path, monkeypatch, family, dtype, tied, mesh, size):
    model_dir, spool = tmp_path / "model", tmp_path / "spool"
    save_odd(model_dir, family, tied=tied, dtype=dtype, max_shard_size=size)
    assert (model_dir / "model.safetensors.index.json").exists() == (size != "1GB")
    if size != "1GB":
        monkeypatch.setattr(common.spool, "SHARD_BYTES", 20_000)
    layout = model_layout(model_dir)
    assert check_model(model_dir, layout) == 97
    export_weights(spool, 3, loaded(model_dir, mesh), layout)
    check_spool(spool, 3, layout)
    expected = bits(model_dir.glob("*.safetensors"))
    assert bits(spool_files(spool)) == expected
    assert ("lm_head.weight" in expected) == (not tied)
    # And as a model directory again, which transformers and this room read alike.
    (tmp_path / "again").mkdir()
    write_safetensors(spool, tmp_path / "again")
    assert bits((tmp_path / "again").glob("*.safetensors")) == expected


def test_names_and_numbers_are_those_of_transformers(tmp_path):
    """Not only the way back undoes the way here: float32 masters equal the parameters that transformers loads."""
    model = save_odd(tmp_path, "qwen3", tied=False, dtype="bfloat16")
    here = dict(whole_tensors(loaded(tmp_path, (4, 2))))
    there = {name: parameter.detach().float().numpy() for name, parameter in model.named_parameters()}
    assert here.keys() == there.keys()
    for name, array in here.items():
        assert array.dtype == np.float32 and np.array_equal(array, there[name]), name


def test_each_device_reads_its_own_part(tmp_path, monkeypatch):
    make_model("qwen3", tied=False).save_pretrained(tmp_path)
    read = []

    class Slice:
        def __init__(self, inner):
            self._inner = inner

        def __getitem__(self, index):
            part = self._inner[index]
            read.append(part.size)
            return part

    class File:
        def __init__(self, *args, **options):
            self._inner = safe_open(*args, **options)

        def keys(self):
            return self._inner.keys()

        def get_slice(self, name):
            return Slice(self._inner.get_slice(name))

    monkeypatch.setattr(weights_module, "safe_open", File)
    params = loaded(tmp_path, (4, 2))
    assert sum(read) <= sum(shard.data.size for value in params.values() for shard in value.addressable_shards)
    largest = max(value.addressable_shards[0].data.size for name, value in params.items() if not name.startswith("layers."))
    assert max(read) == largest == 97 * 64 // 4  # 97 tokens cannot be halved; a layer's part is at most 64 * 160 // 8


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """(directory, bytes of the model, bytes of its largest stacked parameter, of its largest tensor): 43 MB in float32."""
    directory = tmp_path_factory.mktemp("larger")
    sizes = {"vocab_size": 3001, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 9}
    make_model("llama", tied=False, **sizes).save_pretrained(directory)
    layout = model_layout(directory)
    total = sum(4 * int(np.prod(entry.shape)) for entry in layout.values())
    return directory, total, 4 * 9 * 256 * 1024, 4 * 3001 * 256


def peak_of(action):
    """Largest memory that Python and NumPy held at one time while `action` ran, in bytes beyond what is still there after it.

    What is still there is the model's own: JAX takes a NumPy array as it is where its address happens to be aligned.
    """
    tracemalloc.start()
    try:
        result = action()
        stays, peak = tracemalloc.get_traced_memory()
        return peak - stays, result
    finally:
        tracemalloc.stop()


def test_loading_holds_one_parameter_beside_the_model(larger):
    directory, total, stacked, _ = larger
    peak, params = peak_of(lambda: loaded(directory, (4, 2)))
    assert sum(value.nbytes for value in params.values()) == total > 40e6
    assert peak < 2 * stacked < 0.5 * total


def test_export_holds_one_tensor_beside_the_model(larger, tmp_path, monkeypatch):
    directory, total, _, tensor = larger
    params = loaded(directory)
    before = sum(array.nbytes for array in jax.live_arrays())
    on_devices = []
    add = SpoolWriter.add

    def watched(self, *args):
        on_devices.append(sum(array.nbytes for array in jax.live_arrays()) - before)
        add(self, *args)

    monkeypatch.setattr(SpoolWriter, "add", watched)
    monkeypatch.setattr(common.spool, "SHARD_BYTES", 2**20)
    peak, _ = peak_of(lambda: export_weights(tmp_path / "spool", 0, params, model_layout(directory)))
    assert max(on_devices) <= 2 * tensor
    assert peak < 4 * tensor < 0.3 * total  # row-major, as bytes, and a shard of 1 MiB


def test_the_memory_check_catches_a_list_of_all_tensors(larger, tmp_path, monkeypatch):
    directory, total, *_ = larger
    params = loaded(directory)
    monkeypatch.setattr(common.spool, "SHARD_BYTES", 2**20)
    original = weights_module.whole_tensors
    monkeypatch.setattr(weights_module, "whole_tensors", lambda params: [(n, a.copy()) for n, a in original(params)])
    peak, _ = peak_of(lambda: export_weights(tmp_path / "spool", 0, params, model_layout(directory)))
    assert peak > total


# What is wrong with a model directory

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def change_tensors(change):
    def apply(directory):
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})

    return apply


def change_config(**changes):
    def apply(directory):
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**config, **changes}))

    return apply


def message_of(tmp_path, change, family="qwen3"):
    make_model(family, tied=True).save_pretrained(tmp_path)
    change(tmp_path)
    with pytest.raises(DataError) as caught:
        check_model(tmp_path, model_layout(tmp_path))
    message = str(caught.value)
    assert message.startswith("model.path: ") and "\n" not in message and ", got " in message and "; " in message
    return message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda all: all.pop(Q_PROJ), f"must hold tensor {Q_PROJ}, got "),
        (lambda all: all.pop("model.embed_tokens.weight"), "must hold tensor model.embed_tokens.weight, got "),
        (lambda all: all.update(extra=torch.zeros(2)), "must not hold tensor extra, "),
        (
            lambda all: all.update({Q_PROJ: torch.zeros(64, 128)}),
            f"{Q_PROJ} in the shape that config.json gives it, (128, 64), got (64",
        ),
        (lambda all: all.update({Q_PROJ: all[Q_PROJ].double()}), f"{Q_PROJ} as one of float32, float16, bfloat16, got 'F64'"),
        (lambda all: all.update({Q_PROJ: all[Q_PROJ].to(torch.int8)}), "got 'I8'"),
    ],
)
def test_a_tensor_at_fault_is_named(tmp_path, change, told):
    assert told in message_of(tmp_path, change_tensors(change))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"architectures": ["Gemma2ForCausalLM"]},
            "got 'Gemma2ForCausalLM'; use one of Qwen3ForCausalLM, Qwen2ForCausalLM, LlamaForCausalLM",
        ),
        ({"architectures": None}, "got 'none'; use one of Qwen3ForCausalLM, "),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
            "rope_type of config.json must be default or llama3",
        ),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "got 'linear'; use trainer=torch"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "KeyError: 'factor'"),
        (
            {"use_sliding_window": True},
            "use_sliding_window of config.json must be False for trainer=jax, got True; use trainer=torch",
        ),
        ({"hidden_act": "gelu"}, "hidden_act of config.json must be silu for trainer=jax, got 'gelu'"),
        ({"hidden_size": "wide"}, "readable config.json"),
        ({"num_attention_heads": 0, "head_dim": None}, "ZeroDivisionError"),
        ({"num_attention_heads": 3}, "num_attention_heads of config.json must be a multiple of its 2 key and value heads, got 3"),
        ({"num_hidden_layers": 0}, "num_hidden_layers of config.json must be 1 or more, got 0"),
        ({"hidden_size": 0}, "hidden_size of config.json must be 1 or more, got 0"),
        ({"intermediate_size": -5}, "intermediate_size of config.json must be 1 or more, got -5"),
        ({"vocab_size": 0}, "vocab_size of config.json must be 1 or more, got 0"),
        ({"head_dim": 33}, "head_dim of config.json must be even, got 33"),
        ({"intermediate_size": 64}, "mlp.down_proj.weight in the shape that config.json gives it, (64, 64), got (64, 160)"),
        ({"num_hidden_layers": 3}, "must hold tensor model.layers.2."),
        ({"num_hidden_layers": 1}, "must not hold tensor model.layers.1."),
        ({"tie_word_embeddings": False}, "must hold tensor lm_head.weight"),
    ],
)
def test_a_configuration_at_fault_is_told(tmp_path, change, told):
    assert told in message_of(tmp_path, change_config(**change))


@pytest.mark.parametrize("text", ["", "[]", "{", '"a"', '{"architectures": 3}'])
def test_a_configuration_that_is_none_is_told(tmp_path, text):
    make_model("qwen3", tied=True).save_pretrained(tmp_path)
    layout = model_layout(tmp_path)
    Path(tmp_path, "config.json").write_text(text)
    with pytest.raises(DataError, match=r"^model\.path: must hold a readable config\.json, got '.*'; .*$"):
        check_model(tmp_path, layout)


def test_a_missing_bias_is_named(tmp_path):
    name = "model.layers.0.mlp.down_proj.bias"
    assert name in message_of(tmp_path, change_tensors(lambda tensors: tensors.pop(name)), "llama-bias")
