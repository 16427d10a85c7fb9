"""Sharding, precision and activation checkpointing, outside the model.

One mesh axis: every rank holds an equal share of each parameter's rows and gathers a layer when it computes it (FSDP2).
"""

from functools import partial

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rolloutpipe_torch.model import Policy


def parallelize(policy: Policy, mesh: DeviceMesh, *, dtype: torch.dtype, checkpoint_activations: bool) -> Policy:
    """Shard `policy` over `mesh` in place, to compute in `dtype` with float32 reductions.

    One rank that computes in float32 is left whole: gathering from itself would cost a second copy of the weights, and
    12 % of the time of a small model (docs/decisions/0003-trainer.md). Gradients come out as sums over ranks.
    """
    if checkpoint_activations:
        _checkpoint_activations(policy)
    if mesh.size() == 1 and dtype == torch.float32:
        return policy.to(mesh.device_type)
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    # Layers first, so that the root takes what is left: embeddings, the last norm and the head, which stay gathered between
    # forward and backward because the head is needed first again.
    for module in [*decoder_layers(policy), policy]:
        fully_shard(module, mesh=mesh, mp_policy=precision)
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)  # sums, not means: the one division is the loss's
        module.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM
    return policy


def decoder_layers(policy: Policy) -> list[GradientCheckpointingLayer]:
    """The repeated blocks, in order."""
    return [module for module in policy.body.modules() if isinstance(module, GradientCheckpointingLayer)]


def _checkpoint_activations(policy: Policy) -> None:
    for layer in decoder_layers(policy):
        layer.gradient_checkpointing = True
        vars(layer)["_gradient_checkpointing_func"] = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        # The layer looks at its own flag; its parts stay in evaluation mode, so dropout stays off.
        layer.training = True


def reshard(policy: Policy) -> None:
    """Drop gathered weights after a forward pass without backward.

    The root would keep them, and compute with stale values once the shards have changed.
    """
    if isinstance(policy, FSDPModule):
        policy.reshard()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's share of a parameter or gradient: rows of dimension 0, sharing memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor. A collective: every rank must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
