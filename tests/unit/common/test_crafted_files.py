"""Crafted files are refused in one line, soon, within little memory, and nothing in them is run.

The readers run in one child process whose address space is limited: what would take more memory than it may fails there.
"""

import ast
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from crafted_files import DEEP, JSON_FILES, MARK, TENSOR_FILES, YAML_FILES, bomb, header, sparse, tensor
from safetensors.numpy import save_file

from common.config_errors import read_yaml, with_overrides
from common.errors import ConfigError, DataError, InputError, PublishError
from common.model_files import TensorLayout, model_layout
from common.prepare import context_length
from common.rundir import read_state
from common.spool import MANIFEST, SpoolWriter, check_spool, fingerprint, spool_files, spool_model, write_safetensors
from common.trainer_save import read_trainer_state

ROOT = Path(__file__).resolve().parents[3]
LAYOUT = {"w": TensorLayout((1,), "float32")}
MANY_BYTES = 2**30  # beyond what the process has when a test starts


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """An allocation of more than a GiB fails, here and in the libraries."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MANY_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def write_spool(directory: Path) -> Path:
    with SpoolWriter(directory, 1) as writer:
        writer.add("w", "float32", (1,), bytes(4))
    return directory


def write_model(directory: Path) -> Path:
    directory.mkdir()
    save_file({"w": np.zeros(1, np.float32)}, str(directory / "model.safetensors"))
    (directory / "config.json").write_text(json.dumps({"num_hidden_layers": 1, "max_position_embeddings": 64}))
    return directory


def refuses(kind: type[Exception], call: Callable[..., Any], *args: Any) -> str:
    """The one line that it is refused with."""
    with pytest.raises(kind) as caught:
        call(*args)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 2000
    return message


def read_spool(spool: Path) -> None:
    check_spool(spool, 1, LAYOUT)


@pytest.mark.parametrize("content", TENSOR_FILES.values(), ids=TENSOR_FILES.keys())
def test_tensor_files(tmp_path: Path, content: Callable[[], bytes]) -> None:
    """As a shard of a spool, and in a model directory."""
    data = content()
    spool, model = write_spool(tmp_path / "spool"), write_model(tmp_path / "model")
    (spool / "weights-00000.safetensors").write_bytes(data)
    (model / "model.safetensors").write_bytes(data)
    assert "weights-00000.safetensors" in refuses(PublishError, read_spool, spool)
    assert "model.safetensors" in refuses(DataError, model_layout, model)
    refuses(DataError, spool_model, model, tmp_path / "other", 1)


@pytest.mark.parametrize("name", ["weights-00000.safetensors", MANIFEST])
def test_a_pickle_under_another_name_is_not_opened(tmp_path: Path, name: str) -> None:
    spool = write_spool(tmp_path / "spool")
    (spool / name).write_bytes(bomb(tmp_path))
    refuses(PublishError, read_spool, spool)
    assert not (tmp_path / MARK).exists()


def test_a_sparse_shard_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    """Its size agrees with its header, and with a manifest that was made for it."""
    spool, elements = write_spool(tmp_path / "spool"), 2**38
    shard = spool / "weights-00000.safetensors"
    shard.write_bytes(head := header({"w": tensor(0, 4 * elements, [elements])}))
    sparse(shard, len(head) + 4 * elements)
    assert "disagree about its shape" in refuses(PublishError, read_spool, spool) or "cannot be read" in refuses(
        PublishError, read_spool, spool
    )
    manifest = json.loads((spool / MANIFEST).read_text())
    manifest["tensors"]["w"]["shape"] = [elements]
    (spool / MANIFEST).write_text(json.dumps(manifest))
    assert "the engines expect shape (1,)" in refuses(PublishError, read_spool, spool)
    refuses(PublishError, check_spool, spool, 1, {"w": TensorLayout((elements,), "float32")})  # more than there is memory


def entry(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest["tensors"]["w"].update(changes)


@pytest.mark.parametrize(
    "change",
    [
        entry(file="../outside.safetensors"),
        entry(file="/etc/passwd"),
        entry(file="weights-00000.safetensors/../../outside.safetensors"),
        entry(file=["weights-00000.safetensors"]),
        entry(file=None),
        entry(file="weights-00000.safetensors\n"),
        entry(shape=[10**30]),
        entry(shape=[-1]),
        entry(shape=[True]),
        entry(shape=["1"]),
        entry(shape=[1] * 1000),
        entry(shape={"0": 1}),
        entry(crc32=-1),
        entry(crc32=1.5),
        entry(crc32="0"),
        entry(dtype=["float32"]),
        lambda manifest: manifest.update(tensors=[1]),
        lambda manifest: manifest.update(tensors={"w": 3}),
        lambda manifest: manifest.update(version="1"),
        lambda manifest: manifest.update(version=True),
        lambda manifest: manifest.update(version=-1),
    ],
)
def test_manifests(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Every reader of it refuses, not only the check."""
    spool = write_spool(tmp_path / "spool")
    save_file({"w": np.zeros(1, np.float32)}, str(tmp_path / "outside.safetensors"))
    manifest = json.loads((spool / MANIFEST).read_text())
    change(manifest)
    (spool / MANIFEST).write_text(json.dumps(manifest))
    for reader in (read_spool, spool_files, fingerprint):
        assert "spool spool: manifest cannot be read" in refuses(PublishError, reader, spool)
    refuses(PublishError, write_safetensors, spool, tmp_path)


