"""Weights on their way: what is wrong with a spool is told by the tensor's name or the version (rule 6, pain 6)."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from common import spool as spool_module
from common.errors import DataError, PublishError
from common.spool import MANIFEST, SpoolWriter, TensorLayout, check_spool, fingerprint, model_layout, read_manifest, spool_files

LAYOUT = {
    "embed": TensorLayout((4, 3), "float32"),
    "layer.weight": TensorLayout((3, 3), "float32"),
    "norm": TensorLayout((3,), "bfloat16"),
}
CODES = {"float32": np.float32, "bfloat16": np.uint16}


def write(directory: Path, *, version: int = 3, layout: dict[str, TensorLayout] | None = None, seed: int = 0) -> Path:
    """A spool of random tensors."""
    rng = np.random.default_rng(seed)
    with SpoolWriter(directory, version) as writer:
        for name, spec in (layout or LAYOUT).items():
            data = rng.integers(0, 255, size=spec.shape).astype(CODES[spec.dtype])
            writer.add(name, spec.dtype, spec.shape, data.tobytes())
    return directory


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tensor has a shard of its own."""
    monkeypatch.setattr(spool_module, "SHARD_BYTES", 1)


def test_a_sound_spool_passes(tmp_path: Path) -> None:
    """Rule 6: names, shapes, dtypes, checksums and version agree."""
    check_spool(write(tmp_path / "a"), 3, LAYOUT)


@pytest.mark.usefixtures("small_shards")
def test_a_spool_of_many_shards_passes_and_keeps_every_tensor(tmp_path: Path) -> None:
    """Shards: one file each here, in order, and all values arrive."""
    spool = write(tmp_path / "a")
    assert [file.name for file in spool_files(spool)] == [f"weights-{index:05d}.safetensors" for index in range(3)]
    check_spool(spool, 3, LAYOUT)
    found = {name for file in spool_files(spool) for name in json.loads(_header(file)) if name != "__metadata__"}
    assert found == set(LAYOUT) == set(read_manifest(spool))


def _header(file: Path) -> bytes:
    data = file.read_bytes()
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def without(name: str) -> dict[str, TensorLayout]:
    return {key: spec for key, spec in LAYOUT.items() if key != name}


def flip(spool: Path) -> None:
    """One value of one tensor, as a fault of disk or transfer would."""
    file = spool_files(spool)[0]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def tear(spool: Path) -> None:
    file = spool_files(spool)[-1]
    file.write_bytes(file.read_bytes()[:-4])


def unlink(spool: Path) -> None:
    spool_files(spool)[-1].unlink()


def stale(spool: Path) -> None:
    """A shard of another export under the same name."""
    other = write(spool / "other", layout=without("norm"))
    spool_files(other)[0].replace(spool_files(spool)[0])


def manifest(change: Callable[[dict], object]) -> Callable[[Path], None]:  # type: ignore[type-arg]
    def apply(spool: Path) -> None:
        content = json.loads((spool / MANIFEST).read_text())
        change(content)
        (spool / MANIFEST).write_text(json.dumps(content))

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, r"tensor norm: checksum of shard weights-00000.safetensors does not match the manifest"),
        (tear, r"spool shard weights-00000.safetensors cannot be read: "),
        (unlink, r"spool shard weights-00000.safetensors cannot be read: "),
        (stale, r"tensor norm: manifest and shard weights-00000.safetensors disagree about it"),
        (manifest(lambda m: m["tensors"]["norm"].update(dtype="float16")), r"tensor norm: the engines expect dtype bfloat16"),
        (manifest(lambda m: m.pop("version")), r"manifest cannot be read \(version must be a whole number"),
        (lambda spool: (spool / MANIFEST).write_text('{"version": 3, "ten'), r"manifest cannot be read"),
        (lambda spool: (spool / MANIFEST).write_text("[1]"), r"manifest cannot be read \(it is no JSON object\)"),
        (lambda spool: (spool / MANIFEST).unlink(), r"manifest cannot be read"),
    ],
    ids=["flipped", "torn", "lost", "stale", "dtype", "no version", "torn manifest", "wrong manifest", "no manifest"],
)
def test_damage_is_found_and_named(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    """Rule 6, pain 6: before an engine is touched."""
    spool = write(tmp_path / "a")
    damage(spool)
    with pytest.raises(PublishError, match=message):
        check_spool(spool, 3, LAYOUT)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (without("norm"), r"^tensor norm: expected by the engines, missing from the spool \(1 missing\)$"),
        (
            {**without("norm"), "norm.weight": LAYOUT["norm"]},
            r"tensor norm: expected .* missing .*; it has norm.weight, which they do not expect",
        ),
        ({**LAYOUT, "bias": TensorLayout((1,), "float32")}, r"tensor bias: in the spool, but not expected by the engines"),
        (
            {**LAYOUT, "embed": TensorLayout((3, 4), "float32")},
            r"tensor embed: the engines expect shape \(4, 3\), the spool has \(3, 4\)",
        ),
        (
            {**LAYOUT, "norm": TensorLayout((3,), "float32")},
            r"tensor norm: the engines expect dtype bfloat16, the spool has float32",
        ),
    ],
    ids=["dropped", "renamed", "added", "reshaped", "other dtype"],
)
def test_a_spool_of_another_layout_is_refused(tmp_path: Path, layout: dict[str, TensorLayout], message: str) -> None:
    """Rule 6, pain 6: each fault has a message of its own that names the tensor."""
    with pytest.raises(PublishError, match=message):
        check_spool(write(tmp_path / "a", layout=layout), 3, LAYOUT)


