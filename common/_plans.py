"""Which orders and widths an adaptive policy weighs, and how it picks one; why these stands in docs/adaptive.md.

Pure core: the standard library alone. A candidate order takes the k shortest groups first, the m next shortest last, and what
lies between as submitted, longest first or shortest first:

    rollout is the bottleneck     longest first (k = m = 0): nothing long is left for the end, when slots run empty
    training is the bottleneck    shortest first: the trainer starts early and is never without work
    neither                       mixtures: a few short ones for an early start, short ones at the end against the tail

Each is played through `common.forecast` with the lengths expected. Those are uncertain, so there are several draws of them, in
pairs of opposite errors: all candidates are played on the first pair, the best of them on all. What is done now stays unless
another gains more than chance can explain.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from common._draws import MAX_MEMBERS, NUM_DRAWS, Draws, GroupState
from common.forecast import Pipeline, Width, forecast

MAX_GROUPS = 64  # fresh ones; in the model of a larger round, every n-th group stands for n
MAX_BEGUN = 128
_NUM_FIRST = 2  # draws that all candidates are played on
_NUM_FINAL = 4  # candidates played on all draws
_MIN_GAIN = 0.005  # of the time: less is no reason to change the order
_MIN_WIDTH_GAIN = 0.015  # nor this to hold requests back: any of them may turn out to be the longest


class Order(NamedTuple):
    """A candidate order of groups, `first` and `last` in groups."""

    first: int = 0  # shortest ones, ascending
    last: int = 0  # the next shortest, descending
    middle: Literal["submitted", "longest", "shortest"] = "submitted"

    @property
    def name(self) -> str:
        """In words: `2 shortest, then longest first, 8 short ones last`."""
        first = f"{self.first} shortest, then " if self.first else ""
        last = f", {self.last} short ones last" if self.last else ""
        return f"{first}{self.middle}{'' if self.middle == 'submitted' else ' first'}{last}"

    def arrange(self, expected: Sequence[float]) -> list[int]:
        """Indices of groups, given the expected length of each in order of submission."""
        ascending = sorted(range(len(expected)), key=expected.__getitem__)
        first, rest = ascending[: self.first], ascending[self.first :]
        last, middle = rest[: self.last], rest[self.last :]
        if self.middle == "submitted":
            middle.sort()
        elif self.middle == "longest":
            middle.sort(key=lambda index: (-expected[index], index))
        last.sort(key=lambda index: (-expected[index], index))
        return first + middle + last


class Rest(NamedTuple):
    """The rest of a round. Groups begun stand in their order, fresh ones (nothing admitted yet) in order of submission."""

    begun: list[GroupState]
    fresh: list[GroupState]
    current: list[int]  # the order in which fresh groups would be admitted now, indices
    members: int  # requests of a group
    num_to_first: int  # groups that must still end before the first update has all of its own
    per_update: int
    parts: Sequence[float]  # member parts of log lengths that were seen, ascending
    longest: float  # response seen, tokens
    token_s: float  # training of one response token
    update_s: float  # one optimizer step


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do until the next plan."""

    order: list[int]  # indices of fresh groups
    width: Width
    end_s: float  # forecast, from now; NaN where there was nothing to choose from
    name: str = ""  # of the order; `as before` where it stays


@dataclass(slots=True, eq=False)
class _Candidate:
    order: Order | None  # None: the current one
    width: Width
    ends_s: list[float] = field(default_factory=list)  # of each draw that it was played on

    def is_better(self, other: "_Candidate", min_gain: float) -> bool:
        """By more than chance: the mean gain over the draws is above twice its standard error, and above `min_gain`."""
        gains = [theirs - ours for ours, theirs in zip(self.ends_s, other.ends_s, strict=True)]
        mean = sum(gains) / len(gains)
        variance = sum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1)
        return mean > 2 * math.sqrt(variance / len(gains)) and mean * len(gains) > min_gain * _total(other)


def choose(pipeline: Pipeline, rest: Rest, *, reorder: bool) -> Plan:
    """First the order, at full width; then the width, for that order. Cost: some 90 forecasts of at most 192 groups."""
    model = _Model(pipeline, rest)
    full = Width(pipeline.capacity, pipeline.capacity, 0)
    best = _Candidate(None, full)
    expected = [state.expected.tokens for state in rest.fresh]
    if reorder and max(expected) > min(expected):
        orders = _orders(len(rest.fresh), max(1, round(pipeline.capacity / rest.members)), rest.per_update)
        best = _contest(model, best, [_Candidate(order, full) for order in orders], _MIN_GAIN)
    if pipeline.full_step_s > 0:  # else a full engine is no slower
        narrow = [_Candidate(best.order, width) for width in _widths(pipeline.capacity, rest)]
        best = _contest(model, best, narrow, _MIN_WIDTH_GAIN)
    chosen = rest.current if best.order is None else best.order.arrange(expected)
    end_s = _total(best) / len(best.ends_s) if best.ends_s else math.nan
    return Plan(chosen, best.width, end_s, "as before" if best.order is None else best.order.name)


