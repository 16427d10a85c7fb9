"""One-step-off asynchronous training, for comparison only. It is OFF-POLICY: rollout of round r+1 runs beside the training of
round r, so it samples from the weights of before that training, and each gradient is one round behind its samples' weights.
RolloutPipe does not do this; the figure says what staying on-policy costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AsyncRounds:
    """Seconds since the start, by round."""

    rollout_starts: list[float]
    rollout_ends: list[float]
    train_starts: list[float]
    train_ends: list[float]

    @property
    def period_s(self) -> float:
        """From one round's end of training to the next, without the first round, which has nothing to run beside."""
        if len(self.train_ends) == 1:
            return self.train_ends[0]
        return (self.train_ends[-1] - self.train_ends[0]) / (len(self.train_ends) - 1)


def one_step_off(rollouts_s: Sequence[float], trainings_s: Sequence[float], publish_s: float = 0.0) -> AsyncRounds:
    """At least one round, of which rollout and training take so long alone.

    Rollout r needs the engines, and the weights after training r-2; training r needs rollout r and the trainer.
    In a steady state the period is the longer of the two.
    """
    rounds = AsyncRounds([], [], [], [])
    for index, (rollout_s, training_s) in enumerate(zip(rollouts_s, trainings_s, strict=True)):
        engines_free_s = rounds.rollout_ends[-1] if index else 0.0
        weights_there_s = rounds.train_ends[index - 2] + publish_s if index > 1 else 0.0
        rounds.rollout_starts.append(max(engines_free_s, weights_there_s))
        rounds.rollout_ends.append(rounds.rollout_starts[-1] + rollout_s)
        trainer_free_s = rounds.train_ends[-1] if index else 0.0
        rounds.train_starts.append(max(rounds.rollout_ends[-1], trainer_free_s))
        rounds.train_ends.append(rounds.train_starts[-1] + training_s)
    return rounds
