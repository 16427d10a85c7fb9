"""AdamW over this rank's shards, gradient clipping, and the copy of a round's weights.

The optimizer sees plain tensors, the local rows of each parameter, which share memory with the sharded model. AdamW is
elementwise, so that is exact; it spares the cost of dispatching each operation on sharded tensors, six times the step of a
small model. Only the gradient norm needs the other ranks: one number.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from common.config import TrainingConfig
from rolloutpipe_torch.model import Policy
from rolloutpipe_torch.parallelize import local

MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedAdamW:
    """Steps `policy`. Gradients are sums until `step` divides them."""

    def __init__(self, policy: Policy, training: TrainingConfig) -> None:
        # Taken while nothing is gathered: these are the sharded parameters.
        self.params: dict[str, nn.Parameter] = {policy.hf_name(name): param for name, param in policy.named_parameters()}
        self.shards = {name: nn.Parameter(local(param.detach())) for name, param in self.params.items()}
        self._adamw = torch.optim.AdamW(
            self.shards.values(),
            lr=training.lr,
            betas=training.betas,
            eps=training.eps,
            weight_decay=training.weight_decay,
            fused=True,  # one pass over each tensor: three times as fast as foreach here
        )
        # AdamW makes its state at the first step; making it now means that saving and restoring know no special case.
        for shard in self.shards.values():
            moments = {moment: torch.zeros_like(shard) for moment in MOMENTS}
            self._adamw.state[shard] = {"step": torch.zeros((), device=shard.device), **moments}
        self._kept: list[Tensor] | None = None
        self.has_left_kept = False  # there is a copy, and a step was made since

    def zero_grad(self) -> None:
        """Forget the gradient sums."""
        for param in self.params.values():
            param.grad = None

    def step(self, lr: float, denominator: float, max_norm: float | None) -> float:
        """Divide the sums by `denominator`, clip to `max_norm`, step. Returns the norm before clipping.

        A norm that is not finite steps nothing: the caller must look at it. Clears the gradients.
        """
        for name, param in self.params.items():
            self.shards[name].grad = torch.zeros_like(self.shards[name]) if param.grad is None else local(param.grad)
        gradients = [shard.grad for shard in self.shards.values() if shard.grad is not None]
        norm = _global_norm(gradients) / denominator
        if torch.isfinite(norm):
            clip = 1.0 if max_norm is None else min(1.0, max_norm / (norm.item() + 1e-6))
            torch._foreach_mul_(gradients, clip / denominator)
            for group in self._adamw.param_groups:
                group["lr"] = lr
            self._adamw.step()
            self.has_left_kept = self._kept is not None
        for shard in self.shards.values():
            shard.grad = None
        self.zero_grad()
        return norm.item()

    def moment(self, name: str, moment: str) -> Tensor:
        """This rank's rows of a moment, to read or to write in place."""
        values: Tensor = self._adamw.state[self.shards[name]][moment]
        return values

    def resume(self, num_steps: int) -> None:
        """Continue after `num_steps` steps, which enter AdamW's bias correction; weights and moments were just filled."""
        self._kept, self.has_left_kept = None, False
        for shard in self.shards.values():
            self._adamw.state[shard]["step"].fill_(num_steps)

    @torch.no_grad()
    def keep(self) -> None:
        """Copy the weights as they are now."""
        if self._kept is None:
            self._kept = [torch.empty_like(shard) for shard in self.shards.values()]
        torch._foreach_copy_(self._kept, list(self.shards.values()))
        self.has_left_kept = False

    @contextmanager
    def kept_weights(self, reshard: Callable[[], None]) -> Iterator[None]:
        """The model with the copied weights in place of its own. `reshard` drops what it has gathered."""
        self._swap()
        try:
            yield
        finally:
            reshard()
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        assert self._kept is not None, "keep() comes before kept_weights()"
        for shard, kept in zip(self.shards.values(), self._kept, strict=True):
            own = shard.clone()  # one tensor at a time, so no third copy of the model
            shard.copy_(kept)
            kept.copy_(own)


def _global_norm(gradients: list[Tensor]) -> Tensor:
    """Over all ranks, in float64: a float32 sum of squares would overflow first and round with the number of ranks."""
    square = torch.stack(torch._foreach_norm(gradients)).double().square().sum()
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(square)
    return square.sqrt()
