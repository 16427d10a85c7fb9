"""From expected lengths to definite ones: a few draws of how long each response may be, always the same for the same group.

Pure core: the standard library alone, without random numbers. The error of a group's prediction is a normal quantile, the parts
of its members are taken from those that the run has shown, so that responses which loop up to the limit come up as often as
they did. Both are dealt out evenly, by multiples of the golden ratio. Draws come in pairs of opposite errors, which average out.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from common.forecast import Work
from common.lengths import Expected

NUM_DRAWS = 8
MAX_MEMBERS = 8  # of a larger group, every n-th member stands for n
_GOLDEN = (math.sqrt(5) - 1) / 2
_NUM_PLACES = 1 << 20  # an order may be any number, such as a time stamp, of which multiples are too coarse
# Of a standard normal variable, in the middle of 16 equal shares, the upper half.
_NORMAL = (0.078, 0.237, 0.402, 0.579, 0.776, 1.010, 1.318, 1.863)


class GroupState(NamedTuple):
    """What is known of an open group."""

    order: int
    expected: Expected
    waiting: list[int]  # members not admitted
    running: list[tuple[int, float]]  # members in flight, and the tokens that each has by now
    num_done_tokens: int  # of the responses that are in


class Draws(NamedTuple):
    """How to make works of states."""

    parts: Sequence[float]  # member parts of log lengths that were seen, ascending; none: all members are alike
    longest: float  # response seen, tokens: there is a limit, and what loops runs into it
    thin: int  # every n-th member is played
    token_s: float  # training of one response token
    group_s: float  # a group's share of an optimizer step

    def works(self, states: list[GroupState], draw: int) -> list[Work]:
        """Draw number `draw`."""
        return [self._work(state, draw) for state in states]

    def _work(self, state: GroupState, draw: int) -> Work:
        center = math.log(state.expected.tokens) + state.expected.error * _normal(state.order, draw)
        longest = math.log(self.longest)
        lengths = [math.exp(min(center + part, longest)) for part in self._parts(state, draw)]
        waiting = lengths[: len(state.waiting)]
        running, total = [], state.num_done_tokens + sum(waiting)
        for (_, had), length in zip(state.running, lengths[len(waiting) :], strict=True):
            # Past its expected end: what a long one still has to go is in proportion to what it has.
            running.append(length - had if had < length else min(0.2 * had, max(self.longest - had, 1.0)))
            total += had + running[-1]
        if self.thin > 1:  # the longest is always among them: a group is complete when it is
            waiting = sorted(waiting, reverse=True)[:: self.thin]
            running = sorted(running, reverse=True)[:: self.thin]
        return Work(tuple(waiting), tuple(running), total * self.token_s + self.group_s)

    def _parts(self, state: GroupState, draw: int) -> list[float]:
        """Of the members that wait, then of those that run."""
        members = [*state.waiting, *(member for member, _ in state.running)]
        if not self.parts:
            return [0.0] * len(members)
        size = len(self.parts)
        shares = (_share(state.order * 8 + member, draw) for member in members)
        return [self.parts[min(int(share * size), size - 1)] for share in shares]


def _share(place: int, draw: int) -> float:
    """Between 0 and 1, evenly over places; an odd draw is the mirror image of the even one before it."""
    share = (place % _NUM_PLACES * _GOLDEN + (draw // 2) * 0.5 * _GOLDEN * _GOLDEN + 0.37) % 1.0
    return 1 - share if draw % 2 else share


def _normal(order: int, draw: int) -> float:
    """The quantile of a standard normal variable at the group's share."""
    half = len(_NORMAL)
    place = min(int(_share(5 * order + 3, draw) * 2 * half), 2 * half - 1)
    return _NORMAL[place - half] if place >= half else -_NORMAL[half - 1 - place]
