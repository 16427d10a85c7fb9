"""Driver side of the rollout pool: fits it into memory, starts the replicas, and speaks to each through `RemoteEngine`.

`start_pool` starts them all and returns with the first few; `start_engine` starts one, also in place of one that has died.
"""

import asyncio
import importlib.util
import itertools
import os
import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import psutil
import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from common.config import Config
from common.errors import ConfigError, DuplicateRequestError, EngineDiedError, EngineError, RolloutPipeError, explain
from common.pool import Pool
from common.protocols import Health
from common.records import FinishReason, Request, Response, Sampling
from common.spool import model_layout
from common.weight_routes import Tensor, choose_route
from rolloutpipe_torch.placing import Placing
from rolloutpipe_torch.rollout.engine import UNSET, EngineSettings, VllmEngine, one_line
from rolloutpipe_torch.room import has_gpus

Result = TypeVar("Result")

ENGINE_CLASS: type = VllmEngine  # of the actors
_SAMPLING = ("temperature", "max_tokens", "top_p", "top_k", "min_p", "stop_token_ids")  # named alike by vLLM
_GIB = 2**30
_PROCESS_BYTES = int(1.5 * _GIB)  # actor and EngineCore without model and cache, measured
_BYTES_PER_ELEMENT = {"float32": 4, "bfloat16": 2}
_HEALTH_TIMEOUT_S = 1.0
_CLOSE_TIMEOUT_S = 15.0


class RemoteEngine:
    """One replica, as an `Engine`. `pid` is the actor's process."""

    def __init__(self, name: str, actor: Any, capacity: int, num_workers: int = 1) -> None:
        self.name = name
        self._num_workers = num_workers
        self.pid = 0
        self.actor = actor
        self._capacity = capacity
        self._keys: dict[Hashable, str] = {}  # request id -> vLLM's id, while in flight
        self._numbers = itertools.count()
        self._last = Health(name=name, is_alive=True, weight_version=UNSET, num_running=0)

    @property
    def capacity(self) -> int:
        """Requests decoded together."""
        return self._capacity

    @property
    def is_recovering(self) -> bool:
        """A dead engine stays dead; another takes its place in the pool."""
        return False

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Its capacity never changes."""
        return lambda: None

    def place(self, request: Request) -> int:
        """There is one replica."""
        return 0

    async def generate(self, request: Request, sampling: Sampling) -> Response:
        """As `Engine.generate`; where the caller gives up waiting, the engine stops too."""
        if request.request_id in self._keys:
            raise DuplicateRequestError(
                explain("request_id", "must not be in flight already", request.request_id, "wait for its response first")
            )
        # A number of our own: a request that is sampled again must not meet what is left of its first try.
        key = self._keys[request.request_id] = str(next(self._numbers))
        wire = {name: getattr(sampling, name) for name in _SAMPLING}
        try:
            reference = self.actor.generate.remote(key, request.prompt_ids, request.seed, request.order, wire)
            token_ids, logprobs, reason, start, end = await self._answer(reference)
        except asyncio.CancelledError:
            self.actor.abort.remote([key])
            raise
        finally:
            del self._keys[request.request_id]
        return Response(
            request_id=request.request_id,
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs),
            finish_reason=FinishReason(reason),
            version_start=start,
            version_end=end,
        )

    async def abort(self, request_ids: Iterable[Hashable]) -> None:
        """As `Engine.abort`."""
        keys = [self._keys[request_id] for request_id in request_ids if request_id in self._keys]
        if keys:
            await self._answer(self.actor.abort.remote(keys))

    async def publish(self, version: int, spool: Path) -> None:
        """As `Engine.publish`."""
        await self._answer(self.actor.publish.remote(version, str(spool)))

    @property
    def num_workers(self) -> int:
        """Processes that hold its weights."""
        return self._num_workers

    async def join_group(self, init_info: Mapping[str, Any], timeout_s: float) -> None:
        """As `common.weight_routes.Receiver`."""
        await self._answer(self.actor.join_group.remote(dict(init_info), timeout_s))

    async def receive(self, version: int, tensors: Sequence[Tensor], timeout_s: float) -> None:
        """Likewise."""
        await self._answer(self.actor.receive.remote(version, list(tensors), timeout_s))

    def condemn(self, reason: str) -> None:
        """Likewise; sent, not waited for."""
        self.actor.condemn.remote(reason)

    async def health(self) -> list[Health]:
        """What the actor says; where it is only slow, its last state with a remark."""
        try:
            async with asyncio.timeout(_HEALTH_TIMEOUT_S):
                is_alive, version, num_running, detail = await self._answer(self.actor.health.remote())
        except TimeoutError:
            # Slow is not dead: a busy machine must not end a run.
            return [replace(self._last, detail=self._last.detail or f"no answer within {_HEALTH_TIMEOUT_S:g} s")]
        except EngineError as error:
            is_alive, version, num_running, detail = False, self._last.weight_version, 0, str(error)
        self._last = Health(name=self.name, is_alive=is_alive, weight_version=version, num_running=num_running, detail=detail)
        return [self._last]

    async def watch(self) -> None:
        """Never returns. Raises EngineDiedError when the actor, or its EngineCore, has died: at once, without asking."""
        await self._answer(self.actor.alive.remote())
        raise EngineDiedError(f"{self.name} is closed")

    async def beat(self) -> None:
        """Return when the EngineCore has answered, however long that takes. Raises EngineDiedError."""
        await self._answer(self.actor.beat.remote())

    async def close(self) -> None:
        """Let the engine shut down, then end its process in any case, also where the caller does not wait."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._answer(self.actor.close.remote())
        except (TimeoutError, EngineError):
            pass  # dead or stuck: the process is ended below either way
        finally:
            ray.kill(self.actor)

    async def _answer(self, reference: Awaitable[Result]) -> Result:
        try:
            return await reference
        except RayError as error:
            raise self.translate(error) from error

    def translate(self, error: RayError) -> RolloutPipeError:
        """One line for people instead of Ray's report, which carries the remote traceback."""
        if isinstance(error, RayTaskError):
            cause = error.cause
            return (
                type(cause)(str(cause)) if isinstance(cause, RolloutPipeError) else EngineError(f"{self.name}: {one_line(cause)}")
            )
        if isinstance(error, ActorUnavailableError):  # what Ray says until it knows
            return EngineDiedError(f"{self.name}: its process has died, or cannot be reached")
        lines = str(error).strip().splitlines() or [type(error).__name__]
        # Where the actor could not even be made, the first line is Ray's and the last one is the cause.
        return EngineDiedError(f"{self.name}: {lines[-1] if 'creation task' in lines[0] else lines[0]}")


