"""In which order problems are drawn: seeded, without repeats, resumable.

Each epoch is a seeded permutation of all problems. `when_short` says what a round does that finds fewer than it asks for:

    wrap     goes on into the next epoch. What this round has drawn already stands last there: no round holds a problem twice,
             and each is still drawn once an epoch. (Only a set smaller than the round repeats within it.)
    short    takes what is left; the round after starts the next epoch
    stop     draws nothing: the run ends

Pure: no clock, no global generator. Invariant: in each epoch `order` is a permutation, and its first `position` were drawn.
"""

import random
from typing import Any, Literal

from common.errors import DataError, explain

WhenShort = Literal["wrap", "short", "stop"]


class PromptSampler:
    """Draws indices of problems, round by round."""

    _order: list[int]  # of the epoch
    _position: int

    def __init__(self, num_problems: int, seed: int, when_short: WhenShort = "wrap") -> None:
        if num_problems < 1:
            raise DataError(explain("workload", "must hold at least one problem", num_problems, "check workload.path or size"))
        self._num_problems = num_problems
        self._seed = seed
        self._when_short = when_short
        self._drawn: list[int] = []  # in this round
        self._start_epoch(0, [])

    @property
    def epoch(self) -> int:
        """Of the last draw, from 0."""
        return self._epoch

    def draw(self, count: int) -> list[int]:
        """The indices of a new round; empty under `stop` where fewer than `count` are left."""
        left = self._num_problems - self._position
        if self._when_short == "stop" and left < count:
            return []
        self._drawn = []
        if self._when_short == "short":
            if left == 0:
                self._start_epoch(self._epoch + 1, [])
            count = min(count, self._num_problems - self._position)
        return [self._next() for _ in range(count)]

    def draw_extra(self) -> int | None:
        """One more problem for the round that was drawn last (a refill).

        None where every problem is in the round already, and outside `wrap` also at the end of the epoch.
        """
        if self._position == self._num_problems and self._when_short != "wrap":
            return None
        if len(set(self._drawn)) == self._num_problems:
            return None
        return self._next()

    def state(self) -> dict[str, Any]:
        """Plain JSON of the size of a round."""
        return {
            "num_problems": self._num_problems,
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "last": list(self._last),
            "drawn": list(self._drawn),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state` was taken. Raises DataError where it is of another set or seed."""
        _check_state(state)
        for field, own in (("num_problems", self._num_problems), ("seed", self._seed)):
            if state[field] != own:
                rule = f"must be that of the run to resume ({field} {state[field]})"
                raise DataError(explain("workload", rule, own, "use the configuration in its run directory"))
        self._start_epoch(state["epoch"], state["last"])
        self._position = state["position"]
        self._drawn = list(state["drawn"])

    def _next(self) -> int:
        if self._position == self._num_problems:
            self._start_epoch(self._epoch + 1, self._drawn)
        index = self._order[self._position]
        self._position += 1
        self._drawn.append(index)
        return index

    def _start_epoch(self, epoch: int, last: list[int]) -> None:
        """Shuffle; the problems in `last` are moved behind the others, both in shuffled order."""
        order = list(range(self._num_problems))
        random.Random(f"{self._seed}:{epoch}").shuffle(order)
        late = frozenset(last)
        self._order = sorted(order, key=late.__contains__)
        self._epoch = epoch
        self._position = 0
        self._last = sorted(late)


def _check_state(state: Any) -> None:
    """Raises DataError unless it has the parts of `PromptSampler.state`."""
    counts, lists = ("num_problems", "epoch", "position"), ("last", "drawn")
    is_whole = isinstance(state, dict) and all(type(state.get(name)) is int and state[name] >= 0 for name in counts)
    if not (is_whole and "seed" in state and all(isinstance(state.get(name), list) for name in lists)):
        remedy = "move that checkpoint away, then resume again: the one before it counts"
        raise DataError(explain("sampler", "must be the state of an order of problems", str(state)[:60], remedy))