def test_a_spool_of_another_version_is_refused(tmp_path: Path) -> None:
    """Rule 6, pain 6: version 1 where version 3 is due."""
    with pytest.raises(PublishError, match="spool holds weight version 1, but version 3 is to be published"):
        check_spool(write(tmp_path / "a", version=1), 3, LAYOUT)


@pytest.mark.usefixtures("small_shards")
def test_a_flipped_value_is_found_in_any_shard(tmp_path: Path) -> None:
    """Rule 6: the second of three shards."""
    spool = write(tmp_path / "a")
    file = spool_files(spool)[1]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(PublishError, match=r"tensor layer.weight: checksum of shard weights-00001"):
        check_spool(spool, 3, LAYOUT)


def test_an_export_that_failed_leaves_no_manifest(tmp_path: Path) -> None:
    """Rule 6: the manifest comes last, so half an export is no spool."""
    with pytest.raises(ZeroDivisionError), SpoolWriter(tmp_path / "a", 3) as writer:
        writer.add("embed", "float32", (1,), b"\0\0\0\0")
        raise ZeroDivisionError
    with pytest.raises(PublishError, match="manifest cannot be read"):
        check_spool(tmp_path / "a", 3, LAYOUT)


def test_a_tensor_that_is_exported_twice_is_refused(tmp_path: Path) -> None:
    """Pain 7: a tie is sent once."""
    writer = SpoolWriter(tmp_path / "a", 3)
    writer.add("embed", "float32", (1,), b"\0\0\0\0")
    with pytest.raises(PublishError, match="tensor embed was exported twice"):
        writer.add("embed", "float32", (1,), b"\0\0\0\0")


def test_values_arrive_as_they_were_written(tmp_path: Path) -> None:
    """The shards are ordinary safetensors files."""
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    with SpoolWriter(tmp_path / "a", 0) as writer:
        writer.add("embed", "float32", (4, 3), values.tobytes())
    np.testing.assert_array_equal(load_file(spool_files(tmp_path / "a")[0])["embed"], values)


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_layout_of_a_model_leaves_a_tied_head_out(tmp_path: Path, is_tied: bool) -> None:
    """Pain 7: what is tied is sent once, as the embedding."""
    arrays = {"model.embed_tokens.weight": np.zeros((4, 3), np.float32), "lm_head.weight": np.zeros((4, 3), np.float32)}
    save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": is_tied}))
    expected = {"model.embed_tokens.weight"} | (set() if is_tied else {"lm_head.weight"})
    layout = model_layout(tmp_path)
    assert set(layout) == expected and layout["model.embed_tokens.weight"] == TensorLayout((4, 3), "float32")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "must hold safetensors weights"),
        ({"model.safetensors": b"not a tensor file"}, "must hold readable safetensors"),
        ({"model.safetensors": None}, "must hold a readable config.json"),
        ({"model.safetensors": None, "config.json": b"{"}, "must hold a readable config.json"),
    ],
    ids=["empty", "broken", "no config", "torn config"],
)
def test_a_broken_model_directory_is_told_in_one_line(tmp_path: Path, files: dict[str, bytes | None], message: str) -> None:
    """Bad input: field, rule, value, remedy; no traceback of a library."""
    for name, content in files.items():
        if content is None:
            save_file({"w": np.zeros(2, np.float32)}, tmp_path / name)
        else:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"^model.path: {message}, got .*; ") as caught:
        model_layout(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_fingerprint_is_of_the_weights_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same weights: same fingerprint, whatever the version, the order and the cut into shards."""
    first = fingerprint(write(tmp_path / "a"))
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert fingerprint(write(tmp_path / "version", version=9)) == first
    monkeypatch.setattr(spool_module, "SHARD_BYTES", 1)
    assert fingerprint(write(tmp_path / "shards")) == first
    manifest = json.loads((tmp_path / "a" / MANIFEST).read_text())
    manifest["tensors"] = dict(reversed(manifest["tensors"].items()))
    (tmp_path / "a" / MANIFEST).write_text(json.dumps(manifest))
    assert fingerprint(tmp_path / "a") == first


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors["norm"].update(crc32=tensors["norm"]["crc32"] ^ 1),
        lambda tensors: tensors["norm"].update(dtype="float16"),
        lambda tensors: tensors["norm"].update(shape=[3, 1]),
        lambda tensors: tensors.update(other=tensors.pop("norm")),
        lambda tensors: tensors.pop("norm"),
    ],
    ids=["value", "dtype", "shape", "name", "fewer"],
)
def test_the_fingerprint_tells_weights_apart(tmp_path: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    spool = write(tmp_path / "a")
    before, manifest = fingerprint(spool), json.loads((spool / MANIFEST).read_text())
    change(manifest["tensors"])
    (spool / MANIFEST).write_text(json.dumps(manifest))
    assert fingerprint(spool) != before
    assert fingerprint(write(tmp_path / "b", seed=1)) != before
