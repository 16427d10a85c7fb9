"""Inside vLLM's worker: loads the shards of a spool, or what the trainer's rank 0 sends, into the running model.

    start_weight_update -> update_weights(path of a shard) *         -> finish_weight_update
                           update_weights(layouts of all tensors)

vLLM imports this module for `WorkerExtension` before it builds the weight-transfer engine, so importing registers the
backend. Weights go through vLLM's layerwise reload, which rebuilds what the kernels made of them (on CPU: packed
oneDNN handles). A fault between start and finish leaves layers without weights: the engine must not be used again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from common.errors import PublishError
from rolloutpipe_torch.rollout.lifetime import exit_with_owner

BACKEND = "rolloutpipe"


@dataclass
class GroupInit(WeightTransferInitInfo):
    """Where to meet rank 0, in the words of vLLM's own NCCL backend; None: nowhere, weights come as files."""

    group: dict[str, Any] | None = None


@dataclass
class Update(WeightTransferUpdateInfo):
    """One safetensors file (Hugging Face names, full shapes, any float dtype), or the layouts of all tensors that are sent."""

    path: str | None = None
    names: list[str] = field(default_factory=list)
    dtype_names: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)


class WeightReceiver(WeightTransferEngine[GroupInit, Update]):
    """Reads shards that the trainer has spooled to a file system both sides see, or receives with vLLM's NCCL engine."""

    init_info_cls = GroupInit
    update_info_cls = Update
    supports_draft_weight_update = False
    _nccl: Any = None

    def init_transfer_engine(self, init_info: GroupInit) -> None:
        """Leave the old group, if any, and join the one given."""
        self.shutdown()
        if init_info.group is not None:
            from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferInitInfo

            nccl: Any = NCCLWeightTransferEngine(self.config, self.vllm_config, self.device, self.model)
            nccl.init_transfer_engine(NCCLWeightTransferInitInfo(**init_info.group))
            self._nccl = nccl

    def start_weight_update(self) -> None:
        """From here to the end of `finish_weight_update` the model cannot run."""
        # Taken before the reload, which gives a tied head a parameter of its own for its duration.
        self._missing = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Update) -> None:
        """Load one shard, or all that is sent; a layer is rebuilt as soon as the last of its tensors is here."""
        if update_info.path is not None:
            self.load_weights(_tensors(update_info.path))
            return
        if self._nccl is None:
            raise PublishError("the engine is in no group with the trainer")
        from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo

        layouts = NCCLWeightTransferUpdateInfo(update_info.names, update_info.dtype_names, update_info.shapes)
        self._nccl.set_weight_update_target(self, self.model_config)  # it calls `load_weights` of what it takes for the model
        self._nccl.receive_weights(layouts)

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """As the model's own, and note which parameters were filled."""
        model: Any = self.model  # every vLLM model has `load_weights`, which names the parameters it filled
        self._missing -= model.load_weights(tensors) or set()

    def finish_weight_update(self) -> None:
        """Rebuild the rest; raises PublishError that names a parameter which no shard held."""
        # Quantized models have parameters that are computed, not loaded.
        if self._missing and self.model_config.quantization is None:
            raise PublishError(f"parameter {min(self._missing)} of the engine was in no shard ({len(self._missing)} missing)")
        finalize_layerwise_reload(self.model, self.model_config)
        rebind_tied_head(self.model)

    def shutdown(self) -> None:
        """Leave the group, if any."""
        if self._nccl is not None:
            self._nccl.shutdown()
            self._nccl = None


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as shard:
        for name in shard.keys():  # noqa: SIM118 (not a mapping)
            yield name, shard.get_tensor(name)


def rebind_tied_head(model: Any) -> None:
    """Give a tied `lm_head` the embedding's new weights, on CPU.

    There the head computes with a packed copy of its own, made when the model was first loaded. No tensor of a tied
    checkpoint is loaded *into* the head, so layerwise reload leaves that copy alone and the head would go on with the
    old weights, without any error.
    """
    if not current_platform.is_cpu() or not getattr(model.config, "tie_word_embeddings", False):
        return
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    embedding, head = model.model.embed_tokens, model.lm_head
    if head is not embedding:
        head.weight = embedding.weight
    dispatch_cpu_unquantized_gemm(head, remove_weight=False)


class WorkerExtension:
    """vLLM mixes this into its worker. Empty: naming it is what makes every worker import this module."""


# Several workers may live in one process, and vLLM refuses a second registration.
if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, WeightReceiver)
exit_with_owner()
