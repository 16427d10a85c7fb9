"""The fit behind `paper.FITTED` and `paper.ORDER_SPREAD`; the same result on every machine, in minutes.

    python -m common.simulation.paper_fit

Three numbers on four totals, by a compass search: step one number at a time, keep what is better, halve the steps. The rounds
that it simulates (seed 1) are others than those of `simulate paper` (seed 0).
"""

import math
from collections.abc import Callable
from dataclasses import replace

from common.simulation.paper import FITTED, ORDER_SPREAD, STEP_SHARE, Fit, PaperSettings, paper_scenario
from common.simulation.paper_figures import R2T_END_S
from common.simulation.run import simulate

TARGETS = {key: seconds for key, seconds in R2T_END_S.items() if key[0] == "lsat_ar"}
SPREAD_TARGET = ("sci_xw", 96, "cgp")
STEPS = Fit(capacity=8, group_s=0.2, cap_ratio=0.1)
SMALLEST_STEP_S = 0.02  # of group_s; the others are halved with it
START = Fit(capacity=80, group_s=5.3, cap_ratio=0.5)
ROUNDS = PaperSettings(rounds=8, seed=1, order_spread=0.0)
SPREAD_ROUNDS = PaperSettings(rounds=32, seed=1)
_NAMES = ("capacity", "group_s", "cap_ratio")


def total_s(key: tuple[str, int, str], settings: PaperSettings, fit: Fit, step_share: float = STEP_SHARE) -> float:
    """Mean rollout-to-train-end time of the rounds."""
    rounds = simulate(paper_scenario(*key, settings, fit=fit, step_share=step_share)).rounds
    return sum(metrics.r2t_end_s or 0.0 for metrics in rounds) / len(rounds)


def fit_error(fit: Fit, step_share: float = STEP_SHARE) -> float:
    """Root mean square of the relative errors of the four totals."""
    errors = [total_s(key, ROUNDS, fit, step_share) / seconds - 1 for key, seconds in TARGETS.items()]
    return math.sqrt(sum(error * error for error in errors) / len(errors))


def fit_engine(error_of: Callable[[Fit], float], start: Fit = START, steps: Fit = STEPS) -> tuple[Fit, float]:
    """A local minimum of `error_of` and its value."""
    fit, error = start, error_of(start)
    while steps.group_s >= SMALLEST_STEP_S:
        better = _step(error_of, fit, error, steps)
        if better is None:
            steps = Fit(max(1, steps.capacity // 2), steps.group_s / 2, steps.cap_ratio / 2)
        else:
            fit, error = better
    return fit, error


def _step(error_of: Callable[[Fit], float], fit: Fit, error: float, steps: Fit) -> tuple[Fit, float] | None:
    """The first neighbour that is better."""
    for name in _NAMES:
        for sign in (1, -1):
            value = getattr(fit, name) + sign * getattr(steps, name)
            if value <= 0:
                continue
            other = replace(fit, **{name: value})
            other_error = error_of(other)
            if other_error < error:
                return other, other_error
    return None


def fit_order_spread(fit: Fit) -> float:
    """Groups by which requests arrive late at most, to a half, so that Sci-XW's `cgp` at R = 96 takes what it took.

    The round becomes longer with the spread, so halving finds it.
    """
    low, high = 0.0, 64.0
    while high - low > 0.5:
        middle = (low + high) / 2
        total = total_s(SPREAD_TARGET, replace(SPREAD_ROUNDS, order_spread=middle), fit)
        low, high = (middle, high) if total < R2T_END_S[SPREAD_TARGET] else (low, middle)
    return high


def main() -> None:
    """Fit, print, and say how well other assumptions would fit."""
    fit, error = fit_engine(fit_error)
    print(f"fitted on {len(TARGETS)} totals of LSAT-AR: {fit}, error {error:.2%}\nin use: {FITTED}")
    print(f"order_spread fitted on {SPREAD_TARGET}: {fit_order_spread(FITTED)}, in use: {ORDER_SPREAD}")
    for step_share in (0.0, 0.25, 0.75, 0.95):
        other, error = fit_engine(lambda one, share=step_share: fit_error(one, share))  # type: ignore[misc]
        print(f"with step_share {step_share}: {other}, error {error:.2%}")
    for cap_ratio in (0.3, 0.5, 0.7, 1.0, 1.5, 3.0):
        held = replace(START, cap_ratio=cap_ratio)
        other, error = fit_engine(fit_error, held, replace(STEPS, cap_ratio=0.0))
        print(f"with cap_ratio {cap_ratio}: {other}, error {error:.2%}")


if __name__ == "__main__":
    main()
