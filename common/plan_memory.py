"""Memory per device of both pools, and whether it fits: what `train --dry-run` shows before there is a GPU.

The models of what is needed stand beside the code that needs it: `memory` of the trainer's room, and
`rolloutpipe_torch.rollout.memory`. What a device has is declared in `cluster`, or seen on this machine.
"""

import importlib
from dataclasses import dataclass
from typing import Any

from common.config import Config
from common.config_cluster import PlaceConfig
from common.errors import ConfigError, explain
from common.model_shape import ModelShape
from common.plan_given import Given
from common.prepare import room_of

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The devices of one side."""

    needed: int  # devices
    declared: int | None  # GPUs of `cluster`
    device: str  # for people
    device_bytes: float | None  # of one; None: not known, or the memory of this machine
    place: str  # which nodes, for people
    parts: dict[str, int]  # bytes on one device at the peak; empty where the architecture is not modelled

    @property
    def total(self) -> int:
        """Bytes on one device."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Both pools. `kv_token` and so on are of one device of a replica."""

    rollout: Pool
    trainer: Pool
    kv_token_bytes: int
    kv_tokens: int  # that the cache of a replica holds
    full_requests: int  # of the longest prompt and response, at the same time


def is_declared(config: Config) -> bool:
    """Whether the run's GPUs are those of `cluster`, not of this machine."""
    return any(
        place.gpus is not None or place.gpu_memory_gb is not None for place in (config.cluster.rollout, config.cluster.trainer)
    )


def plan_memory(config: Config, given: Given) -> Memory:
    """Raises ConfigError where the devices are too few, or too small."""
    check_counts(config)
    has_gpus = is_declared(config) or importlib.import_module("rolloutpipe_torch.room").has_gpus()
    trainer, place, shape = _trainer(config, given, has_gpus), config.cluster.rollout, given.shape
    parts: dict[str, int] = {}
    kv_token = kv_tokens = 0
    if shape is not None:
        _check_heads(config, shape)
        room = importlib.import_module("rolloutpipe_torch.rollout.memory")
        engine = room.engine_memory(config, shape, _device_bytes(place) if has_gpus else None)
        parts, kv_token = {"weights": engine.weights, "reserve": engine.reserve}, engine.kv_token
        if not has_gpus or place.gpu_memory_gb is not None:  # else the cache is what vLLM finds free
            kv_tokens = engine.kv_tokens
            if kv_tokens < given.max_model_len:
                raise _too_small_cache(config, given, engine, has_gpus)
            parts["kv_cache"] = engine.kv_cache
    needed = config.rollout.replicas * config.rollout.tensor_parallel
    return Memory(
        rollout=_pool(place, has_gpus, needed, parts),
        trainer=trainer,
        kv_token_bytes=kv_token,
        kv_tokens=kv_tokens,
        full_requests=kv_tokens // given.max_model_len,
    )


def check_counts(config: Config) -> None:
    """Raises ConfigError where `cluster` declares fewer GPUs than the run needs."""
    rollout, gpus = config.rollout, config.cluster.rollout.gpus
    if gpus is not None and rollout.replicas * rollout.tensor_parallel > gpus:
        tp = rollout.tensor_parallel
        rule = f"must fit the {gpus} GPUs of cluster.rollout, at rollout.tensor_parallel = {tp} for each"
        fits = gpus // tp
        remedy = f"use {fits}, or declare {rollout.replicas * tp} GPUs" if fits else f"use rollout.tensor_parallel={gpus} or less"
        raise ConfigError(explain("rollout.replicas", rule, rollout.replicas, remedy))
    gpus, ranks = config.cluster.trainer.gpus, config.training.ranks
    if gpus is not None and ranks > gpus:
        rule = f"must be at most the {gpus} GPUs of cluster.trainer"
        raise ConfigError(explain("training.ranks", rule, ranks, f"use {gpus}, or declare {ranks} GPUs"))


def _check_heads(config: Config, shape: ModelShape) -> None:
    """As vLLM: heads are shared out evenly."""
    tp = config.rollout.tensor_parallel
    if shape.num_heads % tp:
        rule = f"must divide the model's {shape.num_heads} heads"
        raise ConfigError(explain("rollout.tensor_parallel", rule, tp, "use a divisor, such as 1 or 2"))


