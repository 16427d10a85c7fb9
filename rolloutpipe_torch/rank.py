"""One rank of the trainer: in a Ray actor (`common.ranks`), or a plain object in a test.

    listen (rank 0) -> join -> (accumulate* -> finish_update | abort_update)* ...

Ranks decide nothing: what to compute, the denominator and the learning rate come from the driver, the same for all. Every
method but `listen`, `abort_update` and `saved` is a collective, so all ranks get the same calls in the same order. Shares of
micro-batches come in a list, as a process may drive several ranks; here it drives one.
"""

import os
import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh

from common.batching import Row
from common.config import Config
from common.grpo import LossRules
from common.network import LOOPBACK, check_listen, interface_of
from common.spool import model_layout
from rolloutpipe_torch.batch import Batch, to_batch
from rolloutpipe_torch.checkpoint import load_shard, save_shard
from rolloutpipe_torch.loss import Sums, TokenLogprobs, add_sums, loss_sum
from rolloutpipe_torch.model import Policy, load_policy
from rolloutpipe_torch.optimizer import ShardedAdamW
from rolloutpipe_torch.parallelize import full, parallelize, reshard
from rolloutpipe_torch.sender import WeightSender
from rolloutpipe_torch.weights import export_weights

MicroBatches = list[list[Row]]  # an empty one is a pass of weight zero