@pytest.mark.parametrize("name", ["weights-00000.safetensors", MANIFEST])
def test_links_out_of_a_spool_are_not_followed(tmp_path: Path, name: str) -> None:
    spool = write_spool(tmp_path / "spool")
    (spool / name).rename(tmp_path / name)
    (spool / name).symlink_to(tmp_path / name)
    assert f"{name} is no regular file" in refuses(PublishError, read_spool, spool)


READERS: dict[str, tuple[str, type[Exception], Callable[[Path], Any]]] = {
    "manifest": (MANIFEST, PublishError, read_spool),
    "config.json": ("config.json", DataError, context_length),
    "layout": ("config.json", DataError, model_layout),
    "index": ("model.safetensors.index.json", DataError, model_layout),
    "run state": ("state.json", DataError, read_state),
    "trainer state": ("state.json", DataError, read_trainer_state),
}


@pytest.mark.parametrize("content", JSON_FILES.values(), ids=JSON_FILES.keys())
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_json_files(tmp_path: Path, reader: tuple[str, type[Exception], Callable[[Path], Any]], content: bytes) -> None:
    name, kind, read = reader
    place = write_model(tmp_path / "place")
    (place / name).write_bytes(content)
    refuses(kind, read, place)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_what_is_no_file_is_not_read(tmp_path: Path, reader: tuple[str, type[Exception], Callable[[Path], Any]]) -> None:
    """A pipe without a writer would hang, and /dev/zero has no end."""
    name, kind, read = reader
    place = write_model(tmp_path / "place")
    (place / name).unlink(missing_ok=True)
    os.mkfifo(place / name)
    refuses(kind, read, place)
    (place / name).unlink()
    (place / name).symlink_to("/dev/zero")
    refuses(kind, read, place)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", 7, None])
def test_an_index_that_leads_out_of_the_model_is_refused(tmp_path: Path, name: object) -> None:
    model = write_model(tmp_path / "model")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    assert "is no plain file name" in refuses(DataError, model_layout, model)


def test_a_model_of_links_as_a_hub_cache_has_them_is_read(tmp_path: Path) -> None:
    """A person's own model directory may be made of links."""
    model, links = write_model(tmp_path / "model"), tmp_path / "links"
    links.mkdir()
    for file in model.iterdir():
        (links / file.name).symlink_to(file)
    (links / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "model.safetensors"}}))
    assert model_layout(links) == LAYOUT


@pytest.mark.parametrize(
    "data",
    [
        {"num_hidden_layers": 10**9},
        {"n_layer": 10**9},
        {"num_hidden_layers": 1e300},
        {"num_hidden_layers": float("nan")},
        {"num_experts": 10**9},
        {"text_config": {"num_hidden_layers": 10**9}},
    ],
)
def test_a_configuration_of_more_layers_than_weights_is_refused(tmp_path: Path, data: dict[str, Any]) -> None:
    """A model is built layer by layer before its shapes are compared: that loop would not end."""
    model = write_model(tmp_path / "model")
    (model / "config.json").write_text(json.dumps(data))
    assert "must have at most" in refuses(DataError, model_layout, model)