def _contest(model: "_Model", champion: _Candidate, challengers: list[_Candidate], min_gain: float) -> _Candidate:
    """Who is best; the champion stays unless another gains enough. All play the first draws, the best of them all draws."""
    if not challengers:
        return champion
    model.play(challengers, range(_NUM_FIRST))
    final = sorted(challengers, key=_total)[:_NUM_FINAL]
    model.play([champion, *final], range(NUM_DRAWS))
    best = min(final, key=_total)
    return best if best.is_better(champion, min_gain) else champion


def _total(candidate: _Candidate) -> float:
    return sum(candidate.ends_s)


class _Model:
    """The rest of a round, thinned out."""

    def __init__(self, pipeline: Pipeline, rest: Rest) -> None:
        self._every = every = max(-(-len(rest.fresh) // MAX_GROUPS), -(-len(rest.begun) // MAX_BEGUN))
        thin = -(-rest.members // MAX_MEMBERS)
        self._scale = every * thin
        self._pipeline = _thinned(pipeline, self._scale)
        by_length = sorted(range(len(rest.fresh)), key=lambda index: rest.fresh[index].expected.tokens)
        sample = sorted(by_length[min(every, len(by_length)) // 2 :: every])
        places = {index: place for place, index in enumerate(sample)}
        self._current = [places[index] for index in rest.current if index in places]
        self._expected = [rest.fresh[index].expected.tokens for index in sample]
        states = rest.begun[::every] + [rest.fresh[index] for index in sample]
        self._num_begun = len(states) - len(sample)
        draws = Draws(rest.parts, rest.longest, thin, every * rest.token_s, every * rest.update_s / rest.per_update)
        self._draws = [draws.works(states, draw) for draw in range(NUM_DRAWS)]

    def play(self, candidates: Sequence[_Candidate], draws: range) -> None:
        """Each candidate's forecast on those draws that it was not played on yet, in seconds."""
        for candidate in candidates:
            order, width = self._order(candidate.order), self._width(candidate.width)
            for draw in draws[len(candidate.ends_s) :]:
                candidate.ends_s.append(forecast(self._pipeline, self._draws[draw], order, width))

    def _order(self, order: Order | None) -> list[int]:
        if order is None:
            fresh = self._current
        else:
            fresh = Order(self._share(order.first), self._share(order.last), order.middle).arrange(self._expected)
        return [*range(self._num_begun), *(self._num_begun + index for index in fresh)]

    def _width(self, width: Width) -> Width:
        first, rest = (max(round(limit / self._scale), 1) for limit in width[:2])
        return Width(first, rest, self._share(width.num_first))

    def _share(self, groups: int) -> int:
        return -(-groups // self._every)


def _thinned(pipeline: Pipeline, scale: int) -> Pipeline:
    """Whole slots, so much slower or faster that as many tokens a second come out as of one in `scale` of all."""
    slots = max(round(pipeline.capacity / scale), 1)
    slower = slots * scale / pipeline.capacity
    step_s, full_step_s = pipeline.step_s * slower, pipeline.full_step_s * slower
    return replace(pipeline, capacity=float(slots), step_s=step_s, full_step_s=full_step_s)


def _orders(num_groups: int, slots: int, per_update: int) -> list[Order]:
    """`slots`: groups that run together."""
    lead = min(per_update, -(-slots // 2))
    firsts = sorted({min(k, num_groups) for k in (0, lead, 3 * lead, 8 * lead)})
    lasts = sorted({min(m, num_groups) for m in (0, slots // 2, slots, 2 * slots)})
    orders = [Order(k, 0, "longest") for k in firsts]
    orders += [Order(0, m, "shortest") for m in lasts]
    orders += [Order(k, m, "submitted") for k in firsts[:3] for m in lasts]
    return [order for order in orders if order.first + order.last <= num_groups]


def _widths(capacity: float, rest: Rest) -> list[Width]:
    """1, 2, 4 ... groups together: throughout, or until the first update has its groups (or as many as run together)."""
    widths: list[Width] = []
    groups = 1
    while groups * rest.members < capacity:
        limit = groups * rest.members
        widths.append(Width(limit, limit, 0))
        if rest.num_to_first:
            widths.append(Width(limit, capacity, min(rest.num_to_first, groups)))
        groups *= 2
    return widths
