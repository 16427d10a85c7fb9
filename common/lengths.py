"""How long will the responses to a prompt be? Learned inside the run, from every response that was sampled.

Pure core: the standard library alone. All in logarithms, because lengths are spread over orders of magnitude:

    log length = task + slope * log(prompt tokens) + prompt part + member part

Task and slope are a least-squares line through the prompts seen; a prompt's own part is what its earlier visits showed, shrunk
towards the line by as much as they leave open (the posterior mean of normal parts). So a prompt that was seen before is
predicted from its visits, a new one from its task and its own length, and the first of all not at all. The error that a
prediction states is measured: how far off the predictions made before turned out to be.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass

_FORGET = 0.5  # weight of a prompt's earlier visits once it is visited again: the policy that is trained changes
_MIN_SLOPE_SPREAD = 0.05  # log prompt tokens: prompts this much alike tell nothing about the slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A prediction for the responses to one prompt."""

    tokens: float  # median of a response
    error: float  # sigma of the log of `tokens`; inf: nothing is known
    member_sigma: float  # of the log, among the responses to one prompt


NOTHING_KNOWN = Expected(tokens=1.0, error=math.inf, member_sigma=0.0)


class _Line:
    """Least squares of y over x, with sums alone."""

    __slots__ = ("n", "sx", "sxx", "sxy", "sy", "syy")

    def __init__(self) -> None:
        self.n = self.sx = self.sy = self.sxx = self.sxy = self.syy = 0.0

    def add(self, x: float, y: float) -> None:
        self.n += 1
        self.sx += x
        self.sy += y
        self.sxx += x * x
        self.sxy += x * y
        self.syy += y * y

    def slope(self) -> float:
        spread = self.sxx - self.sx * self.sx / self.n
        return (self.sxy - self.sx * self.sy / self.n) / (spread + self.n * _MIN_SLOPE_SPREAD**2)

    def at(self, x: float) -> float:
        return self.sy / self.n + self.slope() * (x - self.sx / self.n)

    def variance(self) -> float:
        """Of y around the line."""
        around_mean = self.syy - self.sy * self.sy / self.n
        explained = self.slope() * (self.sxy - self.sx * self.sy / self.n)
        return max(around_mean - explained, 0.0) / max(self.n - 2, 1.0)


class LengthPredictor:
    """`learn` whole groups, `expect` the next. Costs: O(1) a call; memory: a few numbers a prompt."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, _Line] = {}
        self._prompts: dict[Hashable, tuple[float, float]] = {}  # weight (in responses) and mean log of earlier visits
        self._within = (0.0, 0.0)  # degrees of freedom and sum of squares among the members of groups
        self._missed = {True: (0.0, 0.0), False: (0.0, 0.0)}  # by "seen before": number and sum of squares of errors made

    def learn(self, prompt: Hashable, lengths: list[int], *, prompt_tokens: int = 1, task: Hashable = None) -> None:
        """The lengths of one visit's responses; `prompt` is anything that names it, such as its token ids."""
        if not lengths:
            return
        logs = [math.log(max(length, 1)) for length in lengths]
        mean = math.fsum(logs) / len(logs)
        expected = self.expect(prompt, prompt_tokens=prompt_tokens, task=task)
        seen = prompt in self._prompts
        if expected.error < math.inf:
            count, squares = self._missed[seen]
            self._missed[seen] = (count + 1, squares + (mean - math.log(expected.tokens)) ** 2)
        freedom, squares = self._within
        self._within = (freedom + len(logs) - 1, squares + math.fsum((log - mean) ** 2 for log in logs))
        if not seen:
            self._tasks.setdefault(task, _Line()).add(math.log(max(prompt_tokens, 1)), mean)
        weight, before = self._prompts.get(prompt, (0.0, 0.0))
        weight *= _FORGET
        total = weight + len(logs)
        self._prompts[prompt] = (total, (weight * before + len(logs) * mean) / total)

    def expect(self, prompt: Hashable, *, prompt_tokens: int = 1, task: Hashable = None) -> Expected:
        """The prediction; `NOTHING_KNOWN` before there is anything to go by."""
        line = self._tasks.get(task)
        visits, mean = self._prompts.get(prompt, (0.0, 0.0))
        if line is None or line.n < 2:
            return self._make(mean, 0.0, True) if visits else NOTHING_KNOWN
        prior, prior_variance = line.at(math.log(max(prompt_tokens, 1))), line.variance()
        own_variance = self._member_variance() / visits if visits else math.inf
        if prior_variance + own_variance == 0:
            return self._make(mean, 0.0, True)
        trust = prior_variance / (prior_variance + own_variance) if visits else 0.0
        return self._make(prior + trust * (mean - prior), (1 - trust) * prior_variance, bool(visits))

    def _make(self, log_tokens: float, variance: float, seen: bool) -> Expected:
        count, squares = self._missed[seen]
        measured = (variance + squares) / (count + 1)  # the formula's own claim counts as one observation
        return Expected(tokens=math.exp(log_tokens), error=math.sqrt(measured), member_sigma=math.sqrt(self._member_variance()))

    def _member_variance(self) -> float:
        freedom, squares = self._within
        return squares / freedom if freedom else 0.0
