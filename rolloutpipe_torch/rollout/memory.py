"""What an engine needs on one of its devices, and what is left for keys and values. No vLLM is imported."""

from dataclasses import dataclass

from common.config import Config
from common.model_shape import ModelShape
from rolloutpipe_torch.rollout.engine import GPU_SHARE

# On a GPU: activations of the largest batch, logits, CUDA's context and graphs. An assumption, not measured by us.
RESERVE_BYTES = 2_000_000_000
_WIDTH = {"bfloat16": 2, "float32": 4}
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Bytes on one device of a replica."""

    weights: int
    reserve: int
    kv_cache: int  # what is left; below 0 where even the weights do not fit
    kv_token: int  # keys and values of one token

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values the cache holds."""
        return max(0, self.kv_cache) // self.kv_token


def engine_memory(config: Config, shape: ModelShape, gpu_bytes: float | None) -> EngineMemory:
    """On a GPU of so many bytes; None: on the CPU, where the cache has the size that is configured."""
    rollout = config.rollout
    width, tp = _WIDTH[rollout.dtype], rollout.tensor_parallel
    weights = -(-shape.num_params * width // tp)
    kv_token = 2 * width * shape.num_layers * -(-shape.num_kv_heads // tp) * shape.head_dim
    if gpu_bytes is None:
        return EngineMemory(weights=weights, reserve=0, kv_cache=rollout.kv_cache_gb * _GIB, kv_token=kv_token)
    share = float(rollout.engine_options.get("gpu_memory_utilization", GPU_SHARE))
    left = int(share * gpu_bytes) - weights - RESERVE_BYTES
    return EngineMemory(weights=weights, reserve=RESERVE_BYTES, kv_cache=left, kv_token=kv_token)
