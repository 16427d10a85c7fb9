"""Publishing weights to every engine (rule 6), in four phases, each with a deadline and an event of its own.

    export    the trainer streams its weights into a spool
    check     coverage, shapes, dtypes, checksums and version, before any engine is touched
    transfer  every engine loads the spool, resets its prefix cache and acknowledges
    probe     a few responses from every engine, compared with the trainer's own log-probs: what is served is what was trained

    publish = export (phases 1, 2) + deliver (phases 3, 4)

A replica of a pool that fails in phase 3 or 4 may be half new: it never serves again, and the publish goes on with the others, or
with the one that `common.keeper` starts in its place. So after a publish, good or bad, an engine serves the old version, or the
new one, or is gone. What an engine serves beside what it was given is a bug and no fault: a gap above the limit ends the run.

The probe is what finds weights that were loaded without an error and are not used, as a tied output head that keeps its old
values. A replacement within a round is probed too, by the answers of the publish: the trainer may have stepped since.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from common.config import Config
from common.engine_wait import wait_for_engine
from common.errors import EngineError, PublishError, TrainerDiedError
from common.pool import Pool, publish_within
from common.probe import Answer, Probe, Reference, gap_to, largest_gap, reference_of
from common.protocols import Engine, Trainer
from common.spool import TensorLayout, check_spool, fingerprint, weights_sha256, write_safetensors
from common.timeline import Timeline

Result = TypeVar("Result")
PROBE_GAPS = {"float32": 1e-4, "bfloat16": 0.3}  # measured: 4e-5 and 0.25 at most on a 135M model


class PhaseTimeout(PublishError):
    """A phase has passed its deadline."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """A checked spool."""

    version: int
    spool: Path
    fingerprint: str


class Publisher:
    """Publishes versions 0, 1, 2 ... of one run. The spools of what is served and of the last export stay on disk."""

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
        self._layout, self._root, self._timeline = layout, spool_root, timeline
        precise = config.rollout.dtype == config.training.dtype == "float32"
        self._max_gap = config.limits.max_probe_gap or PROBE_GAPS["float32" if precise else "bfloat16"]
        self._limit_s = config.limits.publish_timeout_s
        self._probe = Probe(config, probe_prompts)
        self._exported: _Weights | None = None
        self._served: _Weights | None = None
        self._reference: Reference = {}  # how the served weights answer
        self._is_torn = False  # a delivery was cut off: who serves what is not known
        self._lock = asyncio.Lock()  # a delivery and a replacement never meet
        self.last_gap = 0.0

    @property
    def served(self) -> tuple[int, str] | None:
        """Version and fingerprint of what all engines serve and were probed for; None while that is not one version."""
        return (self._served.version, self._served.fingerprint) if self._served is not None else None

    async def publish(self, version: int, round_index: int | None = None) -> None:
        """All four phases, at the end of round `round_index` (None: before the first).

        Raises PublishError, and TrainerDiedError where the trainer is stuck; each engine then serves the old version, or is dead.
        """
        await self.export(version, round_index)
        await self.deliver(round_index)

    async def export(self, version: int, round_index: int | None = None) -> Path:
        """The first two phases: a checked spool. No engine is touched, whatever it raises: PublishError, TrainerDiedError."""
        spool = self._new_spool(version)
        try:
            with self._phase("export", version, round_index):
                await self._of_trainer(self._trainer.export_weights(spool, version), "export")
            with self._phase("check", version, round_index):
                await self._bounded(asyncio.to_thread(check_spool, spool, version, self._layout), "check")
            self._exported = _Weights(version, spool, fingerprint(spool))
        except BaseException:
            shutil.rmtree(spool, ignore_errors=True)
            raise
        return spool

    async def deliver(self, round_index: int | None = None) -> None:
        """The last two phases: every engine serves the last export, and was probed.

        Raises PublishError, also where no engine is left and none comes within supervision.no_engine_s.
        """
        weights = self._last_export()
        while (fault := await self._try_deliver(weights, round_index)) is not None:
            await self._await_engine(f"weight version {weights.version}: {fault}")

    async def serve(self, round_index: int | None = None) -> None:
        """As `deliver`, where the engines may serve the last export already: they are probed then, and nothing else.

        Where they serve the same or a higher version with other weights, others are started in their place first.
        """
        weights, served = self._last_export(), self._served
        if served is not None and self.served == (weights.version, weights.fingerprint):
            async with self._lock:
                with self._phase("probe", served.version, round_index) as found:
                    found["gap"] = await self._probe_all(served)
            await self._await_engine(f"weight version {served.version}: no engine is left")
            return
        self._is_torn = self._is_torn or (served is not None and served.version >= weights.version)
        await self.deliver(round_index)

    async def bring(self, engine: Engine, place: int) -> str:
        """Let a new engine join the pool at an empty place, with what the others serve, and probed. Says what was done.

        Before the first delivery it joins without weights. Raises PublishError, EngineError; it has then not joined.
        """
        assert isinstance(self._engines, Pool), "only a pool can be joined"
        async with self._lock:
            served, done = self._served, "serves nothing yet"
            if served is not None:
                await publish_within(engine, served.version, served.spool, self._limit_s)
                answers = await self._ask(engine, place, served.version)
                gap = gap_to(answers, self._reference)
                self._check_gap(gap, served.version, f"engine-{place}")
                done = f"serves weight version {served.version}, probed within {gap:.2g} nats"
            await self._engines.join(engine, place)
        return done

    def fingerprint(self) -> str:
        """Of the weights exported last: equal exactly when every weight is."""
        return self._last_export().fingerprint

    def sha256(self) -> str:
        """Of the weights exported last, from their bytes."""
        return weights_sha256(self._last_export().spool)

    def write_model(self, directory: Path) -> None:
        """The weights exported last, as the safetensors of a Hugging Face model directory."""
        write_safetensors(self._last_export().spool, directory)

    def close(self) -> None:
        """Remove the spools."""
        shutil.rmtree(self._root, ignore_errors=True)

    async def _try_deliver(self, weights: _Weights, round_index: int | None) -> object | None:
        """None when it is done; else the fault that has cost the last engine, and another is to be waited for."""
        pool = self._engines if isinstance(self._engines, Pool) else None
        async with self._lock:
            is_torn, self._is_torn, before, self._served = self._is_torn, True, self._served, None
            if before is not None and before.spool != weights.spool:
                shutil.rmtree(before.spool, ignore_errors=True)
            try:
                if pool is not None and is_torn:
                    pool.renew()
                with self._phase("transfer", weights.version, round_index):
                    fault = await self._transfer(weights)
                if pool is None or pool.replicas:
                    with self._phase("probe", weights.version, round_index) as found:
                        found["gap"] = await self._probe_all(weights)
            except BaseException:
                if pool is not None:
                    pool.version = None
                raise
            self._is_torn = False
            if pool is not None and not pool.replicas:
                pool.version = None  # whoever joins now has no weights yet
                return fault or "its engines were lost"
            self._served = weights
        return None

    async def _transfer(self, weights: _Weights) -> BaseException | None:
        """The first fault. A replica of a pool that has one is lost; an engine of its own raises it."""
        if isinstance(self._engines, Pool):
            return await self._engines.deliver(weights.version, weights.spool, self._limit_s)
        await publish_within(self._engines, weights.version, weights.spool, self._limit_s)
        return None

    async def _probe_all(self, weights: _Weights) -> float:
        """Largest gap in nats over all engines, probes and tokens. A replica that does not answer is lost."""
        pool = self._engines if isinstance(self._engines, Pool) else None
        engines = pool.replicas if pool is not None else {0: self._engines}
        calls = (self._ask(engine, place, weights.version) for place, engine in engines.items())
        results = await asyncio.gather(*calls, return_exceptions=True)
        answers: list[Answer] = []
        for place, result in zip(engines, results, strict=True):
            if isinstance(result, EngineError | PhaseTimeout) and pool is not None:
                pool.lose(place, f"it did not answer a probe of weight version {weights.version}: {result}")
            elif isinstance(result, BaseException):
                raise result
            else:
                answers += result
        if not answers:
            return 0.0
        sequences = [(answer.prompt_ids, answer.response.token_ids) for answer in answers]
        wanted = await self._of_trainer(self._trainer.logprobs(sequences, self._probe.sampling.temperature), "probe")
        served = (answer.response.logprobs for answer in answers)
        self.last_gap = max(largest_gap(*pair) for pair in zip(served, wanted, strict=True))
        self._check_gap(self.last_gap, weights.version, "an engine")
        self._reference = reference_of(answers, wanted)
        return self.last_gap

    async def _ask(self, engine: Engine, place: int, version: int) -> list[Answer]:
        return await self._bounded(self._probe.ask(engine, place, version), "probe")

    def _check_gap(self, gap: float, version: int, who: str) -> None:
        if not gap <= self._max_gap:
            raise PublishError(
                f"weight version {version}: after the publish {who}'s log-probs differ from the trainer's by "
                f"{gap:.3g}, above limits.max_probe_gap ({self._max_gap:g}): it does not serve the weights it was given"
            )

    async def _await_engine(self, fault: str) -> None:
        try:
            await wait_for_engine(self._engines, self._config.supervision.no_engine_s)
        except EngineError as error:
            raise PublishError(f"{fault}; {error}") from error

    def _last_export(self) -> _Weights:
        assert self._exported is not None, "nothing was exported yet"
        return self._exported

    def _new_spool(self, version: int) -> Path:
        """An empty place for a spool. A replacement may still load what is served, also where that is the same version."""
        served = self._served and self._served.spool
        if self._exported is not None and self._exported.spool != served:
            shutil.rmtree(self._exported.spool, ignore_errors=True)
        spool = self._root / f"v{version}"
        if spool == served:
            spool = self._root / f"v{version}-again"
        shutil.rmtree(spool, ignore_errors=True)
        return spool

    @contextmanager
    def _phase(self, phase: str, version: int, round_index: int | None) -> Iterator[dict[str, Any]]:
        """Records the phase when it is done, with what the block has found."""
        start = self._timeline.now()
        found: dict[str, Any] = {}
        yield found
        where = {} if round_index is None else {"round": round_index}
        self._timeline.emit("publish", start=round(start, 6), phase=phase, version=version, **where, **found)

    async def _bounded(self, call: Awaitable[Result], phase: str) -> Result:
        try:
            async with asyncio.timeout(self._limit_s):
                return await call
        except TimeoutError as error:
            text = f"phase {phase} did not end within limits.publish_timeout_s ({self._limit_s:g} s)"
            raise PhaseTimeout(text) from error

    async def _of_trainer(self, call: Awaitable[Result], phase: str) -> Result:
        """Ranks that are stuck are as good as dead: they start again, and the round is replayed (`common.run`)."""
        try:
            return await self._bounded(call, phase)
        except PhaseTimeout as error:
            raise TrainerDiedError(f"the trainer is stuck: {error}") from error
