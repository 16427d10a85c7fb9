"""The figures of an evaluation. Pure: the standard library alone.

A sample is right where its verdict is OK. Samples without a verdict (the verifier failed, or no response came) are left out
of everything but their own counts; a time-out of the verifier is a wrong answer (rule 9).

    accuracy    mean over problems of the share of right samples, so that each problem weighs the same
    pass@k      mean over problems of 1 - C(n-c, k) / C(n, k): the chance that of k samples drawn from the n at hand, c of
                them right, one is right. Unbiased (Chen et al. 2021, arXiv 2107.03374, equation 1), in product form, as
                binomials overflow. Problems with fewer than k scored samples are left out and counted

Intervals: Wilson (1927) with an effective number of samples (Kish 1965; compared by Franco, Little, Louis and Slud 2019,
Journal of Survey Statistics and Methodology 7). The m problems are clusters: samples of one problem are alike. With the mean p
and the variance v (divided by m) of the problems' own estimates, p (1 - p) / (v / m) independent samples would be as sure. It
lies between m (each problem answers always the same) and the number of samples, to which it is held. With one sample a problem
it is m, and the interval the textbook's; it stays within [0, 1] and has a width also where all, or none, are right.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from common.errors import UsageError, explain
from common.records import Verdict

Z95 = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one sample. `status` ERROR: no verdict."""

    problem: str  # samples of one problem have the same
    category: str = ""
    status: Verdict
    reward: float | None
    num_tokens: int | None  # None: no response came
    is_cut_off: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share with its 95 % confidence interval, over so many problems."""

    value: float
    low: float
    high: float
    problems: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of all outcomes, or of those of a category. None: nothing was scored, or nothing came."""

    problems: int  # asked, scored or not
    samples: int  # asked
    accuracy: Estimate | None
    pass_at: dict[int, Estimate | None]
    reward_mean: float | None  # over scored samples
    length_mean: float | None  # response tokens
    cut_off_share: float | None  # of responses: ran into max_tokens
    no_answer_share: float | None  # of scored samples
    timeouts: int  # of the verifier: wrong answers
    errors: int  # without a verdict: left out
    lost: int  # of those, without a response

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "pass_at": {str(k): e and asdict(e) for k, e in self.pass_at.items()}}


def pass_at(num_samples: int, num_right: int, k: int) -> float:
    """Unbiased pass@k of one problem from `num_samples` samples, 1 <= k <= num_samples. Raises UsageError."""
    if not 1 <= k <= num_samples:
        raise UsageError(explain("k", f"must be between 1 and the number of samples ({num_samples})", k, "sample more"))
    if not 0 <= num_right <= num_samples:
        raise UsageError(explain("num_right", f"must be between 0 and {num_samples}", num_right, "count again"))
    if num_samples - num_right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(num_samples - num_right + 1, num_samples + 1))


def wilson(share: float, num_samples: float) -> tuple[float, float]:
    """95 % confidence interval of a share of `num_samples` (> 0) independent samples."""
    z2 = Z95 * Z95
    center = (share + z2 / (2 * num_samples)) / (1 + z2 / num_samples)
    half = Z95 / (1 + z2 / num_samples) * math.sqrt(share * (1 - share) / num_samples + z2 / (4 * num_samples**2))
    return max(0.0, min(share, center - half)), min(1.0, max(share, center + half))


def estimate(values: Sequence[float], trials: Sequence[float]) -> Estimate | None:
    """Mean of the problems' estimates, each in [0, 1] and each from so many independent trials; None without a problem."""
    if not values:
        return None
    num_problems, mean = len(values), statistics.fmean(values)
    spread = mean * (1 - mean)
    variance = statistics.pvariance(values, mean)
    most = num_problems * statistics.harmonic_mean(trials)
    effective = most if variance == 0 else min(num_problems * spread / variance, most)
    if spread == 0:  # all right, or all wrong: samples of one problem may be one and the same
        effective = num_problems
    low, high = wilson(mean, max(effective, num_problems))
    return Estimate(mean, low, high, num_problems)


def figures_of(outcomes: Iterable[Outcome], pass_ks: Sequence[int] = (1,)) -> Figures:
    """All figures of these outcomes."""
    outcomes = list(outcomes)
    scored = [outcome for outcome in outcomes if outcome.status is not Verdict.ERROR]
    lengths = [outcome.num_tokens for outcome in outcomes if outcome.num_tokens is not None]
    rewards = [outcome.reward for outcome in scored if outcome.reward is not None]
    counts = _counts(scored)
    return Figures(
        problems=len({outcome.problem for outcome in outcomes}),
        samples=len(outcomes),
        accuracy=estimate([right / n for n, right in counts], [n for n, _ in counts]),
        pass_at={k: _pass_estimate(counts, k) for k in pass_ks},
        reward_mean=statistics.fmean(rewards) if rewards else None,
        length_mean=statistics.fmean(lengths) if lengths else None,
        cut_off_share=_share(sum(outcome.is_cut_off for outcome in outcomes), len(lengths)),
        no_answer_share=_share(sum(outcome.status is Verdict.NO_ANSWER for outcome in scored), len(scored)),
        timeouts=sum(outcome.status is Verdict.TIMEOUT for outcome in scored),
        errors=len(outcomes) - len(scored),
        lost=len(outcomes) - len(lengths),
    )


def by_category(outcomes: Iterable[Outcome], pass_ks: Sequence[int] = (1,)) -> dict[str, Figures]:
    """The same, category by category in alphabetical order; empty where there is one category alone."""
    parts: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        parts.setdefault(outcome.category, []).append(outcome)
    return {name: figures_of(parts[name], pass_ks) for name in sorted(parts)} if len(parts) > 1 else {}


def _counts(scored: Iterable[Outcome]) -> list[tuple[int, int]]:
    """(scored, right) of each problem."""
    counts: dict[str, tuple[int, int]] = {}
    for outcome in scored:
        num, right = counts.get(outcome.problem, (0, 0))
        counts[outcome.problem] = num + 1, right + (outcome.status is Verdict.OK)
    return list(counts.values())


def _pass_estimate(counts: Sequence[tuple[int, int]], k: int) -> Estimate | None:
    """n samples hold n / k independent trials of k."""
    enough = [(num, right) for num, right in counts if num >= k]
    return estimate([pass_at(num, right, k) for num, right in enough], [num / k for num, _ in enough])


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
