"""How much slower rollout and training are beside each other than alone, from one recorded run.

On each side, the seconds of an event (a response, an accumulation) are compared with what the fitted models say it takes alone:

    alone_s = (seconds - beside_s) + beside_s / factor        beside_s: those during which the other side ran too

summed over the events that lay mostly beside. `alone_s` is first scaled so that the events that lay alone come out right: that a
machine was faster or slower in this run than in the one that the models come from has nothing to do with contention. The round
time would be the worse measure: under first come first served one side waits for most of a round, and the noise of all of it
would be taken for contention.
"""

from collections.abc import Sequence

import numpy as np

from common.simulation.fit import Steps
from common.simulation.models import EngineModel, TrainerModel
from common.simulation.recording import Floats, RecordedRound

_MOSTLY = 0.5  # share of an event's seconds from which on it lay beside the other side
_HARDLY = 0.05  # share up to which it lay alone
MIN_BESIDE = 8  # events of a side: fewer say nothing


class _Side:
    """Events of one side: seconds, of those beside the other side, and seconds alone by the model; (N,) each."""

    def __init__(self, seconds: Floats, beside_s: Floats, alone_s: Floats) -> None:
        share = beside_s / np.maximum(seconds, 1e-9)
        is_beside, is_alone = share >= _MOSTLY, share <= _HARDLY
        self.num_beside = int(is_beside.sum())
        drift = seconds[is_alone].sum() / alone_s[is_alone].sum() if is_alone.sum() >= MIN_BESIDE else 1.0
        self._beside_s = float(beside_s[is_beside].sum())
        self._work_s = float((drift * alone_s - (seconds - beside_s))[is_beside].sum())

    @property
    def speed(self) -> float:
        """Beside the other side; 1 alone."""
        return min(1.0, max(self._work_s / self._beside_s, 1e-3))


def contention_of(rounds: Sequence[RecordedRound], engine: EngineModel, trainer: TrainerModel) -> float | None:
    """The one factor, at least 1, by which both sides take longer; None where too few events lay beside the other side."""
    sides = [_rollout_side(rounds, engine), _train_side(rounds, trainer)]
    if min(side.num_beside for side in sides) < MIN_BESIDE:
        return None
    # Both sides spend the same seconds beside each other, so their speeds count alike.
    return len(sides) / sum(side.speed for side in sides)


def _rollout_side(rounds: Sequence[RecordedRound], engine: EngineModel) -> _Side:
    seconds, beside_s, alone_s = [], [], []
    for one in rounds:
        for served in one.served:
            steps = Steps(served)
            seconds.append(steps.seconds)
            beside_s.append(_within(one.training, served.start_s, served.end_s))
            alone_s.append(steps.alone_s(engine))
    return _Side(*(np.concatenate(parts) for parts in (seconds, beside_s, alone_s)))


def _train_side(rounds: Sequence[RecordedRound], trainer: TrainerModel) -> _Side:
    starts, ends = np.concatenate([one.accumulations for one in rounds]).T
    beside_s = np.concatenate([_within(one.sampling[None], *one.accumulations.T) for one in rounds])
    tokens = np.concatenate([one.group_tokens for one in rounds])
    return _Side(ends - starts, beside_s, trainer.group_s + trainer.token_s * tokens)


def _within(intervals: Floats, starts: Floats, ends: Floats) -> Floats:
    """Seconds of each [start, end] that lie in one of the intervals (M, 2), which do not overlap; (N,)."""
    ordered = intervals[np.argsort(intervals[:, 0])]
    times = np.concatenate([[0.0], ordered.ravel()])
    covered = np.concatenate([[0.0], np.cumsum(np.stack([np.zeros(len(ordered)), np.diff(ordered)[:, 0]], 1).ravel())])
    return np.asarray(np.interp(ends, times, covered) - np.interp(starts, times, covered))
