"""Trainer state on disk, without pickle: each rank writes its own rows of weights and moments as safetensors.

    state.json                           counters, and the number of ranks that wrote (by the driver, `common.trainer`)
    rank-00000-of-00002.safetensors      weight/NAME, exp_avg/NAME, exp_avg_sq/NAME: the rows of rank 0

FSDP2 gives rank r of n the rows [r * c, (r + 1) * c) of each tensor, c = ceil(rows / n). So any number of ranks can read
what any other number wrote: each takes the rows that are its own from the files that have them. Nothing is gathered.
The trainer has no random state: it uses no dropout, and the order of groups comes from outside.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from common.durable import sync_file
from common.errors import DataError, explain
from common.safe_files import check_tensor_file, file_inside
from rolloutpipe_torch.optimizer import MOMENTS, ShardedAdamW


def save_shard(directory: Path, optimizer: ShardedAdamW, rank: int, num_ranks: int) -> None:
    """Write this rank's file; it is on the disk for good when this returns."""
    tensors = {f"{kind}/{name}": tensor.detach().cpu().contiguous() for kind, name, tensor in _tensors(optimizer)}
    file = _file(directory, rank, num_ranks)
    save_file(tensors, str(file))
    sync_file(file)


@torch.no_grad()
def load_shard(directory: Path, optimizer: ShardedAdamW, rank: int, num_ranks: int, saved_ranks: int) -> None:
    """Fill this rank's rows, whatever number of ranks saved them. Raises DataError; the state is then undefined."""
    for saved in range(saved_ranks):
        path = _file(directory, saved, saved_ranks)
        try:
            check_tensor_file(file_inside(directory, path.name))
            with safe_open(str(path), framework="pt") as file:
                for kind, name, tensor in _tensors(optimizer):
                    _copy_rows(
                        file.get_slice(f"{kind}/{name}"), tensor, optimizer.params[name], (rank, num_ranks), (saved, saved_ranks)
                    )
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            where = directory.parent if directory.name == "trainer" else directory
            remedy = f"move {where} away, then resume again: the one before it counts ({' '.join(str(error).split())})"
            raise DataError(explain("checkpoint", "must hold the trainer state of this model", str(path), remedy)) from error


def rows(size: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """First row and row behind the last of `size` rows that `rank` holds."""
    share = -(-size // num_ranks)
    return min(rank * share, size), min((rank + 1) * share, size)


def _copy_rows(source: object, target: Tensor, param: Tensor, here: tuple[int, int], there: tuple[int, int]) -> None:
    """Copy what the file of rank `there` has of the rows of rank `here`; both are (rank, number of ranks)."""
    size = param.shape[0]
    first, behind = rows(size, *here)
    start, end = rows(size, *there)
    if tuple(source.get_shape()) != (end - start, *param.shape[1:]):  # type: ignore[attr-defined]
        raise RuntimeError(f"shape {source.get_shape()} does not belong to this model")  # type: ignore[attr-defined]
    low, high = max(first, start), min(behind, end)
    if low < high:
        target[low - first : high - first] = source[low - start : high - start]  # type: ignore[index]


def _tensors(optimizer: ShardedAdamW) -> list[tuple[str, str, Tensor]]:
    """(kind, name, rows of this rank), all writable in place."""
    weights = [("weight", name, shard.data) for name, shard in optimizer.shards.items()]
    return weights + [(kind, name, optimizer.moment(name, kind)) for kind in MOMENTS for name in optimizer.shards]


def _file(directory: Path, rank: int, num_ranks: int) -> Path:
    return directory / f"rank-{rank:05d}-of-{num_ranks:05d}.safetensors"
