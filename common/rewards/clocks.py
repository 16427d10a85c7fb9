"""When a call is overdue, and when it has used so much CPU time that its worker is demoted: learned from the calls before."""

from collections import deque

OVERDUE_S = 0.005  # no call is overdue before
DEMOTE_S = 0.01  # no worker is demoted before
HANG_S = 0.15  # CPU time after which a call is taken for one that hangs, whatever else the machine does
_HISTORY = 200  # calls
_EACH = 10  # calls, after which the shares are taken again
_PRIOR = 5  # part of the time limit that counts as long while no call of a user's function has been answered


class Clocks:
    """What follows from the durations of the last answered calls, in seconds.

    Shares and not multiples of a mean: whatever the scorer costs, most calls are ordinary. A function that takes three seconds
    each time has few overdue calls, and workers whose caches are still cold are not replaced by others with colder ones.
    """

    def __init__(self, limit_s: float, *, is_known: bool) -> None:
        """`is_known`: calls are known to be short before one was answered."""
        self._hang_s = min(HANG_S, limit_s / _PRIOR)
        self._num_noted = 0
        self._own_s: deque[float] = deque(maxlen=_HISTORY)
        self._cpu_s: deque[float] = deque(maxlen=_HISTORY)
        # Time of a call, that in which it waited for a core aside, after which it no longer counts as one of those side by side.
        self.overdue_s = OVERDUE_S if is_known else limit_s / _PRIOR
        # CPU time of a call after which its worker gets less of a core; after twice that still less.
        self.demote_s = DEMOTE_S if is_known else limit_s / _PRIOR

    @property
    def enough_s(self) -> float:
        """CPU time after which a call that has passed its time limit is not asked again."""
        return max(self.demote_s, self._hang_s)

    def note(self, own_s: float, cpu_s: float) -> None:
        """A call was answered. `own_s`: its duration, the time in which it waited for a core aside."""
        self._own_s.append(own_s)
        self._cpu_s.append(cpu_s)
        self._num_noted += 1
        if self._num_noted > _EACH and self._num_noted % _EACH:
            return  # sorting costs as much as a call
        self.overdue_s = max(OVERDUE_S, _share(self._own_s, 0.95))
        self.demote_s = max(DEMOTE_S, 2 * _share(self._cpu_s, 0.98))


def _share(values: deque[float], share: float) -> float:
    """What this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