async def start_pool(
    config: Config,
    model_dir: Path,
    log_dir: Path,
    max_model_len: int,
    *,
    min_replicas: int | None = None,
    placing: Placing | None = None,
) -> Pool:
    """Start all replicas at the same time, where `placing` says; Ray must run (`cluster.start_ray`).

    The others are then the pool's `pending`. Returns when `min_replicas` (None: all) have started. Raises ConfigError where
    they do not fit into memory, and EngineError where one of them fails or `limits.start_timeout_s` passes; then, and where
    the call is cancelled, none is left.
    """
    check_room(config, model_dir)
    placing = placing or Placing(config, ["rollout"])
    starts = {
        asyncio.create_task(start_engine(config, index, model_dir, log_dir, max_model_len, placing)): index
        for index in range(config.rollout.replicas)
    }
    try:
        done: set[asyncio.Task[RemoteEngine]] = set()
        while len(done) < (min_replicas or len(starts)):
            more, _ = await asyncio.wait(starts.keys() - done, return_when=asyncio.FIRST_COMPLETED)
            done |= more
            for task in more:
                task.result()
    except BaseException:
        for task in starts:
            task.cancel()
        for engine in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(engine, RemoteEngine):
                ray.kill(engine.actor)
        raise
    pool = Pool({starts[task]: task.result() for task in sorted(done, key=lambda task: starts[task])})
    pool.pending = {index: task for task, index in starts.items() if task not in done}
    return pool


