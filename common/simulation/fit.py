"""The parts of a pipeline in numbers, from what a run recorded. docs/calibration.md tells how well.

Engine: while a response of n tokens is on its replica, the replica makes n steps, and computes the prompts of all requests that
enter meanwhile, its own included:

    seconds = step_s * n
            + step_per_request_s * (running requests, summed over the n steps)
            + prefill_s_per_token * prompt tokens

Linear in the three numbers, but for the steps: how many fall into a stretch with so many running depends on the first two. So
they are counted with the last estimate, and the least squares repeated until nothing moves.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from common.config import RolloutConfig
from common.errors import DataError, explain
from common.simulation.models import EngineModel, TrainerModel, VerifierModel
from common.simulation.recording import Floats, RecordedRound, Served

MIN_RESPONSES = 16
MIN_GROUPS = 4
_MAX_PASSES = 200
_LEAST_STEP_S = 1e-7  # a replica takes some time, whatever the fit says


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Least squares with no negative coefficient."""

    coefficients: Floats
    explained: float  # share of the variance; 1.0 where there is none


def least_squares(columns: Floats, values: Floats) -> Fit:
    """`columns` (N, C) times coefficients is near `values` (N,); C is small, since subsets of the columns are tried.

    A column that the earlier ones already determine is left out: what did not vary cannot be told apart.
    """
    kept: list[int] = []
    for place in range(columns.shape[1]):
        some = columns[:, [*kept, place]]
        scale = np.linalg.norm(some, axis=0)
        if scale[-1] > 0 and np.linalg.matrix_rank(some / scale, tol=1e-6) == len(kept) + 1:
            kept.append(place)
    coefficients = _solve(columns, values, kept)
    if coefficients.min() < 0:
        subsets = (subset for size in range(len(kept)) for subset in combinations(kept, size))
        allowed = (one for subset in subsets if (one := _solve(columns, values, list(subset))).min() >= 0)
        coefficients = min(allowed, key=lambda one: _left(columns, values, one))
    spread = float(((values - values.mean()) ** 2).sum())
    return Fit(coefficients=coefficients, explained=1 - _left(columns, values, coefficients) / spread if spread > 0 else 1.0)


def _solve(columns: Floats, values: Floats, kept: list[int]) -> Floats:
    """Coefficients (C,), 0 for the columns that are not kept."""
    coefficients = np.zeros(columns.shape[1])
    coefficients[kept] = np.linalg.lstsq(columns[:, kept], values, rcond=None)[0]
    return coefficients


def _left(columns: Floats, values: Floats, coefficients: Floats) -> float:
    return float(((values - columns @ coefficients) ** 2).sum())


class Steps:
    """One replica in one round: what ran when."""

    def __init__(self, served: Served) -> None:
        self.seconds = served.end_s - served.start_s
        self.tokens = served.tokens.astype(float)
        starts, ends = np.sort(served.start_s), np.sort(served.end_s)
        times = np.union1d(starts, ends)
        self._stretch_s = np.diff(times)
        self._running = np.searchsorted(starts, times[:-1], "right") - np.searchsorted(ends, times[:-1], "right")
        self._first, self._last = np.searchsorted(times, served.start_s), np.searchsorted(times, served.end_s)
        by_start = np.argsort(served.start_s, kind="stable")
        prompts = np.concatenate([[0], np.cumsum(served.prompt_tokens[by_start])])
        entered = (np.searchsorted(starts, moment, "left") for moment in (served.end_s, served.start_s))
        self.prompts = np.subtract(*(prompts[place] for place in entered)).astype(float)

    def running(self, step_s: float, step_per_request_s: float) -> Floats:
        """Running requests, summed over the steps of each response (N,)."""
        steps = self._stretch_s / np.maximum(step_s + step_per_request_s * self._running, _LEAST_STEP_S)
        num_steps, num_running = (self._within(values) for values in (steps, steps * self._running))
        return np.asarray(self.tokens * num_running / np.maximum(num_steps, _LEAST_STEP_S))

    def alone_s(self, engine: EngineModel) -> Floats:
        """Seconds of each response by the model, with what ran beside it on its replica (N,)."""
        running = self.running(engine.step_s, engine.step_per_request_s)
        decoding_s = engine.step_s * self.tokens + engine.step_per_request_s * running
        return decoding_s + engine.prefill_s_per_token * self.prompts

    def _within(self, stretches: Floats) -> Floats:
        """Sum over the stretches of each response's life (N,)."""
        sums = np.concatenate([[0.0], np.cumsum(stretches)])
        return np.asarray(sums[self._last] - sums[self._first])


