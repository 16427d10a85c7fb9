"""Weights on their way from trainer to engines: a directory of safetensors shards with a manifest (rule 6).

    SpoolWriter.add(name, dtype, shape, data) ... close() -> manifest.json, written last
    check_spool(spool, version, expected)     before any engine is touched: coverage, shapes, dtypes, checksums, version

`expected` is what the engines were started with (`model_layout`), so a dropped, renamed or reshaped tensor is found by
name. A tied `lm_head.weight` is sent once, as the embedding it shares. Framework-free: bytes in, bytes out.
"""

import hashlib
import json
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError, TensorSpec, deserialize, safe_open, serialize_file

from common.disk import writing
from common.durable import sync_directory, sync_file
from common.errors import PublishError
from common.model_files import CODES
from common.model_files import TensorLayout as TensorLayout
from common.model_files import model_layout as model_layout
from common.safe_files import check_tensor_file, file_inside, read_json, whole_number

MANIFEST = "manifest.json"
SHARD_BYTES = 128 * 2**20  # also what a writer holds in memory
_MAX_LENGTH = 2**40  # of one dimension
_MAX_RANK = 16


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
        with writing(self._spool / MANIFEST):  # not forced to the disk, as are the shards: after a crash a resume exports anew
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
    """Tensors of the manifest by name: file, dtype, shape, crc32. Raises PublishError."""
    tensors: dict[str, dict[str, Any]] = _manifest(spool)["tensors"]
    return tensors


def spool_files(spool: Path) -> list[Path]:
    """Shards in order. Raises PublishError."""
    return _files(spool, read_manifest(spool))


