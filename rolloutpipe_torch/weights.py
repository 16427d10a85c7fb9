"""Weights on their way out: whole tensors, one after the other, under the names of the model directory."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from common.spool import SpoolWriter, TensorLayout
from rolloutpipe_torch.parallelize import full


@torch.no_grad()
def export_weights(
    spool: Path, version: int, params: Mapping[str, Tensor], layout: Mapping[str, TensorLayout], rank: int
) -> None:
    """Write `params` into `spool`, in the dtypes of `layout`; rank 0 writes, but every rank must call it.

    Sharded parameters are gathered one at a time. A tied head is not among the parameters, so it is sent once.
    """
    with SpoolWriter(spool, version) if rank == 0 else nullcontext() as writer:
        for name, param in params.items():
            whole = full(param.detach())
            if writer is not None:
                dtype = layout[name].dtype
                writer.add(name, dtype, tuple(whole.shape), to_bytes(whole.to(getattr(torch, dtype))))


def to_bytes(tensor: Tensor) -> bytes:
    """Row-major little-endian; NumPy has no bfloat16, so the bits go through uint8."""
    return tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
