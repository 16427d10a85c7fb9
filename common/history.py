"""What a run has shown so far, for a policy that plans: lengths, the engines' step time, the trainer's speed.

Pure core: the standard library alone. One `History` serves all rounds of a run; the policy of each round reads and extends it.
"""

from typing import Any

from common.errors import DataError, explain
from common.lengths import LengthPredictor

_FORGET = 0.999  # weight of earlier responses with each new one: the load changes
_MAX_STEP_S = 3600.0  # longer than any: the clock jumped
_MAX_OCCUPANCY = 2.0  # engines that shrink hold more than they may, for a while


class StepTime:
    """Seconds of an engine step as a line over occupancy (running / capacity, 0 to 1), by least squares over responses.

    The slope is shrunk by its own standard error, against the steepest line there can be (through 0): where the occupancy
    hardly varied, a fuller engine counts as no slower.
    """

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = self._yy = 0.0

    def state(self) -> list[float]:
        """Its sums; `restore` takes them."""
        return [self._n, self._x, self._y, self._xx, self._xy, self._yy]

    def restore(self, state: list[float]) -> None:
        """Exactly as where `state` was called."""
        self._n, self._x, self._y, self._xx, self._xy, self._yy = map(float, state)

    def learn(self, step_s: float, occupancy: float) -> None:
        """One response: seconds per token, and the mean occupancy over its life. Numbers that cannot be are not learned."""
        if not (0 < step_s <= _MAX_STEP_S and 0 <= occupancy <= _MAX_OCCUPANCY):  # nor NaN, which would stay for ever
            return
        x, y = occupancy, step_s
        self._n, self._x, self._y = 1 + _FORGET * self._n, x + _FORGET * self._x, y + _FORGET * self._y
        self._xx, self._xy, self._yy = x * x + _FORGET * self._xx, x * y + _FORGET * self._xy, y * y + _FORGET * self._yy

    def line(self) -> tuple[float, float] | None:
        """(seconds at occupancy 0, further seconds at occupancy 1), neither below 0; None while unknown."""
        if not self._n:
            return None
        mean_x, mean_y = self._x / self._n, self._y / self._n
        var_x, var_y = self._xx / self._n - mean_x * mean_x, self._yy / self._n - mean_y * mean_y
        covariance = self._xy / self._n - mean_x * mean_y
        if self._n <= 2 or var_x <= 1e-12 or covariance <= 0:
            return mean_y, 0.0
        slope = covariance / var_x
        error = max(var_y - slope * covariance, 0.0) / (var_x * (self._n - 2))  # of the slope, squared
        steepest = mean_y / mean_x
        slope = min(slope * steepest**2 / (steepest**2 + error), steepest)
        return max(mean_y - slope * mean_x, 0.0), slope


class History:
    """Shared by the rounds of one run."""

    def __init__(self) -> None:
        self.lengths = LengthPredictor()
        self.step_time = StepTime()
        self.trainer_token_s: float | None = None  # seconds of accumulating one response token
        self.trainer_update_s = 0.0  # seconds of one optimizer step

    def state(self) -> dict[str, Any]:
        """All of it as plain JSON values, for a checkpoint; floats survive JSON exactly.

        Raises UsageError where a prompt or task is named by anything but numbers, strings, None and tuples of them.
        """
        return {
            "lengths": self.lengths.state(),
            "step_time": self.step_time.state(),
            "trainer_token_s": self.trainer_token_s,
            "trainer_update_s": self.trainer_update_s,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Forecast from now on exactly as where `state` was called. Raises DataError; nothing has changed then."""
        try:
            lengths, step_time = LengthPredictor(), StepTime()
            lengths.restore(state["lengths"])
            step_time.restore(state["step_time"])
            token_s, update_s = state["trainer_token_s"], float(state["trainer_update_s"])
            token_s = None if token_s is None else float(token_s)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            rule = f"must be what History.state gave ({type(error).__name__}: {error})"
            raise DataError(
                explain("history", rule, str(state)[:60], "remove `history` from state.json: it is learned anew")
            ) from error
        self.lengths, self.step_time = lengths, step_time
        self.trainer_token_s, self.trainer_update_s = token_s, update_s
