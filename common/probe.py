"""A few responses from an engine, to see that it serves the weights it was given.

Prompts and seeds are fixed by run and version, so all engines are asked the same and answer alike. Their log-probs are compared
with the trainer's for the same tokens. The trainer's answer is kept, for an engine that is started when the trainer has moved on.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from common.config import Config
from common.errors import PublishError
from common.protocols import Engine
from common.records import Request, Response, Sampling
from common.requests import derive_seed

PROBE_TOKENS = 16  # of each response


@dataclass(frozen=True, slots=True)
class Answer:
    """What one probe of an engine gave."""

    number: int
    prompt_ids: tuple[int, ...]
    response: Response


@dataclass(frozen=True, slots=True)
class Expected:
    """Tokens that a right engine answers to a probe, and the trainer's log-probs of them."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


Reference = dict[int, Expected]  # by number of the probe


class Probe:
    """Asks engines; what is to be made of their answers is the caller's business."""

    def __init__(self, config: Config, prompts: Sequence[tuple[int, ...]]) -> None:
        base = config.sampling.build()
        num_tokens = min(PROBE_TOKENS, base.max_tokens)
        self.sampling = Sampling(temperature=base.temperature, max_tokens=num_tokens, stop_token_ids=base.stop_token_ids)
        self._prompts, self._seed = prompts, config.seed

    async def ask(self, engine: Engine, place: int, version: int) -> list[Answer]:
        """All probes at once, as real requests. Raises EngineError, and PublishError for an answer of another version."""
        calls = (self._ask(engine, place, version, number) for number in range(min(len(self._prompts), engine.capacity)))
        return list(await asyncio.gather(*calls))

    async def _ask(self, engine: Engine, place: int, version: int, number: int) -> Answer:
        prompt_ids = self._prompts[number]
        name = f"probe/v{version}/e{place}/{number}"
        seed = derive_seed(self._seed, version, number, -2)
        request = Request(request_id=name, group_id=name, order=0, prompt_ids=prompt_ids, seed=seed)
        engine.place(request)
        response = await engine.generate(request, self.sampling)
        if (response.version_start, response.version_end) != (version, version):
            raise PublishError(f"a probe of weight version {version} was answered by version {response.version_end}")
        return Answer(number, prompt_ids, response)


def reference_of(answers: Sequence[Answer], logprobs: Sequence[Sequence[float]]) -> Reference:
    """Of several engines' answers to a probe the first one."""
    reference: Reference = {}
    for answer, wanted in zip(answers, logprobs, strict=True):
        reference.setdefault(answer.number, Expected(answer.response.token_ids, tuple(wanted)))
    return reference


def largest_gap(served: Sequence[float], wanted: Sequence[float]) -> float:
    """In nats, over the tokens that both have; a NaN is infinitely far away."""
    gaps = [abs(a - b) if a == a else float("inf") for a, b in zip(served, wanted, strict=False)]
    return max(gaps, default=0.0)


def gap_to(answers: Sequence[Answer], reference: Reference) -> float:
    """Largest gap in nats of the tokens up to the first other one: rounding may tip a draw. Infinite where none is alike."""
    gap, num_alike = 0.0, 0
    for answer in answers:
        response, expected = answer.response, reference.get(answer.number)
        if expected is None:
            continue
        pairs = zip(response.token_ids, expected.token_ids, strict=False)
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        num_alike += alike
        gap = max(gap, largest_gap(response.logprobs[:alike], expected.logprobs[:alike]))
    return gap if num_alike else float("inf")
