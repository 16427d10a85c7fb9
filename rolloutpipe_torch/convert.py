"""The weights in a checkpoint of the torch trainer, as a Hugging Face directory; no process group and no optimizer is needed."""

import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from common.errors import DataError, explain
from common.safe_files import check_tensor_file, file_inside
from common.spool import SpoolWriter, TensorLayout, model_layout, write_safetensors
from rolloutpipe_torch.weights import to_bytes

_LEFT_OUT = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf", "*.pt", "*.pth", ".*")


def convert(source: Path, target: Path, *, like: Path) -> None:
    """Write the weights of the checkpoint `source` to the new directory `target`, with the other files of `like`.

    `like` is the model that the run started from: names, shapes and dtypes are its own, as in a publish. One tensor is in memory
    at a time. Raises DataError where `source` is none of its checkpoints, or a file is missing; there is then no target.
    """
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of a conversion that was killed
        shutil.copytree(like, partial, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        spool = partial / ".spool"
        with SpoolWriter(spool, 0) as writer:
            for name, layout in model_layout(like).items():
                writer.add(name, layout.dtype, layout.shape, to_bytes(_tensor(source, name, layout)))
        write_safetensors(spool, partial, move=True)
        shutil.rmtree(spool)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _tensor(source: Path, name: str, layout: TensorLayout) -> torch.Tensor:
    """The rows of all ranks, one below the other."""
    files = sorted(source.glob("rank-*.safetensors"))
    text = files[0].stem.rpartition("-")[2]
    num_ranks = int(text[:9]) if text.isdecimal() else 0
    if len(files) != num_ranks:
        rule = f"must hold the files of all {num_ranks} ranks"
        raise DataError(explain("checkpoint", rule, f"{len(files)} files", f"copy {source} again"))
    try:
        parts = []
        for file in files:
            check_tensor_file(file_inside(source, file.name))
            with safe_open(str(file), framework="pt") as tensors:
                parts.append(tensors.get_tensor(f"weight/{name}"))
        whole = torch.cat(parts)
        if tuple(whole.shape) != layout.shape:
            raise ValueError(f"{name} has the shape {tuple(whole.shape)}, not {layout.shape}")
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        remedy = f"give one of this run ({' '.join(str(error).split())})"
        raise DataError(explain("checkpoint", "must hold the weights of the run's model", str(source), remedy)) from error
    return whole.to(getattr(torch, layout.dtype))
