"""The verifier that the settings ask for: worker processes or a remote service, alone or with weighted parts on top."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from common.config_rewards import RewardConfig
from common.errors import DataError
from common.protocols import Score, Verifier
from common.records import Verdict
from common.rewards.parts import format_part, length_part, num_tokens_of, pattern_part, weigh
from common.rewards.pool import VerifierPool

_PATTERN_PART = f"{pattern_part.__module__}:{pattern_part.__name__}"


class StartableVerifier(Verifier, Protocol):
    """A verifier that is checked before it is needed."""

    async def start(self, deadline_s: float = 60.0) -> None:
        """Return when it can answer. ConfigError where a setting is at fault, RunError where it is not ready in time."""
        ...


def make_verifier(config: RewardConfig, *, examples: Iterable[dict[str, Any]] = (), log: Path | None = None) -> StartableVerifier:
    """Not started. `examples`: a task of each kind. `log`: file for the output of worker processes."""
    answer: StartableVerifier
    if config.remote is not None:
        from common.rewards.remote import RemoteVerifier

        answer = RemoteVerifier(config.remote, examples=examples)
    else:
        answer = VerifierPool(config, examples=examples, log=log)
    return answer if config.weights.is_answer_alone else SummedVerifier(config, answer, log=log)


class SummedVerifier:
    """Weighted parts on top of an answer's verdict. A `format_pattern` is matched in worker processes of its own."""

    def __init__(self, config: RewardConfig, answer: StartableVerifier, *, log: Path | None = None) -> None:
        self._config, self._answer = config, answer
        self._matcher: VerifierPool | None = None
        if config.weights.format != 0.0 and config.format_pattern is not None:
            self._matcher = VerifierPool(config.model_copy(update={"function": _PATTERN_PART, "remote": None}), log=log)

    async def start(self, deadline_s: float = 60.0) -> None:
        """Start both."""
        await self._answer.start(deadline_s)
        if self._matcher is not None:
            await self._matcher.start(deadline_s)

    async def score(self, task: dict[str, Any], response: str) -> Score:
        """The answer's verdict with the summed reward; TIMEOUT or ERROR where that came of a part."""
        parts: list[tuple[str, float]] = []
        try:
            if self._config.length is not None:
                parts.append(("length", length_part(self._config.length, num_tokens_of(task))))
        except DataError as error:
            return Score(reward=None, status=Verdict.ERROR, reason=str(error))
        answer = await self._answer.score(task, response)
        if self._config.weights.format != 0.0 and answer.status not in (Verdict.TIMEOUT, Verdict.ERROR):
            found = await self._format(response)
            if found.status in (Verdict.TIMEOUT, Verdict.ERROR):
                reason = found.reason.removeprefix(f"{_PATTERN_PART} gave ")
                return replace(answer, reward=found.reward, status=found.status, reason=f"format_pattern: {reason}")
            parts.insert(0, ("format", found.reward or 0.0))
        return weigh(self._config.weights, answer, parts)

    async def close(self) -> None:
        """End both; idempotent."""
        await self._answer.close()
        if self._matcher is not None:
            await self._matcher.close()

    async def _format(self, response: str) -> Score:
        if self._matcher is None:
            return Score(reward=format_part(response), status=Verdict.OK)
        return await self._matcher.score({"pattern": self._config.format_pattern}, response)
