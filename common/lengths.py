"""How long will the responses to a prompt be? Learned inside the run, from every response that was sampled.

Pure core: the standard library alone. All in logarithms, because lengths are spread over orders of magnitude:

    log length = task + slope * log(prompt tokens) + prompt part + member part

Task and slope are a least-squares line through the prompts seen; a prompt's own part is what its earlier visits showed, shrunk
towards the line by as much as they leave open (the posterior mean of normal parts). So a prompt that was seen before is
predicted from its visits, a new one from its task (from all tasks, where fewer than two prompts of its own were seen) and its
own length, and the first of all not at all. The error that a prediction states is measured: how far off the predictions made
before turned out to be.
"""

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from common.errors import UsageError, explain, is_finite

_NUM_PARTS = 512
# The policy that is trained changes, and lengths with it. Weights of what was seen before,
_FORGET_VISITS = 0.5  # of a prompt once it is visited again,
_FORGET_GROUPS = 0.995  # of all other groups with each new one
_MIN_SLOPE_SPREAD = 0.05  # log prompt tokens: prompts this much alike tell nothing about the slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A prediction for the responses to one prompt."""

    tokens: float  # of a response, geometric mean
    error: float  # sigma of the log of `tokens`; inf: nothing is known

    def __post_init__(self) -> None:
        """Raises UsageError where a number is none."""
        if not (is_finite(self.tokens) and self.tokens > 0):
            raise UsageError(explain("expected tokens", "must be a finite number above 0", self.tokens, "use a geometric mean"))
        if not ((is_finite(self.error) and self.error >= 0) or self.error == math.inf):
            rule = "must be a number of 0 or more"
            raise UsageError(explain("expected error", rule, self.error, "use inf where nothing is known"))


NOTHING_KNOWN = Expected(tokens=1.0, error=math.inf)


def _faded(total: float, value: float) -> float:
    """The sum with one more value."""
    return _FORGET_GROUPS * total + value


class _Line:
    """Least squares of y over x, with sums alone. Each y is the mean of a group's log lengths."""

    __slots__ = ("inverse_sizes", "n", "sx", "sxx", "sxy", "sy", "syy")

    def __init__(self) -> None:
        self.n = self.sx = self.sy = self.sxx = self.sxy = self.syy = self.inverse_sizes = 0.0

    def state(self) -> list[float]:
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def restored(cls, state: list[float]) -> "_Line":
        line = cls()
        for name, value in zip(cls.__slots__, state, strict=True):
            setattr(line, name, float(value))
        return line

    def add(self, x: float, y: float, size: int) -> None:
        self.n, self.inverse_sizes = _faded(self.n, 1.0), _faded(self.inverse_sizes, 1 / size)
        self.sx, self.sy = _faded(self.sx, x), _faded(self.sy, y)
        self.sxx, self.sxy, self.syy = _faded(self.sxx, x * x), _faded(self.sxy, x * y), _faded(self.syy, y * y)

    def slope(self) -> float:
        spread = self.sxx - self.sx * self.sx / self.n
        return (self.sxy - self.sx * self.sy / self.n) / (spread + self.n * _MIN_SLOPE_SPREAD**2)

    def at(self, x: float) -> float:
        return self.sy / self.n + self.slope() * (x - self.sx / self.n)

    def variance(self, member_variance: float) -> float:
        """Of prompts around the line: that of y, less what the members' own differences make of it."""
        around_mean = self.syy - self.sy * self.sy / self.n
        explained = self.slope() * (self.sxy - self.sx * self.sy / self.n)
        return max((around_mean - explained) / max(self.n - 2, 1.0) - member_variance * self.inverse_sizes / self.n, 0.0)


def _plain(name: Hashable) -> Any:
    """A prompt's or task's name in JSON: tuples become lists, which no name can hold."""
    if isinstance(name, tuple):
        return [_plain(part) for part in name]
    if name is None or isinstance(name, str | int | float):
        return name
    raise UsageError(explain("prompt or task", "must be made of numbers, strings, None and tuples", name, "use token ids"))


def _name(plain: Any) -> Hashable:
    """The inverse of `_plain`."""
    if isinstance(plain, dict):
        raise TypeError("a name must not be a mapping")
    return tuple(map(_name, plain)) if isinstance(plain, list) else plain


def _pair(values: list[float]) -> tuple[float, float]:
    first, second = values
    return float(first), float(second)


