"""The fit behind `paper.FITTED` and `paper.ORDER_SPREAD`; the same result on every machine, in minutes.

    python -m common.simulation.paper_fit

Three numbers on four totals, by a compass search: step one number at a time, keep what is better, halve the steps. The rounds
that it simulates (seed 1) are others than those of `simulate paper` (seed 0).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from common.simulation.paper import FITTED, ORDER_SPREAD, Model, PaperSettings, paper_scenario
from common.simulation.paper_figures import R2T_END_S
from common.simulation.run import simulate

TARGETS = {key: seconds for key, seconds in R2T_END_S.items() if key[0] == "lsat_ar"}
SPREAD_TARGET = ("sci_xw", 96, "cgp")
START = Model(capacity=80, group_s=5.3, cap_ratio=0.5)
ROUNDS = PaperSettings(rounds=8, seed=1, order_spread=0.0)
SPREAD_ROUNDS = PaperSettings(rounds=32, seed=1)


@dataclass(frozen=True, slots=True)
class Steps:
    """How far the search goes at once; 0 holds a number."""

    capacity: int = 8
    group_s: float = 0.2
    cap_ratio: float = 0.1

    def halved(self) -> "Steps":
        """Capacity is a whole number."""
        return Steps(max(1, self.capacity // 2), self.group_s / 2, self.cap_ratio / 2)


SMALLEST_GROUP_S = 0.02  # the search ends below this step


def total_s(key: tuple[str, int, str], settings: PaperSettings, model: Model) -> float:
    """Mean rollout-to-train-end time of the rounds."""
    rounds = simulate(paper_scenario(*key, settings, model)).rounds
    return sum(metrics.r2t_end_s or 0.0 for metrics in rounds) / len(rounds)


def fit_error(model: Model) -> float:
    """Root mean square of the relative errors of the four totals."""
    errors = [total_s(key, ROUNDS, model) / seconds - 1 for key, seconds in TARGETS.items()]
    return math.sqrt(sum(error * error for error in errors) / len(errors))


def fit_model(error_of: Callable[[Model], float], start: Model = START, steps: Steps | None = None) -> tuple[Model, float]:
    """A local minimum of `error_of` in capacity, group_s and cap_ratio, and its value."""
    steps = steps or Steps()
    model, error = start, error_of(start)
    while steps.group_s >= SMALLEST_GROUP_S:
        better = _step(error_of, model, error, steps)
        if better is None:
            steps = steps.halved()
        else:
            model, error = better
    return model, error


def _step(error_of: Callable[[Model], float], model: Model, error: float, steps: Steps) -> tuple[Model, float] | None:
    """The first neighbour that is better."""
    for name in Steps.__slots__:
        for step in (getattr(steps, name), -getattr(steps, name)):
            value = getattr(model, name) + step
            if not step or value <= 0:
                continue
            other = replace(model, **{name: value})
            other_error = error_of(other)
            if other_error < error:
                return other, other_error
    return None


def fit_order_spread(model: Model) -> float:
    """Groups by which requests arrive late at most, to a half, so that Sci-XW's `cgp` at R = 96 takes what it took.

    The round becomes longer with the spread, so halving finds it.
    """
    low, high = 0.0, 64.0
    while high - low > 0.5:
        middle = (low + high) / 2
        total = total_s(SPREAD_TARGET, replace(SPREAD_ROUNDS, order_spread=middle), model)
        low, high = (middle, high) if total < R2T_END_S[SPREAD_TARGET] else (low, middle)
    return high


def main() -> None:
    """Fit, print, and say how well other assumptions would fit."""
    model, error = fit_model(fit_error)
    print(f"fitted on {len(TARGETS)} totals of LSAT-AR: {model}, error {error:.2%}\nin use: {FITTED}", flush=True)
    print(f"order_spread fitted on {SPREAD_TARGET}: {fit_order_spread(FITTED)}, in use: {ORDER_SPREAD}", flush=True)
    for step_share in (0.0, 0.25, 0.75, 0.95):
        model, error = fit_model(fit_error, replace(START, step_share=step_share))
        print(f"with step_share {step_share}: {model}, error {error:.2%}", flush=True)
    for base in (START, replace(START, prompt_sigma=0.1, member_sigma=0.25, step_share=0.75)):
        for cap_ratio in (0.5, 0.7, 1.0, 1.2, 3.0):
            model, error = fit_model(fit_error, replace(base, cap_ratio=cap_ratio), Steps(cap_ratio=0.0))
            print(f"with cap_ratio {cap_ratio}: {model}, error {error:.2%}", flush=True)


if __name__ == "__main__":
    main()