def _trainer(config: Config, given: Given, has_gpus: bool) -> Pool:
    place, parts = config.cluster.trainer, {}
    if given.shape is not None:
        parts = _trainer_parts(config, given.shape, has_gpus)
    pool = _pool(place, has_gpus, config.training.ranks, parts)
    if pool.device_bytes is not None and pool.total > pool.device_bytes and given.shape is not None:
        rule = f"must hold the {pool.total / GB:.1f} GB that a rank needs at its peak ({in_words(parts)})"
        remedy = _remedy(config, given, given.shape, pool.device_bytes)
        raise ConfigError(explain("cluster.trainer.gpu_memory_gb", rule, place.gpu_memory_gb, remedy))
    return pool


def _trainer_parts(config: Config, shape: ModelShape, has_gpus: bool) -> dict[str, int]:
    room = room_of(config, "memory")
    parts: dict[str, int] = room.device_parts(config, shape, config.training.micro_batch_tokens)
    return {**parts, "reserve": room.RESERVE_BYTES if has_gpus else 0}


def _remedy(config: Config, given: Given, shape: ModelShape, device_bytes: float) -> str:
    """The first change that makes it fit, by the model."""
    training = config.training
    changes: list[dict[str, Any]] = [{"activation_checkpointing": True}] if not training.activation_checkpointing else []
    base = changes[0] if changes else {}
    if given.max_model_len < training.micro_batch_tokens:
        changes.append({**base, "micro_batch_tokens": given.max_model_len})
    changes += [{**base, "ranks": training.ranks * factor} for factor in (2, 4, 8, 16)]
    for change in changes:
        changed = config.model_copy(update={"training": training.model_copy(update=change)})
        if sum(_trainer_parts(changed, shape, True).values()) <= device_bytes:
            told = " ".join(f"training.{name}={str(value).lower()}" for name, value in change.items())
            return f"set {told}" + (", on as many GPUs" if "ranks" in change else "")
    return "take larger GPUs, shorter sequences or a smaller model"


def _too_small_cache(config: Config, given: Given, engine: Any, has_gpus: bool) -> ConfigError:
    needed = given.max_model_len * engine.kv_token / GB
    rule = f"must leave a cache for one request of {given.max_model_len} tokens ({needed:.2f} GB)"
    left = f"it leaves {engine.kv_cache / GB:.2f} GB beside {engine.weights / GB:.2f} GB of weights"
    shorter = "lower sampling.max_tokens"
    if has_gpus:
        more = f"raise rollout.tensor_parallel, take larger GPUs, or {shorter}"
        value = config.cluster.rollout.gpu_memory_gb
        return ConfigError(explain("cluster.rollout.gpu_memory_gb", f"{rule}; {left}", value, more))
    return ConfigError(explain("rollout.kv_cache_gb", rule, config.rollout.kv_cache_gb, f"raise it, or {shorter}"))


def _pool(place: PlaceConfig, has_gpus: bool, needed: int, parts: dict[str, int]) -> Pool:
    nodes = [f"label {name}={value}" for name, value in place.labels.items()]
    nodes += [f"resource {place.resource}"] if place.resource is not None else []
    return Pool(
        needed=needed,
        declared=place.gpus,
        device=(place.gpu_name or "GPU") if has_gpus else "CPU",
        device_bytes=_device_bytes(place) if has_gpus else None,
        place=" and ".join(nodes) or "any",
        parts={name: size for name, size in parts.items() if size},
    )


def _device_bytes(place: PlaceConfig) -> float | None:
    return None if place.gpu_memory_gb is None else place.gpu_memory_gb * GB


def in_words(parts: dict[str, int]) -> str:
    """`parameters 0.86, gradients 0.86 ... GB`."""
    unit, name = (GB, "GB") if sum(parts.values()) >= GB else (GB / 1000, "MB")
    return ", ".join(f"{part.replace('_', ' ')} {size / unit:.2f}" for part, size in parts.items() if size) + f" {name}"
