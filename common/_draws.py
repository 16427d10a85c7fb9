"""From expected lengths to definite ones: a few draws of how long each response may be, always the same for the same group.

Pure core: the standard library alone, without random numbers. Errors of the prediction are normal quantiles dealt out to groups
by their order, the spread within a group is that of the expected order statistics of its members. Draws come in pairs of opposite
errors, so that they average out.
"""

import math
from typing import NamedTuple

from common.forecast import Work
from common.lengths import Expected

NUM_DRAWS = 4
MAX_MEMBERS = 4  # of a larger group, every n-th member stands for n
# Quantiles in the middle of 16 equal shares, and expected order statistics of 8, both of a standard normal variable.
_GROUP_Z = (
    -1.863,
    -1.318,
    -1.010,
    -0.776,
    -0.579,
    -0.402,
    -0.237,
    -0.078,
    0.078,
    0.237,
    0.402,
    0.579,
    0.776,
    1.010,
    1.318,
    1.863,
)
_MEMBER_Z = (-1.424, -0.852, -0.473, -0.153, 0.153, 0.473, 0.852, 1.424)


class GroupState(NamedTuple):
    """What is known of an open group."""

    order: int
    expected: Expected
    waiting: list[int]  # members not admitted
    running: list[tuple[int, float]]  # members in flight, and the tokens that each has by now
    num_done_tokens: int  # of the responses that are in


def draw_works(states: list[GroupState], draw: int, thin: int, token_s: float, update_s: float) -> list[Work]:
    """Draw number `draw` of the groups, every `thin`-th member of each; `update_s`: a group's share of an optimizer step."""
    sign = -1.0 if draw % 2 else 1.0
    return [
        _work(state, sign * _GROUP_Z[(7 * state.order + 3 + 5 * (draw // 2)) % 16], thin, token_s, update_s) for state in states
    ]


def _work(state: GroupState, z: float, thin: int, token_s: float, update_s: float) -> Work:
    expected, order = state.expected, state.order
    center, sigma = expected.tokens * math.exp(expected.error * z), expected.member_sigma
    lengths = [center * math.exp(sigma * one) for one in _MEMBER_Z]
    waiting = [lengths[(5 * member + 3 * order) % 8] for member in state.waiting]
    running, total = [], float(state.num_done_tokens) + sum(waiting)
    for member, had in state.running:
        length = lengths[(5 * member + 3 * order) % 8]
        # Past its expected end: the mean excess of a log-normal is about sigma times what it has.
        running.append(length - had if had < length else had * max(sigma, 0.05))
        total += had + running[-1]
    if thin > 1:  # the longest is always among them: a group is complete when it is
        waiting = sorted(waiting, reverse=True)[::thin]
        running = sorted(running, reverse=True)[::thin]
    return Work(tuple(waiting), tuple(running), total * token_s + update_s)
