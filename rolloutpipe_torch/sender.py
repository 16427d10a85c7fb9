"""Rank 0's side of moving weights by NCCL: vLLM's own trainer engine, fed with this trainer's parameters.

    weight_group -> (meet -> join)? -> send

The engines' side is called by the driver, so the client that vLLM's engine would drive them with does nothing here. vLLM is
imported where it is needed: a rank on the CPU never does. Not run on GPUs by us; see docs/weights.md.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from common.spool import TensorLayout
from common.weight_routes import WIRE
from rolloutpipe_torch.parallelize import full


class WeightSender:
    """What a rank sends: `params` in the dtypes of `layout`, in order. Ranks other than 0 gather with it and send nothing."""

    def __init__(self, params: Mapping[str, Tensor], layout: Mapping[str, TensorLayout], rank: int) -> None:
        self._params, self._layout, self._rank = params, layout, rank
        self._engine: Any = None
        self._group = ""
        self._meeting: tuple[str, str, int, int] | None = None  # group, host, port, size, until `join`
        self.version: int | None = None  # exported from the present weights

    def weight_group(self, version: int, tensors: Sequence[tuple[str, str, list[int]]]) -> tuple[str, str]:
        """(the group it is in, what speaks against sending `tensors` as `version`); both may be empty."""
        if self.version != version:
            return self._group, f"the trainer holds other weights by now (it has exported version {self.version} of these)"
        mine = [(name, self._layout[name].dtype, list(param.shape)) for name, param in self._params.items()]
        for own, given in zip(mine, tensors, strict=False):
            if own != (given[0], given[1], list(given[2])):
                return self._group, f"the trainer sends {own}, where the spool has {tuple(given)}"
        if len(mine) != len(tensors):
            return self._group, f"the trainer sends {len(mine)} tensors, and the spool has {len(tensors)}"
        return self._group, ""

    def meet(self, group: str, host: str, world_size: int) -> tuple[str, int]:
        """Leave the old group, and choose where the new one meets: (host, port). On rank 0 alone."""
        self._leave()
        if self._rank != 0:
            return "", 0
        with socket.create_server((host, 0)) as free:  # vLLM binds it itself; a loser of that race fails the join, no more
            port: int = free.getsockname()[1]
        self._meeting = group, host, port, world_size
        return host, port

    def join(self) -> None:
        """Wait for the engines' workers, at most as long as vLLM does (5 minutes)."""
        group, host, port, world_size = self._meeting or ("", "", 0, 0)
        self._engine = make_engine(host, port, world_size, _source(self), self._rank)
        self._meeting, self._group = None, group

    def send(self) -> None:
        """Send all tensors. A collective over the ranks; returns when they have left."""
        self._engine.send_weights()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors, gathered one at a time."""
        for name, param in self._params.items():
            with torch.no_grad():
                yield name, full(param.detach()).to(getattr(torch, self._layout[name].dtype))

    def layouts(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """What `tensors` will yield."""
        return [(name, getattr(torch, self._layout[name].dtype), tuple(param.shape)) for name, param in self._params.items()]

    def _leave(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
        self._engine, self._group, self._meeting = None, "", None


class _NoClient:
    """The driver calls the engines."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


def make_engine(host: str, port: int, world_size: int, source: Any, rank: int) -> Any:
    """vLLM's trainer engine, in its group once this returns (rank 0), or without one."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine

    info = NCCLTrainerInitInfo(rank=rank, master_address=host, master_port=port, world_size=world_size, **WIRE)
    return NCCLTrainerWeightTransferEngine.trainer_init(info, client=_NoClient(), source=source)


def _source(sender: WeightSender) -> Any:
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Parameters(WeightSource):
        """The sender's tensors as vLLM asks for them."""

        def metadata(self) -> list[ParamMeta]:
            return [ParamMeta(*layout) for layout in sender.layouts()]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return sender.tensors()

    return Parameters()