class TrainerRank:
    """Holds a share of weights, moments and gradient sums."""

    def __init__(self, config: Config, model_dir: Path, rank: int, num_ranks: int) -> None:
        self._config, self._model_dir = config, model_dir
        self._rank, self._num_ranks = rank, num_ranks
        self._rules = LossRules.from_config(config)
        self._sums: Sums = {}
        self._cpu_mark_s = time.process_time()

    def listen(self, address: str = LOOPBACK) -> int:
        """Open the meeting point of the ranks on an address of this node and return its port, which the system chooses.

        The socket is bound here and handed over, so no other process can take the port in between. Raises ConfigError where
        other machines reach the address and the configuration does not ask for that.
        """
        check_listen(self._config.cluster, address)
        server = socket.create_server((address, 0))
        port: int = server.getsockname()[1]
        self._store = TCPStore(
            address, port, self._num_ranks, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
        )
        return port

    def join(self, port: int, host: str = LOOPBACK, address: str = LOOPBACK) -> None:
        """Meet the other ranks at `host` and load the model; `address` is the one of this node that they talk to.

        Raises DataError for a model that cannot be loaded, ConfigError as `listen`.
        """
        check_listen(self._config.cluster, address)
        self._address = address
        training = self._config.training
        # Both would choose for themselves, and listen where nobody asked them to.
        os.environ["GLOO_SOCKET_IFNAME"] = interface_of(address)
        os.environ["NCCL_SOCKET_IFNAME"] = f"={interface_of(address)}"
        self._set_up_torch(training.threads)
        store = self._store if self._rank == 0 else TCPStore(host, port, self._num_ranks, is_master=False)
        dist.init_process_group(
            "nccl" if self._device.type == "cuda" else "gloo",
            store=store,
            rank=self._rank,
            world_size=self._num_ranks,
            timeout=timedelta(seconds=self._config.limits.update_timeout_s),
        )
        self._mesh = init_device_mesh(self._device.type, (self._num_ranks,))
        self._layout = model_layout(self._model_dir)
        self._policy = self._load()
        self._optimizer = ShardedAdamW(self._policy, training)
        self._sender = WeightSender(self._optimizer.params, self._layout, self._rank)
        # Frozen, but in float32 as the policy, so that both round alike and the penalty starts at exactly 0.
        self._reference = self._load().requires_grad_(False) if training.kl is not None else None

    def _set_up_torch(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        if torch.cuda.is_available():
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what deterministic matrix products need
            torch.cuda.set_device(0)  # Ray shows each actor its own GPU only
            self._device = torch.device("cuda", 0)
        else:
            self._device = torch.device("cpu")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a debugging aid that costs a pass over each tensor

    def _load(self) -> Policy:
        training = self._config.training
        dtype = getattr(torch, training.dtype)
        policy = load_policy(self._model_dir)
        return parallelize(policy, self._mesh, dtype=dtype, checkpoint_activations=training.activation_checkpointing)

    def keep_round_weights(self) -> None:
        """Copy the weights as the round's."""
        self._optimizer.keep()

    def accumulate(self, shares: list[MicroBatches]) -> None:
        """Add the gradient sums of this rank's micro-batches; each backward pass reduces over ranks."""
        (micro_batches,) = shares
        batches = [to_batch(rows, self._device) for rows in micro_batches]
        olds = self._old_logprobs(batches)
        for batch, old in zip(batches, olds, strict=True):
            ref = None
            if self._rules.kl_kind is not None:
                assert self._reference is not None
                ref = self._score(self._reference, batch)
            logprobs, entropies = self._forward(self._policy, batch, self._config.sampling.temperature)
            loss, sums = loss_sum(batch, TokenLogprobs(batch.padded(logprobs), old, ref), self._rules)
            loss.backward()
            sums["entropy_sum"] = entropies.sum().double() * batch.is_real[0]
            add_sums(self._sums, sums)

    def _old_logprobs(self, batches: list[Batch]) -> list[Tensor | None]:
        """[B, T] under the round's weights; None where those are the current ones, or where the sampler is the old policy."""
        if self._rules.importance_cap is None or not self._optimizer.has_left_kept:
            return [None] * len(batches)
        with self._optimizer.kept_weights(lambda: reshard(self._policy)):
            return [self._score(self._policy, batch) for batch in batches]

    def _score(self, policy: Policy, batch: Batch, temperature: float | None = None) -> Tensor:
        """Log-probs [B, T] without gradient, at the sampling temperature unless another is given."""
        with torch.no_grad():
            logprobs, _ = self._forward(policy, batch, temperature or self._config.sampling.temperature)
            reshard(policy)
            return batch.padded(logprobs)

    def _forward(self, policy: Policy, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = policy(batch.input_ids, batch.positions, batch.targets, temperature)
        return result

    def finish_update(self, denominator: float, lr: float) -> tuple[float, dict[str, float]]:
        """Step, unless the denominator is 0. Returns the gradient norm before clipping and this rank's sums."""
        sums = {name: value.item() for name, value in self._sums.items()}
        self._sums = {}
        if denominator == 0:
            self._optimizer.zero_grad()
            grad_norm = 0.0
        else:
            self._sender.version = None  # of other weights from now on
            grad_norm = self._optimizer.step(lr, denominator, self._config.training.max_grad_norm)
        now_s = time.process_time()
        sums["cpu_s"], self._cpu_mark_s = now_s - self._cpu_mark_s, now_s
        return grad_norm, sums

    def abort_update(self) -> None:
        """Forget the open update."""
        self._sums = {}
        self._optimizer.zero_grad()

    def logprobs(
        self, shares: list[MicroBatches], temperature: float, model: Literal["policy", "reference"] = "policy"
    ) -> list[list[list[list[float]]]]:
        """Log-probs of each row's response tokens, by share and micro-batch."""
        (micro_batches,) = shares
        policy = self._policy if model == "policy" else self._reference
        assert policy is not None, "the reference is loaded where training.kl is set"
        scored = []
        for rows in micro_batches:
            values = self._score(policy, to_batch(rows, self._device), temperature)
            scored.append([values[index, : len(row.response_ids)].tolist() for index, row in enumerate(rows)])
        return [scored]

    def export_weights(self, spool: Path, version: int) -> None:
        """Stream the weights into `spool`; rank 0 writes."""
        export_weights(spool, version, self._optimizer.params, self._layout, self._rank)
        self._sender.version = version

    def weight_group(self, version: int, tensors: Sequence[tuple[str, str, list[int]]]) -> tuple[str, str]:
        """As `WeightSender.weight_group`."""
        return self._sender.weight_group(version, tensors)

    def meet_engines(self, group: str, world_size: int) -> tuple[str, int]:
        """Where rank 0 and the engines' workers will meet: (host, port)."""
        return self._sender.meet(group, self._address, world_size)

    def join_engines(self) -> None:
        """Meet them. In the background: where one does not come, the ranks go on."""
        self._sender.join()

    def send_weights(self) -> None:
        """Send the weights to the engines that rank 0 has met."""
        self._sender.send()

    def save(self, directory: Path) -> None:
        """Write this rank's share into `directory`."""
        save_shard(directory, self._optimizer, self._rank, self._num_ranks)

    def saved(self) -> None:
        """Wait for the last save; nothing to wait for, as `save` returns when its file is written."""

    def restore(self, directory: Path, saved_ranks: int, num_steps: int) -> None:
        """Read this rank's share, whoever wrote it."""
        load_shard(directory, self._optimizer, self._rank, self._num_ranks, saved_ranks)
        self._optimizer.resume(num_steps)
        self._sender.version = None
        self.abort_update()

    def gradients(self) -> dict[str, np.ndarray]:
        """The gradient sums of the open update, undivided, whole tensors by name: for tests, and for comparing trainers."""
        return {name: _to_numpy(param.grad) for name, param in self._optimizer.params.items() if param.grad is not None}

    def weights(self) -> dict[str, np.ndarray]:
        """The float32 weights that the optimizer steps, likewise."""
        return {name: _to_numpy(param.detach()) for name, param in self._optimizer.params.items()}

    def close(self) -> None:
        """Leave the process group; for a rank that shares its process with others after it."""
        dist.destroy_process_group()


def _to_numpy(tensor: Tensor) -> np.ndarray:
    """A copy of the whole tensor. A collective."""
    return full(tensor).cpu().numpy().copy()