class LengthPredictor:
    """`learn` whole groups, `expect` the next. Costs: O(1) a call; memory: a few numbers a prompt."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, _Line] = {}
        self._all_tasks = _Line()
        self._prompts: dict[Hashable, tuple[float, float]] = {}  # weight (in responses) and mean log of earlier visits
        self._within = (0.0, 0.0)  # degrees of freedom and sum of squares among the members of groups
        self._parts: deque[float] = deque(maxlen=_NUM_PARTS)  # member parts of the latest responses
        self.longest = 1.0  # response so far, tokens
        self._missed = {True: (0.0, 0.0), False: (0.0, 0.0)}  # by "seen before": number and sum of squares of errors made

    def learn(self, prompt: Hashable, lengths: list[int], *, prompt_tokens: int = 1, task: Hashable = None) -> None:
        """The lengths of one visit's responses; `prompt` is anything that names it, such as its token ids."""
        if not lengths:
            return
        self.longest = max(self.longest, *lengths)
        logs = [math.log(max(length, 1)) for length in lengths]
        mean = math.fsum(logs) / len(logs)
        expected = self.expect(prompt, prompt_tokens=prompt_tokens, task=task)
        seen = prompt in self._prompts
        if expected.error < math.inf:
            count, squares = self._missed[seen]
            miss = mean - math.log(expected.tokens)
            self._missed[seen] = (_faded(count, 1.0), _faded(squares, miss**2))
        freedom, squares = self._within
        around_mean = math.fsum((log - mean) ** 2 for log in logs)
        self._within = (_faded(freedom, len(logs) - 1), _faded(squares, around_mean))
        scale = math.sqrt(len(logs) / (len(logs) - 1)) if len(logs) > 1 else 0.0  # the mean follows its own members
        self._parts.extend(scale * (log - mean) for log in logs)
        if not seen:
            for line in (self._tasks.setdefault(task, _Line()), self._all_tasks):
                line.add(math.log(max(prompt_tokens, 1)), mean, len(logs))
        weight, before = self._prompts.get(prompt, (0.0, 0.0))
        weight *= _FORGET_VISITS
        total = weight + len(logs)
        self._prompts[prompt] = (total, (weight * before + len(logs) * mean) / total)

    def state(self) -> dict[str, Any]:
        """Plain JSON values; `restore` takes them. Raises UsageError for a name that JSON has no value for."""
        return {
            "tasks": [[_plain(task), line.state()] for task, line in self._tasks.items()],
            "all_tasks": self._all_tasks.state(),
            "prompts": [[_plain(prompt), *visits] for prompt, visits in self._prompts.items()],
            "within": list(self._within),
            "parts": list(self._parts),
            "longest": self.longest,
            "missed": [list(self._missed[seen]) for seen in (True, False)],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Exactly as where `state` was called."""
        self._tasks = {_name(task): _Line.restored(line) for task, line in state["tasks"]}
        self._all_tasks = _Line.restored(state["all_tasks"])
        self._prompts = {_name(prompt): (float(weight), float(mean)) for prompt, weight, mean in state["prompts"]}
        self._within = _pair(state["within"])
        self._parts = deque(map(float, state["parts"]), maxlen=_NUM_PARTS)
        self.longest = float(state["longest"])
        self._missed = dict(zip((True, False), map(_pair, state["missed"]), strict=True))

    @property
    def member_parts(self) -> list[float]:
        """Log length less the mean of its group, of the latest responses, ascending."""
        return sorted(self._parts)

    def expect(self, prompt: Hashable, *, prompt_tokens: int = 1, task: Hashable = None) -> Expected:
        """The prediction; `NOTHING_KNOWN` before there is anything to go by."""
        line = self._tasks.get(task)
        if line is None or line.n <= 1:
            line = self._all_tasks
        visits, mean = self._prompts.get(prompt, (0.0, 0.0))
        if line.n <= 1:
            return self._make(mean, 0.0, True) if visits else NOTHING_KNOWN
        within = self._member_variance()
        prior, prior_variance = line.at(math.log(max(prompt_tokens, 1))), line.variance(within)
        if not visits:
            return self._make(prior, prior_variance, False)
        own_variance = within / visits
        trust = prior_variance / (prior_variance + own_variance) if own_variance else 1.0
        return self._make(prior + trust * (mean - prior), (1 - trust) * prior_variance, True)

    def _make(self, log_tokens: float, variance: float, seen: bool) -> Expected:
        count, squares = self._missed[seen]
        measured = (variance + squares) / (count + 1)  # the formula's own claim counts as one observation
        log_tokens = min(max(log_tokens, 0.0), math.log(self.longest))  # a line says nothing of lengths that were never seen
        return Expected(tokens=math.exp(log_tokens), error=math.sqrt(measured))

    def _member_variance(self) -> float:
        freedom, squares = self._within
        return squares / freedom if freedom else 0.0
