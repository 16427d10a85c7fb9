"""Weights on their way from trainer to engines: a directory of safetensors shards with a manifest (rule 6).

    SpoolWriter.add(name, dtype, shape, data) ... close() -> manifest.json, written last
    check_spool(spool, version, expected)     before any engine is touched: coverage, shapes, dtypes, checksums, version

`expected` is what the engines were started with (`model_layout`), so a dropped, renamed or reshaped tensor is found by
name. A tied `lm_head.weight` is sent once, as the embedding it shares. Framework-free: bytes in, bytes out.
"""

import hashlib
import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError, TensorSpec, deserialize, safe_open, serialize_file

from common.disk import writing
from common.errors import DataError, PublishError, explain

MANIFEST = "manifest.json"
SHARD_BYTES = 128 * 2**20  # also what a writer holds in memory
# Names of dtypes as frameworks have them, and as safetensors files have them.
_CODES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Shape and dtype (`float32`, `bfloat16`, `float16`) of one tensor."""

    shape: tuple[int, ...]
    dtype: str


class SpoolWriter:
    """Streams tensors into shards of about 128 MiB, so the whole model is never held twice. Raises DiskError."""

    def __init__(self, spool: Path, version: int) -> None:
        with writing(spool):
            spool.mkdir(parents=True, exist_ok=True)
        self._spool, self._version = spool, version
        self._shard: dict[str, tuple[str, list[int], bytes]] = {}
        self._shard_bytes = 0
        self._num_shards = 0
        self._tensors: dict[str, dict[str, object]] = {}

    def add(self, name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
        """One tensor, row-major little-endian bytes."""
        if name in self._tensors:
            raise PublishError(f"spool {self._spool.name}: tensor {name} was exported twice")
        self._shard[name] = (dtype, list(shape), data)
        self._tensors[name] = {
            "file": self._shard_name(self._num_shards),
            "dtype": dtype,
            "shape": list(shape),
            "crc32": zlib.crc32(data),
        }
        self._shard_bytes += len(data)
        if self._shard_bytes >= SHARD_BYTES:
            self._flush()

    def close(self) -> None:
        """Write the last shard, then the manifest."""
        self._flush()
        manifest = {"version": self._version, "tensors": self._tensors}
        with writing(self._spool / MANIFEST):
            (self._spool / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")

    def _flush(self) -> None:
        if self._shard:
            # The library takes addresses; `self._shard` keeps the bytes behind them alive until it has written.
            specs = {
                name: TensorSpec(dtype=dtype, shape=shape, data_ptr=np.frombuffer(data, np.uint8).ctypes.data, data_len=len(data))
                for name, (dtype, shape, data) in self._shard.items()
            }
            shard = self._spool / self._shard_name(self._num_shards)
            with writing(shard):
                serialize_file(specs, str(shard), {"format": "pt"})
            self._num_shards += 1
            self._shard, self._shard_bytes = {}, 0

    @staticmethod
    def _shard_name(index: int) -> str:
        return f"weights-{index:05d}.safetensors"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()


def read_manifest(spool: Path) -> dict[str, dict[str, Any]]:
    """Tensors of the manifest by name: file, dtype, shape, crc32."""
    tensors: dict[str, dict[str, Any]] = _manifest(spool)["tensors"]
    return tensors


def spool_files(spool: Path) -> list[Path]:
    """Shards in order."""
    return [spool / name for name in dict.fromkeys(str(entry["file"]) for entry in read_manifest(spool).values())]


def model_layout(model_dir: Path) -> dict[str, TensorLayout]:
    """What a model directory holds, from its safetensors headers; a tied head is left out. Raises DataError."""
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise DataError(
            explain("model.path", "must hold safetensors weights", str(model_dir), "convert the model with save_pretrained")
        )
    long_names = {code: name for name, code in _CODES.items()}
    layout: dict[str, TensorLayout] = {}
    for file in files:
        try:
            with safe_open(str(file), framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    part = tensors.get_slice(name)
                    code = part.get_dtype()
                    layout[name] = TensorLayout(tuple(part.get_shape()), long_names.get(code, code))
        except (SafetensorError, OSError) as error:
            remedy = f"copy the file again ({' '.join(str(error).split())})"
            raise DataError(explain("model.path", "must hold readable safetensors", str(file), remedy)) from error
    if _is_tied(model_dir):
        layout.pop("lm_head.weight", None)
    return layout


def spool_model(model_dir: Path, spool: Path, version: int) -> None:
    """The weights of a model directory, as a trainer would export them. One file is in memory at a time. Raises DataError."""
    layout = model_layout(model_dir)
    with SpoolWriter(spool, version) as writer:
        for file in sorted(model_dir.glob("*.safetensors")):
            for name, entry in deserialize(file.read_bytes()):
                if name in layout:  # a tied head is not
                    writer.add(name, layout[name].dtype, layout[name].shape, bytes(entry["data"]))


def _is_tied(model_dir: Path) -> bool:
    file = model_dir / "config.json"
    try:
        return bool(json.loads(file.read_text(encoding="utf-8")).get("tie_word_embeddings", False))
    except (OSError, ValueError, AttributeError) as error:
        remedy = f"copy the file again ({' '.join(str(error).split())})"
        raise DataError(explain("model.path", "must hold a readable config.json", str(file), remedy)) from error


def check_spool(spool: Path, version: int, expected: Mapping[str, TensorLayout]) -> None:
    """Raises PublishError that names the tensor or version; no engine has been touched."""
    manifest = _manifest(spool)
    if manifest["version"] != version:
        raise PublishError(f"spool holds weight version {manifest['version']}, but version {version} is to be published")
    tensors = read_manifest(spool)
    _check_coverage(set(tensors), set(expected))
    for name, spec in expected.items():
        found = TensorLayout(tuple(tensors[name]["shape"]), str(tensors[name]["dtype"]))
        if found.shape != spec.shape:
            raise PublishError(f"tensor {name}: the engines expect shape {spec.shape}, the spool has {found.shape}")
        if found.dtype != spec.dtype:
            raise PublishError(f"tensor {name}: the engines expect dtype {spec.dtype}, the spool has {found.dtype}")
    for file in spool_files(spool):
        _check_shard(file, tensors)


def _check_coverage(found: set[str], expected: set[str]) -> None:
    missing, extra = sorted(expected - found), sorted(found - expected)
    if missing:
        also = f"; it has {extra[0]}, which they do not expect" if extra else ""
        raise PublishError(f"tensor {missing[0]}: expected by the engines, missing from the spool ({len(missing)} missing){also}")
    if extra:
        raise PublishError(f"tensor {extra[0]}: in the spool, but not expected by the engines ({len(extra)} such)")


def _check_shard(file: Path, tensors: Mapping[str, Mapping[str, Any]]) -> None:
    try:
        entries = deserialize(file.read_bytes())
    except (SafetensorError, OSError) as error:
        raise PublishError(f"spool shard {file.name} cannot be read: {' '.join(str(error).split())}") from error
    wanted = {name for name, entry in tensors.items() if entry["file"] == file.name}
    found = {name for name, _ in entries}
    if wanted != found:
        name = sorted(wanted ^ found)[0]
        raise PublishError(f"tensor {name}: manifest and shard {file.name} disagree about it")
    for name, entry in entries:
        dtype = tensors[name]["dtype"]
        if list(entry["shape"]) != tensors[name]["shape"] or entry["dtype"] != _CODES.get(dtype, dtype):
            raise PublishError(f"tensor {name}: manifest and shard {file.name} disagree about its shape or dtype")
        if zlib.crc32(entry["data"]) != tensors[name]["crc32"]:
            raise PublishError(f"tensor {name}: checksum of shard {file.name} does not match the manifest")


def _manifest(spool: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((spool / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PublishError(f"spool {spool.name}: manifest cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(manifest, dict) or not {"version", "tensors"} <= manifest.keys():
        raise PublishError(f"spool {spool.name}: manifest must give version and tensors")
    return manifest


def fingerprint(spool: Path) -> str:
    """Of the manifest's tensors: name, dtype, shape and crc32. Reads no weights."""
    entries = [[name, tensor["dtype"], tensor["shape"], tensor["crc32"]] for name, tensor in sorted(read_manifest(spool).items())]
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def weights_sha256(spool: Path) -> str:
    """Of all tensors by name: equal exactly when every weight is bit-identical."""
    parts: dict[str, str] = {}
    for file in spool_files(spool):
        for name, entry in deserialize(file.read_bytes()):
            header = f"{name} {entry['dtype']} {entry['shape']}\n".encode()
            parts[name] = hashlib.sha256(header + entry["data"]).hexdigest()
    return hashlib.sha256("".join(parts[name] for name in sorted(parts)).encode()).hexdigest()


def write_safetensors(spool: Path, directory: Path, *, move: bool = False) -> None:
    """Copy the weights under the names that transformers and vLLM look for; `move` them where the spool is done with."""
    bring: Callable[[Path, Path], object] = shutil.move if move else shutil.copyfile
    files = spool_files(spool)
    if len(files) == 1:
        bring(files[0], directory / "model.safetensors")
        return
    total_size = sum(file.stat().st_size for file in files)
    names = {file.name: f"model-{number:05d}-of-{len(files):05d}.safetensors" for number, file in enumerate(files, 1)}
    for file in files:
        bring(file, directory / names[file.name])
    tensors = read_manifest(spool)
    weight_map = {name: names[str(entry["file"])] for name, entry in tensors.items()}
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
