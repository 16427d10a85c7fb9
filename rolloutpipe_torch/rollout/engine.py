"""One rollout engine: a Ray actor around vLLM's AsyncLLM, which runs its EngineCore in a child process.

    start -> publish(0) -> generate* -> publish(1) -> generate* -> ... -> close

The engine starts on random weights with version UNSET and refuses to sample until version 0 is published, so a
publish that loads nothing cannot pass for one that loaded everything. After a failure in the middle of a publish the
model is half old, half new: the engine is then dead for good, says why in `health`, and raises at every later call.

Only plain values cross the actor's border. This module imports vLLM inside `start` alone: its environment must be set first.
"""

import asyncio
import faulthandler
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import DataError, EngineDiedError, EngineError, PublishError, explain
from common.safe_files import read_json
from common.spool import spool_files
from rolloutpipe_torch.rollout.lifetime import own_children

UNSET = -1  # weight version before the first publish
GPU_SHARE = 0.85  # of a GPU's memory, for weights, cache and all else of an engine

# (token ids, log-probs, vLLM's finish reason, weight version of the first and of the last token)
Output = tuple[list[int], list[float], str, int, int]
Phases = list[tuple[str, Callable[[], Awaitable[Any]]]]

_RESUME_TIMEOUT_S = 5.0
_LOOK_S = 0.1
_ABORT_TRIES, _ABORT_PAUSE_S = 100, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What one replica is started with."""

    name: str
    model_dir: str
    log_file: str  # receives stdout and stderr of the actor and of its children
    on_gpu: bool
    capacity: int  # requests decoded together
    dtype: str  # float32 or bfloat16
    max_model_len: int  # prompt and response tokens
    threads: int  # CPU threads that compute; CPU only
    kv_cache_gb: int  # CPU only
    tensor_parallel: int
    publish_timeout_s: float
    is_local: bool = True  # nothing of the run is on another machine
    options: dict[str, Any] = field(default_factory=dict)  # further AsyncEngineArgs; they win


class VllmEngine:
    """Serves one weight version at a time; every method but `start` and `close` raises EngineDiedError once it is dead."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._llm: Any = None
        self._version = UNSET
        self._running: set[str] = set()
        self._fault = "it has not been started"
        self._is_loading = False  # its EngineCore waits for weights, and answers nothing else
        self._stop_token_ids: list[int] = []

    async def start(self) -> int:
        """Load the engine with random weights; returns the actor's process id. Blocks this actor while it starts."""
        redirect_output(self._settings.log_file)
        faulthandler.register(signal.SIGUSR1, file=2)  # all stacks to the log, also where this process hangs
        own_children()
        set_environment(self._settings)
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
        from vllm.v1.engine.async_llm import AsyncLLM

        self._stop_token_ids = eos_token_ids(Path(self._settings.model_dir))
        self._llm = AsyncLLM.from_engine_args(engine_arguments(self._settings))
        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest())
        await self._llm.update_weight_version(str(UNSET))
        self._fault = ""
        return os.getpid()

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], seed: int, priority: int, sampling: Mapping[str, Any]
    ) -> Output:
        """Sample one response; `sampling` holds fields of `common.records.Sampling`, lower priority goes first.

        At temperature 0 the most likely token is taken, and log-probs are those of temperature 1, untruncated.
        """
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        self._check_serving()
        params = SamplingParams(
            **{**sampling, "stop_token_ids": [*self._stop_token_ids, *sampling["stop_token_ids"]]},
            seed=seed,
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = TokensPrompt(prompt_token_ids=list(prompt_ids))
        self._running.add(request_id)
        try:
            async for output in self._llm.generate(prompt, params, request_id, priority=priority):
                final = output.outputs[0]
        except Exception as error:
            raise self._lost(request_id, error) from error
        finally:
            self._running.discard(request_id)
        return await self._read(request_id, final)

    async def _read(self, request_id: str, final: Any) -> Output:
        if final.finish_reason == "error":
            raise EngineError(f"{self._settings.name} could not finish request {request_id}: vLLM reports an internal error")
        token_ids = list(final.token_ids)
        logprobs = list(final.logprobs.logprobs) if final.logprobs is not None else []
        # One log-prob per token, always: a missing one is the caller's to judge, as NaN is.
        logprobs += [math.nan] * (len(token_ids) - len(logprobs))
        if final.weight_versions:
            versions = final.weight_versions[0].version, final.weight_versions[-1].version
        else:  # no token came out
            versions = (await self._llm.get_weight_version(),) * 2
        return token_ids, logprobs, final.finish_reason, int(versions[0]), int(versions[1])

    async def abort(self, request_ids: list[str]) -> None:
        """End these requests; their `generate` returns with what there is.

        Returns when they have ended, or after a few seconds.
        """
        for _ in range(_ABORT_TRIES):
            running = [request_id for request_id in request_ids if request_id in self._running]
            if not running or self._fault:
                return
            await self._llm.abort(running)
            # vLLM ignores ids it does not know yet: a request still on its way in is met by the next try.
            await asyncio.sleep(_ABORT_PAUSE_S)

    async def publish(self, version: int, spool: str) -> dict[str, float]:
        """Load the shards of `spool` as `version`; returns seconds by phase.

        Raises PublishError. The engine goes on with the old version where the fault came before the first weight was
        touched; otherwise it is dead.
        """
        self._check_alive()
        updates = [{"path": str(shard)} for shard in spool_files(Path(spool))]
        return await self._load(version, updates, self._settings.publish_timeout_s)

    async def receive(self, version: int, tensors: Sequence[tuple[str, str, list[int]]], timeout_s: float) -> dict[str, float]:
        """As `publish`, but the weights are sent by the group that was joined: (name, dtype, shape) of each, in order."""
        names, dtypes, shapes = (list(part) for part in zip(*tensors, strict=True))
        return await self._load(version, [{"names": names, "dtype_names": dtypes, "shapes": shapes}], timeout_s)

    async def join_group(self, init_info: Mapping[str, Any], timeout_s: float) -> None:
        """Let the workers meet the trainer's rank 0. Raises EngineError; where a worker still waits, the engine is dead."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self._check_alive()
        request = WeightTransferInitRequest(init_info={"group": dict(init_info)})
        try:
            async with self._loading(timeout_s):
                await self._llm.init_weight_transfer_engine(request)
        except TimeoutError as error:
            self._fault = f"{self._settings.name} did not meet the trainer within {timeout_s:g} s"
            raise EngineError(self._fault) from error
        except Exception as error:
            raise EngineError(f"{self._settings.name} could not meet the trainer: {one_line(error)}") from error

    async def condemn(self, reason: str) -> None:
        """Count as dead from now on."""
        self._fault = self._fault or reason

    async def _load(self, version: int, updates: list[dict[str, Any]], timeout_s: float) -> dict[str, float]:
        self._check_alive()
        name = self._settings.name
        if version <= self._version:
            raise PublishError(f"{name} serves weight version {self._version}; version {version} does not follow it")
        if self._running:
            raise PublishError(f"{name} still has {len(self._running)} requests in flight")
        return await self._run_phases(version, self._publish_phases(version, updates), timeout_s)

    def _publish_phases(self, version: int, updates: list[dict[str, Any]]) -> Phases:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        async def load() -> None:
            for update in updates:
                await self._llm.update_weights(WeightTransferUpdateRequest(update_info=update))

        return [
            # `wait`: an aborted request may hold its blocks for one more step. The cache is reset below, once and checked.
            ("pause", lambda: self._llm.pause_generation(mode="wait", clear_cache=False)),
            ("start", self._llm.start_weight_update),
            ("load", load),
            ("finish", lambda: self._llm.finish_weight_update(weight_version=str(version))),
            ("reset_prefix_cache", self._reset_prefix_cache),
            ("resume", self._llm.resume_generation),
        ]

    async def _run_phases(self, version: int, phases: Phases, limit_s: float) -> dict[str, float]:
        seconds: dict[str, float] = {}
        phase = ""
        try:
            async with self._loading(limit_s):
                for phase, run in phases:
                    start = time.monotonic()
                    await run()
                    seconds[phase] = time.monotonic() - start
        except Exception as error:
            cause = f"not done within {limit_s:g} s" if isinstance(error, TimeoutError) else one_line(error)
            message = f"{self._settings.name}: publish of weight version {version} failed in phase {phase}: {cause}"
            if phase != "pause" or not await self._is_resumed():
                self._fault = message
            raise PublishError(message) from error
        if self._fault:  # condemned meanwhile: nobody waits for this answer any more
            raise PublishError(self._fault)
        self._version = version
        return seconds

    @asynccontextmanager
    async def _loading(self, limit_s: float) -> AsyncIterator[None]:
        self._is_loading = True
        try:
            async with asyncio.timeout(limit_s):
                yield
        finally:
            self._is_loading = False

    async def _is_resumed(self) -> bool:
        try:
            async with asyncio.timeout(_RESUME_TIMEOUT_S):
                await self._llm.resume_generation()
        except Exception:  # whatever it was: the engine does not serve
            return False
        return True

    async def _reset_prefix_cache(self) -> None:
        # vLLM keeps the cache through a weight update, and answers False where it could not reset.
        if not await self._llm.reset_prefix_cache():
            raise PublishError("vLLM did not reset its prefix cache")

    async def health(self) -> tuple[bool, int, int, str]:
        """(is alive, weight version, requests running, what is wrong)."""
        fault = self._fault or self._core_fault()
        return not fault, self._version, len(self._running), fault

    async def beat(self) -> None:
        """Return when the EngineCore has answered, which it does between two steps. Raises EngineDiedError.

        Not asked of one that waits for weights: that has a limit of its own.
        """
        self._check_alive()
        if not self._is_loading:
            await self._llm.get_weight_version()  # vLLM's own health check reads a flag of this process

    async def alive(self) -> None:
        """Never returns; raises EngineDiedError as soon as it cannot serve any more. With this process, Ray ends the call."""
        # vLLM waits for the end of its EngineCore and notes it; this looks at the note, in the process that has it.
        while not (fault := self._fault or self._core_fault()):
            await asyncio.sleep(_LOOK_S)
        raise EngineDiedError(f"{self._settings.name} is dead: {fault}")

    async def close(self) -> None:
        """End the EngineCore; idempotent."""
        self._fault = self._fault or "it is closed"
        if self._llm is not None:
            llm, self._llm = self._llm, None
            llm.shutdown()

    def _core_fault(self) -> str:
        return f"its EngineCore process has died, see {self._settings.log_file}" if self._llm.errored else ""

    def _check_alive(self) -> None:
        if fault := self._fault or self._core_fault():
            raise EngineDiedError(f"{self._settings.name} is dead: {fault}")

    def _check_serving(self) -> None:
        self._check_alive()
        if self._version == UNSET:
            raise EngineError(f"{self._settings.name} has random weights: publish version 0 before the first request")

    def _lost(self, request_id: str, error: Exception) -> EngineError:
        fault = self._fault or (self._llm is not None and self._core_fault())
        kind = EngineDiedError if fault else EngineError
        return kind(f"{self._settings.name} lost request {request_id}: {fault or one_line(error)}")


def one_line(error: BaseException) -> str:
    """Kind and message, without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def redirect_output(log_file: str) -> None:
    """Append this process's stdout and stderr, and those of all that it starts, to `log_file`."""
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def set_environment(settings: EngineSettings) -> None:
    """What vLLM and torch read when they are imported, here and in the EngineCore."""
    os.environ.update(VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")
    if settings.on_gpu:
        if settings.is_local:  # the workers' own collectives, and those with the trainer
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "=lo")
        return
    os.environ.update(
        OMP_NUM_THREADS=str(settings.threads),
        VLLM_TARGET_DEVICE="cpu",  # else an installed libtpu, there to compile for TPUs, is taken for one
        VLLM_CPU_KVCACHE_SPACE=str(settings.kv_cache_gb),  # else a share of all memory
        VLLM_CPU_OMP_THREADS_BIND="nobind",  # the operating system places; binding leaves the trainer less
        TORCH_COMPILE_DISABLE="1",  # else the sampler is compiled at the first request, for seconds
    )
    if settings.tensor_parallel == 1:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # no third process between EngineCore and worker


def engine_arguments(settings: EngineSettings) -> Any:
    """vLLM's AsyncEngineArgs."""
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    from rolloutpipe_torch.rollout.receiver import BACKEND, WorkerExtension

    platform: dict[str, Any] = (
        {"gpu_memory_utilization": GPU_SHARE} if settings.on_gpu else {"enforce_eager": True, "block_size": 32}
    )
    return AsyncEngineArgs(
        **{
            "model": settings.model_dir,
            "load_format": "dummy",  # random: the first publish brings the weights
            "skip_tokenizer_init": True,  # token ids in, token ids out
            "dtype": settings.dtype,
            "max_model_len": settings.max_model_len,
            "max_num_seqs": settings.capacity,
            "tensor_parallel_size": settings.tensor_parallel,
            "scheduling_policy": "priority",
            "logprobs_mode": "processed_logprobs",  # of the distribution sampled, temperature applied
            "disable_log_stats": True,
            "worker_extension_cls": f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}",
            "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
            **platform,
            **settings.options,
        }
    )


def eos_token_ids(model_dir: Path) -> list[int]:
    """Token ids that end a response: of generation_config.json, else of config.json."""
    for name in ("generation_config.json", "config.json"):
        file = model_dir / name
        try:
            found = read_json(file).get("eos_token_id") if file.exists() else None
        except (OSError, ValueError) as error:
            raise DataError(explain("model.path", "must hold readable JSON files", str(file), "copy it again")) from error
        if found is not None:
            return list(found) if isinstance(found, list) else [found]
    return []
