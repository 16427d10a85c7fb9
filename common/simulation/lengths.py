"""Response lengths of a round, R x K whole numbers of tokens; the same for a seed and round whatever the schedule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import ConfigError, DataError, explain

Lengths = NDArray[np.int64]
Prompt = tuple[int, ...]
MAX_TOKENS = 2**31  # of a response
MAX_SIGMA = 10  # of a logarithm: one response in six is already e^10 times as long as the median


class LengthModel(Protocol):
    """Where lengths come from."""

    def draw(self, rng: np.random.Generator, num_groups: int, num_members: int) -> Lengths:
        """Tokens of each response, (num_groups, num_members), at least 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLengths:
    """log(length) = log(median) + prompt part + member part, both normal; some loop until the cap."""

    median: float = 256.0
    prompt_sigma: float = 0.5  # between prompts
    member_sigma: float = 0.3  # between the members of a group
    cap: int = 4096  # max_tokens
    loop_share: float = 0.0  # of responses that run into the cap, whatever their prompt

    def __post_init__(self) -> None:
        if not 0 < self.median <= MAX_TOKENS:
            raise ConfigError(explain("lengths.median", f"must be above 0 and at most {MAX_TOKENS:,}", self.median, "change it"))
        for name in ("prompt_sigma", "member_sigma"):
            if not 0 <= getattr(self, name) <= MAX_SIGMA:
                rule = f"must be a number of 0 to {MAX_SIGMA}"
                raise ConfigError(explain(f"lengths.{name}", rule, getattr(self, name), "change it"))
        if not 1 <= self.cap <= MAX_TOKENS:
            raise ConfigError(explain("lengths.cap", f"must be 1 to {MAX_TOKENS:,}", self.cap, "change it"))
        if not 0 <= self.loop_share <= 1:
            raise ConfigError(explain("lengths.loop_share", "must be between 0 and 1", self.loop_share, "change it"))

    def draw(self, rng: np.random.Generator, num_groups: int, num_members: int) -> Lengths:
        """As `LengthModel.draw`."""
        prompts = rng.normal(0.0, 1.0, (num_groups, 1)) * self.prompt_sigma
        members = rng.normal(0.0, 1.0, (num_groups, num_members)) * self.member_sigma
        loops = rng.random((num_groups, num_members)) < self.loop_share
        lengths = np.where(loops, self.cap, self.median * np.exp(prompts + members))
        return np.clip(np.rint(lengths), 1, self.cap).astype(np.int64)


class EmpiricalLengths:
    """Whole groups of recorded lengths, drawn with replacement; members are drawn from their group's."""

    def __init__(self, groups: Sequence[Sequence[int]], cap: int | None = None) -> None:
        """`cap`: the length at which they were cut off, if any was. Raises DataError where nothing was recorded."""
        self.cap = cap
        self._groups = [np.asarray(lengths, dtype=np.int64) for lengths in groups if len(lengths)]
        if not self._groups:
            raise DataError(explain("lengths", "need at least one recorded group", len(groups), "record a round first"))

    @property
    def num_groups(self) -> int:
        """Recorded groups."""
        return len(self._groups)

    def draw(self, rng: np.random.Generator, num_groups: int, num_members: int) -> Lengths:
        """As `LengthModel.draw`; a group of K recorded members keeps all of them."""
        chosen = [self._groups[index] for index in rng.integers(len(self._groups), size=num_groups)]
        rows = [rng.permutation(one) if len(one) == num_members else rng.choice(one, num_members) for one in chosen]
        return np.maximum(np.stack(rows), 1)


class RecordedLengths(EmpiricalLengths):
    """The very lengths of a run: round i of a simulation of that size has those of place i, from the front again where there
    are fewer; rounds of another size are drawn from the recorded groups."""

    def __init__(self, rounds: Sequence[Lengths], prompts: Sequence[Sequence[Prompt]] | None = None) -> None:
        """`rounds`: (R, K) each; `prompts`: R token id tuples each. Raises DataError where nothing was recorded."""
        super().__init__([group for lengths in rounds for group in lengths])
        self._rounds, self._prompts = list(rounds), prompts

    def of_round(self, index: int) -> Lengths:
        """(R, K)."""
        return self._rounds[index % len(self._rounds)]

    def prompts_of_round(self, index: int) -> Sequence[Prompt] | None:
        """R of them; None where none were recorded."""
        return None if self._prompts is None else self._prompts[index % len(self._prompts)]


def prompts_of_round(model: LengthModel, index: int, num_groups: int, prompt_tokens: int) -> Sequence[Prompt]:
    """As recorded; else all of `prompt_tokens`, and none like another: a simulated prompt is never seen twice."""
    recorded = model.prompts_of_round(index) if isinstance(model, RecordedLengths) else None
    if recorded is not None and len(recorded) == num_groups:
        return recorded
    if prompt_tokens == 0:
        return [()] * num_groups
    return [(index * num_groups + order, *(0,) * (prompt_tokens - 1)) for order in range(num_groups)]


def lengths_of_round(model: LengthModel, index: int, rng: np.random.Generator, shape: tuple[int, int]) -> Lengths:
    """Tokens of each response of round `index`, `shape` (R, K): as recorded, or drawn."""
    if isinstance(model, RecordedLengths) and model.of_round(index).shape == shape:
        return model.of_round(index)
    return model.draw(rng, *shape)