async def start_engine(
    config: Config, index: int, model_dir: Path, log_dir: Path, max_model_len: int, placing: Placing
) -> RemoteEngine:
    """A new process for the pool's place `index`, with random weights. Raises EngineError; it has then ended."""
    log_dir.mkdir(parents=True, exist_ok=True)
    settings = _settings(config, f"engine-{index}", model_dir, log_dir, max_model_len, placing.on_gpu("rollout"))
    engine = _start_actor(settings, placing.engine_options(index))
    timeout_s = config.limits.start_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            await _start(engine, log_dir)
    except BaseException as error:
        ray.kill(engine.actor)
        if isinstance(error, TimeoutError):
            text = f"{engine.name}: not started within limits.start_timeout_s = {timeout_s:g} s, see {log_dir}"
            raise EngineError(text) from error
        raise
    return engine


def check_room(config: Config, model_dir: Path | None = None) -> None:
    """Raises ConfigError where the replicas' memory exceeds what this machine has available; not asked of a cluster.

    The model counts where its directory is known. With GPUs, weights and cache live
    there and vLLM checks them itself.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(explain("rollout", "needs vLLM, which is not installed", None, "see `rolloutpipe doctor`"))
    if not config.cluster.is_local:
        return  # `placing` asks the nodes
    rollout = config.rollout
    on_gpu = has_gpus()
    choose_route(config, trainer_has_gpus=on_gpu, engines_have_gpus=on_gpu)
    cores = len(os.sched_getaffinity(0))
    if not on_gpu and rollout.threads > cores:
        raise ConfigError(explain("rollout.threads", f"must be at most the {cores} cores", rollout.threads, f"use {cores}"))
    model_bytes = 0 if on_gpu or model_dir is None else _model_bytes(model_dir, rollout.dtype)
    each = _PROCESS_BYTES + model_bytes + (0 if on_gpu else rollout.kv_cache_gb * _GIB)
    available = psutil.virtual_memory().available
    if rollout.replicas * each > available:
        rule = f"must fit into the {available / _GIB:.1f} GiB of memory available, at {each / _GIB:.1f} GiB each"
        fits = max(available // each, 0)
        remedy = f"use at most {fits}" if fits else "lower rollout.kv_cache_gb, or take a machine with more memory"
        raise ConfigError(explain("rollout.replicas", rule, rollout.replicas, remedy))


def _model_bytes(model_dir: Path, dtype: str) -> int:
    elements = 0
    for tensor in model_layout(model_dir).values():
        size = 1
        for length in tensor.shape:
            size *= length
        elements += size
    return elements * _BYTES_PER_ELEMENT[dtype]


def _settings(config: Config, name: str, model_dir: Path, log_dir: Path, max_model_len: int, on_gpu: bool) -> EngineSettings:
    rollout = config.rollout
    return EngineSettings(
        name=name,
        model_dir=str(model_dir.resolve()),
        log_file=str((log_dir / f"{name}.log").resolve()),
        on_gpu=on_gpu,
        capacity=rollout.capacity,
        dtype=rollout.dtype,
        max_model_len=max_model_len,
        threads=rollout.threads,
        kv_cache_gb=rollout.kv_cache_gb,
        tensor_parallel=rollout.tensor_parallel,
        publish_timeout_s=config.limits.publish_timeout_s,
        is_local=config.cluster.is_local,
        options=rollout.engine_options,
    )


def _start_actor(settings: EngineSettings, place: dict[str, Any]) -> RemoteEngine:
    options = {
        **place,
        "max_concurrency": 2 * settings.capacity + 16,  # aborts and health must get through a full engine
        "max_restarts": 0,  # a new process would serve random weights
    }
    actor: Any = ray.remote(ENGINE_CLASS).options(**options).remote(settings)
    return RemoteEngine(settings.name, actor, settings.capacity, settings.tensor_parallel)


async def _start(engine: RemoteEngine, log_dir: Path) -> None:
    try:
        engine.pid = await engine.actor.start.remote()
    except RayError as error:
        log = log_dir / f"{engine.name}.log"
        raise EngineError(f"{_first_error(log) or engine.translate(error)}; see {log}") from error


def _first_error(log: Path) -> str:
    # vLLM reports only that its EngineCore failed to start; the reason is what that process logged first.
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    found = re.search(r"\b\w+(?:Error|Exception): .+", text)
    return f"{log.stem}: {found.group()}" if found else ""
