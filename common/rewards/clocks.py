"""When a call is overdue, and when it has used so much CPU time that its worker is demoted. Both learn from the calls before."""

import statistics
from collections import deque

OVERDUE_S = 0.03  # wall clock; no call is overdue before
DEMOTE_S = 0.1  # CPU time; no worker is demoted before
_FACTOR = 10  # times the median of the last calls
_FIRST_FACTOR = 3  # of a worker's first call, in which it may import what all later ones find
_HISTORY = 64  # calls
_PRIOR = 5  # part of the time limit that counts as long while no call has been answered


class Clocks:
    """Durations of answered calls, a worker's first ones apart, and what follows from them. In seconds."""

    def __init__(self, limit_s: float) -> None:
        self._durations: dict[bool, deque[float]] = {is_first: deque(maxlen=_HISTORY) for is_first in (True, False)}
        self._long_s = dict.fromkeys((True, False), limit_s / _PRIOR)

    def note(self, duration_s: float, *, is_first: bool) -> None:
        """A call was answered."""
        durations = self._durations[is_first]
        durations.append(duration_s)
        self._long_s[is_first] = statistics.median(durations) * (_FIRST_FACTOR if is_first else _FACTOR)

    def overdue_s(self, *, is_first: bool) -> float:
        """Wall clock after which a call no longer counts as one of those that run side by side."""
        return max(OVERDUE_S, self._long_s[is_first])

    def demote_s(self, *, is_first: bool) -> tuple[float, float]:
        """CPU time of a call after which its worker gets less of a core, and after which only what nobody else wants."""
        long_s = max(DEMOTE_S, self._long_s[is_first])
        return long_s, 3 * long_s
