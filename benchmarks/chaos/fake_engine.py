"""An engine actor with the methods of `VllmEngine`, around the fake engine."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos import arithmetic
from chaos.moments import enter, reach
from common.errors import EngineError, PublishError
from common.records import FinishReason, Request, Response, Sampling
from common.spool import spool_files
from common.testing import FakeEngine
from rolloutpipe_torch.rollout.engine import UNSET, EngineSettings, Output, redirect_output


class _Sampler(FakeEngine):
    """Whose answers depend on the weights, not on the seed alone."""

    def _respond(
        self, request: Request, sampling: Sampling, version: int, weight: float, fault: Any, is_aborted: bool
    ) -> Response:
        tokens = arithmetic.answer(request.seed, weight, sampling.max_tokens)
        finish = FinishReason.LENGTH if len(tokens) == sampling.max_tokens else FinishReason.STOP
        return Response(
            request_id=request.request_id,
            token_ids=tokens,
            logprobs=tuple(arithmetic.logprob(weight, token) for token in tokens),
            finish_reason=FinishReason.ABORT if is_aborted else finish,
            version_start=version,
            version_end=version,
        )

    def load(self, version: int, weight: float) -> None:
        if version <= self._version:
            raise PublishError(f"{self._name} serves version {self._version}; version {version} is not newer")
        self._version, self._weight = version, weight
        self._cache.clear()


class FakeVllmEngine:
    """Random weights at the start, and one version at a time. Answers take 5 to 60 ms."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._fake = _Sampler(settings.capacity, seconds=lambda request: 0.005 + request.seed % 56 / 1000, name=settings.name)

    async def start(self) -> int:
        redirect_output(self._settings.log_file)
        enter(self._settings.name)
        reach("engine-start")
        return os.getpid()

    async def alive(self) -> None:
        """Never returns."""
        await asyncio.get_running_loop().create_future()

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], seed: int, priority: int, sampling: Mapping[str, Any]
    ) -> Output:
        if self._version == UNSET:
            raise EngineError(f"{self._settings.name} has random weights")
        reach("generate")
        request = Request(request_id=request_id, group_id="", order=priority, prompt_ids=tuple(prompt_ids), seed=seed)
        response = await self._fake.generate(request, Sampling(**sampling))
        return (
            list(response.token_ids),
            list(response.logprobs),
            str(response.finish_reason),
            response.version_start,
            response.version_end,
        )

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self._fake.abort(request_ids)

    async def publish(self, version: int, spool: str) -> dict[str, float]:
        from safetensors.numpy import load_file

        await asyncio.sleep(0.02)
        reach("publish")
        weight = float(load_file(str(spool_files(Path(spool))[0]))["served"][0])
        await asyncio.sleep(0.02)
        self._fake.load(version, weight)
        return {"load": 0.04}

    async def adopt(self, version: int) -> None:
        """For a planted bug: say that this version is served, with whatever weights there are."""
        self._fake.load(version, self._fake._weight)

    async def health(self) -> tuple[bool, int, int, str]:
        (state,) = await self._fake.health()
        return True, state.weight_version, state.num_running, ""

    async def beat(self) -> None:
        """It answers as long as it runs."""

    async def close(self) -> None:
        await self._fake.close()

    @property
    def _version(self) -> int:
        return self._fake._version