def _files(spool: Path, tensors: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    return [spool / name for name in dict.fromkeys(str(entry["file"]) for entry in tensors.values())]


def fingerprint(spool: Path) -> str:
    """Of the checked spool's weights: sha256 over name, dtype, shape and checksum of each tensor, by name.

    It takes the manifest's word for the values, which `check_spool` has compared with the shards; so it costs no pass over
    them. Version and cut into shards do not count. Raises PublishError.
    """
    lines = sorted(
        json.dumps([name, entry["dtype"], entry["shape"], entry["crc32"]]) for name, entry in read_manifest(spool).items()
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def spool_model(model_dir: Path, spool: Path, version: int) -> None:
    """The weights of a model directory, as a trainer would export them. One file is in memory at a time. Raises DataError."""
    layout = model_layout(model_dir)
    with SpoolWriter(spool, version) as writer:
        for file in sorted(model_dir.glob("*.safetensors")):
            for name, entry in deserialize(file.read_bytes()):
                if name in layout:  # a tied head is not
                    writer.add(name, layout[name].dtype, layout[name].shape, bytes(entry["data"]))


def check_spool(spool: Path, version: int, expected: Mapping[str, TensorLayout]) -> None:
    """Raises PublishError that names the tensor or version; no engine has been touched."""
    manifest = _manifest(spool)
    if manifest["version"] != version:
        raise PublishError(f"spool holds weight version {manifest['version']}, but version {version} is to be published")
    tensors = manifest["tensors"]
    _check_coverage(set(tensors), set(expected))
    for name, spec in expected.items():
        found = TensorLayout(tuple(tensors[name]["shape"]), str(tensors[name]["dtype"]))
        if found.shape != spec.shape:
            raise PublishError(f"tensor {name}: the engines expect shape {spec.shape}, the spool has {found.shape}")
        if found.dtype != spec.dtype:
            raise PublishError(f"tensor {name}: the engines expect dtype {spec.dtype}, the spool has {found.dtype}")
    for file in _files(spool, tensors):
        _check_shard(file, tensors)


def _check_coverage(found: set[str], expected: set[str]) -> None:
    missing, extra = sorted(expected - found), sorted(found - expected)
    if missing:
        also = f"; it has {extra[0]}, which they do not expect" if extra else ""
        raise PublishError(f"tensor {missing[0]}: expected by the engines, missing from the spool ({len(missing)} missing){also}")
    if extra:
        raise PublishError(f"tensor {extra[0]}: in the spool, but not expected by the engines ({len(extra)} such)")


def _check_shard(file: Path, tensors: Mapping[str, Mapping[str, Any]]) -> None:
    wanted = {name for name, entry in tensors.items() if entry["file"] == file.name}
    try:
        check_tensor_file(file_inside(file.parent, file.name))
        _check_header(file, tensors, wanted)  # before anything of the size that it gives is read
        entries = deserialize(file.read_bytes())
    except (SafetensorError, OSError, ValueError, MemoryError) as error:
        raise PublishError(f"spool shard {file.name} cannot be read: {' '.join(str(error).split())}") from error
    for name, entry in entries:
        if zlib.crc32(entry["data"]) != tensors[name]["crc32"]:
            raise PublishError(f"tensor {name}: checksum of shard {file.name} does not match the manifest")


def _check_header(file: Path, tensors: Mapping[str, Mapping[str, Any]], wanted: set[str]) -> None:
    with safe_open(str(file), framework="np") as shard:
        if strange := sorted(wanted ^ set(shard.keys())):
            raise PublishError(f"tensor {strange[0]}: manifest and shard {file.name} disagree about it")
        for name in wanted:
            part, dtype = shard.get_slice(name), tensors[name]["dtype"]
            if list(part.get_shape()) != tensors[name]["shape"] or part.get_dtype() != CODES.get(dtype, dtype):
                raise PublishError(f"tensor {name}: manifest and shard {file.name} disagree about its shape or dtype")


def _manifest(spool: Path) -> dict[str, Any]:
    try:
        manifest = read_json(file_inside(spool, MANIFEST))
        whole_number(manifest, "version", 0, 2**63)
        if not isinstance(manifest.get("tensors"), dict):
            raise ValueError("it must give version and tensors")
        for name, entry in manifest["tensors"].items():
            _check_entry(name, entry)
    except (OSError, ValueError) as error:
        raise PublishError(f"spool {spool.name}: manifest cannot be read ({' '.join(str(error).split())})") from error
    return manifest


def _check_entry(name: str, entry: Any) -> None:
    if not isinstance(entry, dict) or not re.fullmatch(r"weights-\d{5,9}\.safetensors", str(entry.get("file"))):
        raise ValueError(f"tensor {name[:80]}: it must stand in a shard of the spool")
    shape = entry.get("shape")
    if not isinstance(shape, list) or len(shape) > _MAX_RANK:
        raise ValueError(f"tensor {name[:80]}: its shape must be a list of at most {_MAX_RANK} lengths")
    for length in shape:
        whole_number({f"tensor {name[:80]}: each length": length}, f"tensor {name[:80]}: each length", 0, _MAX_LENGTH)
    if not isinstance(entry.get("dtype"), str):
        raise ValueError(f"tensor {name[:80]}: its dtype must be a name")
    whole_number(entry, "crc32", 0, 2**32 - 1)


def weights_sha256(spool: Path) -> str:
    """Of all tensors by name: equal exactly when every weight is bit-identical."""
    parts: dict[str, str] = {}
    for file in spool_files(spool):
        for name, entry in deserialize(file.read_bytes()):
            header = f"{name} {entry['dtype']} {entry['shape']}\n".encode()
            parts[name] = hashlib.sha256(header + entry["data"]).hexdigest()
    return hashlib.sha256("".join(parts[name] for name in sorted(parts)).encode()).hexdigest()


def write_safetensors(spool: Path, directory: Path, *, move: bool = False) -> None:
    """Copy the weights under the names that transformers and vLLM look for; `move` them where the spool is done with.

    They are on the disk for good when this returns.
    """
    bring: Callable[[Path, Path], object] = shutil.move if move else shutil.copyfile
    tensors = read_manifest(spool)
    files = _files(spool, tensors)
    total_size = sum(file.stat().st_size for file in files)
    names = {file.name: f"model-{number:05d}-of-{len(files):05d}.safetensors" for number, file in enumerate(files, 1)}
    if len(files) == 1:
        names = {files[0].name: "model.safetensors"}
    for file in files:
        bring(file, directory / names[file.name])
        sync_file(directory / names[file.name])
    if len(files) > 1:
        weight_map = {name: names[str(entry["file"])] for name, entry in tensors.items()}
        index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
        place = directory / "model.safetensors.index.json"
        place.write_text(json.dumps(index, indent=1), encoding="utf-8")
        sync_file(place)
    sync_directory(directory)