def fit_engine(rounds: Sequence[RecordedRound], rollout: RolloutConfig, field: str) -> tuple[EngineModel, float]:
    """The model, and the share of the variance of seconds that it explains. Raises DataError where too little was recorded."""
    parts = [[Steps(served) for served in one.served] for one in rounds]
    num_responses = sum(len(steps.tokens) for part in parts for steps in part)
    if num_responses < MIN_RESPONSES:
        raise DataError(explain(field, f"needs at least {MIN_RESPONSES} responses", num_responses, "record longer rounds"))
    fit = _fit_steps([steps for part in parts for steps in part])
    step_s, step_per_request_s, prefill_s = (float(value) for value in fit.coefficients)
    model = EngineModel(
        replicas=rollout.replicas,
        capacity=rollout.capacity,
        step_s=max(step_s, _LEAST_STEP_S),
        step_per_request_s=step_per_request_s,
        prefill_s_per_token=prefill_s,
    )
    measured_s = [sum(steps.seconds.sum() for steps in part) for part in parts]
    scale = _median_ratio(measured_s, [sum(steps.alone_s(model).sum() for steps in part) for part in parts])
    times = {name: getattr(model, name) * scale for name in ("step_s", "step_per_request_s", "prefill_s_per_token")}
    return replace(model, **times), fit.explained


def _fit_steps(parts: Sequence[Steps]) -> Fit:
    """Of step_s, step_per_request_s and prefill_s_per_token."""
    seconds, tokens, prompts = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("seconds", "tokens", "prompts")
    )
    step = np.array([seconds.sum() / tokens.sum(), 0.0])
    for _ in range(_MAX_PASSES):
        running = np.concatenate([part.running(*step) for part in parts])
        fit = least_squares(np.stack([tokens, running, prompts], axis=1), seconds)
        moved = np.abs(fit.coefficients[:2] - step).max()
        step = (step + fit.coefficients[:2]) / 2  # half way: an estimate too high is followed by one too low
        if moved <= 1e-9 * step.sum():
            break
    return fit


def fit_trainer(rounds: Sequence[RecordedRound], field: str) -> tuple[TrainerModel, float]:
    """As `fit_engine`: accumulation per token and per group; the rest of the trainer's time per update."""
    tokens = np.concatenate([one.group_tokens for one in rounds]).astype(float)
    spent_s = [np.diff(one.accumulations)[:, 0] for one in rounds]
    if len(tokens) < MIN_GROUPS:
        raise DataError(explain(field, f"needs at least {MIN_GROUPS} trained groups", len(tokens), "record longer rounds"))
    fit = least_squares(np.stack([tokens, np.ones_like(tokens)], axis=1), np.concatenate(spent_s))
    token_s, group_s = (float(value) for value in fit.coefficients)
    fitted_s = [token_s * one.group_tokens.sum() + group_s * len(one.group_tokens) for one in rounds]
    scale = _median_ratio([one.sum() for one in spent_s], fitted_s)
    update_s = statistics.median(one.between_s / one.metrics.updates for one in rounds)
    return TrainerModel(token_s=token_s * scale, group_s=group_s * scale, update_s=update_s), fit.explained


def _median_ratio(measured_s: Sequence[float], fitted_s: Sequence[float]) -> float:
    """Of the rounds. What is predicted are medians of rounds, and a first round that warms up is none."""
    return float(statistics.median(measured / max(fitted, 1e-9) for measured, fitted in zip(measured_s, fitted_s, strict=True)))


def fit_verifier(rounds: Sequence[RecordedRound]) -> VerifierModel:
    """Log-normal seconds; none where nothing was scored or it took no time."""
    seconds = np.concatenate([one.verify_s for one in rounds])
    logs = np.log(seconds[seconds > 0])
    return VerifierModel(seconds=float(np.exp(logs.mean())), sigma=float(logs.std())) if len(logs) else VerifierModel()
