"""Publishing weights to every engine (rule 6), in four phases, each with a deadline and an event of its own.

    export    the trainer streams its weights into a spool
    check     coverage, shapes, dtypes, checksums and version, before any engine is touched
    transfer  every engine loads the spool, resets its prefix cache and acknowledges
    probe     a few responses from every engine, compared with the trainer's own log-probs: what is served is what was trained

The probe goes the way that real requests go. It is what finds weights that were loaded without an error and are not used, as
a tied output head that keeps its old values.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from common.config import Config
from common.errors import PublishError
from common.protocols import Engine, Trainer
from common.records import Request, Response, Sampling
from common.requests import derive_seed
from common.spool import TensorLayout, check_spool, fingerprint, weights_sha256, write_safetensors
from common.timeline import Timeline

Result = TypeVar("Result")
PROBE_TOKENS = 16  # of each response
PROBE_GAPS = {"float32": 1e-4, "bfloat16": 0.3}  # measured: 4e-5 and 0.25 at most on a 135M model


class Publisher:
    """Publishes versions 0, 1, 2 ... of one run. The last spool stays on disk until `close`."""

    def __init__(
        self,
        config: Config,
        *,
        engines: Engine,
        trainer: Trainer,
        layout: dict[str, TensorLayout],
        spool_root: Path,
        probe_prompts: Sequence[tuple[int, ...]],
        timeline: Timeline,
    ) -> None:
        self._config, self._engines, self._trainer = config, engines, trainer
        self._layout, self._root, self._prompts, self._timeline = layout, spool_root, probe_prompts, timeline
        precise = config.rollout.dtype == config.training.dtype == "float32"
        self._max_gap = config.limits.max_probe_gap or PROBE_GAPS["float32" if precise else "bfloat16"]
        self._spool: Path | None = None
        self._version = -1
        self.served: tuple[int, str] | None = None
        self.last_gap = 0.0

    async def publish(self, version: int, round_index: int | None = None) -> None:
        """All four phases, at the end of round `round_index` (None: before the first).

        Raises PublishError; the engines are then either untouched or reported dead.
        """
        await self.export(version, round_index)
        await self.serve(round_index)

    def fingerprint(self) -> str:
        """Of the weights exported last."""
        assert self._spool is not None, "nothing was exported yet"
        return fingerprint(self._spool)

    async def serve(self, round_index: int | None = None) -> None:
        """The last two phases: the engines serve what was exported last."""
        spool, version = self._spool, self._version
        assert spool is not None, "nothing was exported yet"
        if self.served != (version, self.fingerprint()):
            with self._phase("transfer", version, round_index):
                await self._bounded(self._engines.publish(version, spool), "transfer")
        with self._phase("probe", version, round_index) as found:
            self.last_gap = found["gap"] = await self._bounded(self._probe(version), "probe")
        if not self.last_gap <= self._max_gap:
            raise PublishError(
                f"weight version {version}: after the publish an engine's log-probs differ from the trainer's by "
                f"{self.last_gap:.3g}, above limits.max_probe_gap ({self._max_gap:g}): it does not serve the weights it was given"
            )
        self.served = (version, self.fingerprint())

    async def export(self, version: int, round_index: int | None = None) -> Path:
        """The first two phases: a checked spool, which replaces the one before."""
        spool = self._root / f"v{version}"
        shutil.rmtree(spool, ignore_errors=True)
        with self._phase("export", version, round_index):
            await self._bounded(self._trainer.export_weights(spool, version), "export")
        with self._phase("check", version, round_index):
            await asyncio.to_thread(check_spool, spool, version, self._layout)
        if self._spool is not None and self._spool != spool:
            shutil.rmtree(self._spool, ignore_errors=True)
        self._spool, self._version = spool, version
        return spool

    def sha256(self) -> str:
        """Of the weights exported last."""
        assert self._spool is not None, "nothing was exported yet"
        return weights_sha256(self._spool)

    def write_model(self, directory: Path) -> None:
        """The weights exported last, as the safetensors of a Hugging Face model directory."""
        assert self._spool is not None, "nothing was exported yet"
        write_safetensors(self._spool, directory)

    def close(self) -> None:
        """Remove the spools."""
        shutil.rmtree(self._root, ignore_errors=True)

    async def _probe(self, version: int) -> float:
        """Largest gap in nats over all replicas, probes and tokens."""
        base = self._config.sampling.build()
        num_tokens = min(PROBE_TOKENS, base.max_tokens)
        sampling = Sampling(temperature=base.temperature, max_tokens=num_tokens, stop_token_ids=base.stop_token_ids)
        calls = [
            self._sample(engine, index, version, number, sampling)
            for index, engine in enumerate(getattr(self._engines, "engines", (self._engines,)))  # a pool, or one engine
            for number in range(min(len(self._prompts), engine.capacity))
        ]
        answers = await asyncio.gather(*calls)
        sequences = [(prompt, response.token_ids) for prompt, response in answers]
        wanted = await self._trainer.logprobs(sequences, sampling.temperature)
        gap = 0.0
        for (_, response), logprobs in zip(answers, wanted, strict=True):
            if (response.version_start, response.version_end) != (version, version):
                raise PublishError(f"a probe of weight version {version} was answered by version {response.version_end}")
            for served, trained in zip(response.logprobs, logprobs, strict=True):
                gap = max(gap, abs(served - trained)) if served == served else float("inf")
        return gap

    async def _sample(
        self, engine: Engine, replica: int, version: int, number: int, sampling: Sampling
    ) -> tuple[tuple[int, ...], Response]:
        prompt = self._prompts[number]
        name = f"probe/v{version}/e{replica}/{number}"
        seed = derive_seed(self._config.seed, version, number, -2)
        request = Request(request_id=name, group_id=name, order=0, prompt_ids=prompt, seed=seed)
        engine.place(request)
        return prompt, await engine.generate(request, sampling)

    @contextmanager
    def _phase(self, phase: str, version: int, round_index: int | None) -> Iterator[dict[str, Any]]:
        """Records the phase when it is done, with what the block has found."""
        start = self._timeline.now()
        found: dict[str, Any] = {}
        yield found
        where = {} if round_index is None else {"round": round_index}
        self._timeline.emit("publish", start=round(start, 6), phase=phase, version=version, **where, **found)

    async def _bounded(self, call: Awaitable[Result], phase: str) -> Result:
        limit = self._config.limits.publish_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await call
        except TimeoutError as error:
            raise PublishError(f"phase {phase} did not end within limits.publish_timeout_s ({limit:g} s)") from error