@pytest.mark.parametrize("value", ["64", 10**30, -1, True, None, 64.0])
def test_a_context_length_that_is_no_number_is_refused(tmp_path: Path, value: object) -> None:
    model = write_model(tmp_path / "model")
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": value}))
    assert "max_position_embeddings must be a whole number" in refuses(DataError, context_length, model)


@pytest.mark.parametrize("value", [10**9, -1, 0, "2", 2.0, True, None, [2], {"a": 1}])
@pytest.mark.parametrize("key", ["num_ranks", "optimizer_step"])
def test_trainer_states(tmp_path: Path, key: str, value: object) -> None:
    """0 ranks, which would restore nothing at all, or 10^9, whose files would be looked for one by one."""
    if key == "optimizer_step" and value in (0, 10**9) and value is not True:
        return
    (tmp_path / "state.json").write_text(json.dumps({"num_ranks": 1, "optimizer_step": 1} | {key: value}))
    assert f"{key} must be a whole number" in refuses(DataError, read_trainer_state, tmp_path)


@pytest.mark.parametrize("value", [2**60, -1, "2", 2.0, True, None, [2]])
@pytest.mark.parametrize("key", ["round", "version"])
def test_run_states(tmp_path: Path, key: str, value: object) -> None:
    state = {"round": 1, "version": 1, "sampler": {}, "workload": "x"} | {key: value}
    (tmp_path / "state.json").write_text(json.dumps(state))
    refuses(DataError, read_state, tmp_path)


@pytest.mark.parametrize("content", YAML_FILES.values(), ids=YAML_FILES.keys())
def test_configurations(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused when they are read, or where the value reaches its field."""
    from common.config import Config
    from common.config_errors import validate

    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    refuses(ConfigError, lambda: validate(Config, read_yaml(file)))
    assert not (tmp_path / MARK).exists()


def test_a_configuration_of_2_gb_or_without_end_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    sparse(file, 2 * 10**9)
    assert "it is longer than" in refuses(ConfigError, read_yaml, file)
    assert "it is no regular file" in refuses(ConfigError, read_yaml, Path("/dev/zero"))


def test_aliases_as_people_use_them_are_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]\n")
    assert read_yaml(file) == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1}, {"x": 1}]}


@pytest.mark.parametrize("text", ["a" + ".a" * DEEP + "=1", "rounds=" + "[" * DEEP, "x=&a [*a]", "x=!!python/name:os.x"])
def test_overrides(text: str) -> None:
    with pytest.raises(ConfigError):
        with_overrides({}, [text])


def test_no_reader_runs_code_of_a_file() -> None:
    """No pickle of a file, no unsafe YAML, no code of a model; `trust_remote_code` is said, and False, wherever it could be."""
    loaders = ("torch.load", "pickle.load", "yaml.unsafe_load", "yaml.full_load", "joblib.load", "np.load")
    for folder in ("common", "rolloutpipe_torch", "rolloutpipe_jax"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.keyword) and node.arg in ("trust_remote_code", "allow_pickle"):
                    assert isinstance(node.value, ast.Constant), file
                    assert node.value.value is False, file
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    name = ast.unparse(node.func)
                    assert name not in loaders, file
                    assert name != "yaml.load" or file.name == "config_errors.py", file  # with a subclass of SafeLoader
                    assert not re.fullmatch(r"Auto\w+\.from_\w+", name) or _says_no(node), (file, node.lineno)
    from common import config_errors

    assert issubclass(config_errors._Loader, yaml.SafeLoader)


def _says_no(call: ast.Call) -> bool:
    return any(word.arg == "trust_remote_code" for word in call.keywords)


def test_the_limit_on_memory_is_one() -> None:
    """Else the tests above would show nothing about it."""
    code = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MANY_BYTES}, {MANY_BYTES})); bytearray(2 * {MANY_BYTES})"
    assert b"MemoryError" in subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stderr
    with pytest.raises(MemoryError):
        bytearray(2 * MANY_BYTES)
    assert issubclass(DataError, InputError)
