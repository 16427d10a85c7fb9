"""What the ranks' sums of an update come to."""

from collections.abc import Sequence
from typing import Any


def merge_sums(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Sums over ranks, in rank order; maxima stay maxima."""
    names = list(dict.fromkeys(name for part in parts for name in part))
    return {name: (max if name.endswith("_max") else sum)(part.get(name, 0.0) for part in parts) for name in names}


def update_metrics(sums: dict[str, float], kl_sum: float, kl_tokens: int) -> dict[str, float]:
    """Means from sums: over all response tokens, or over those with a loss. `kl_sum` over `kl_tokens`: of k1 in the reward."""
    tokens, trained = max(1.0, sums.get("tokens", 0.0)), max(1.0, sums.get("trained_tokens", 0.0))
    metrics: dict[str, Any] = {
        "tokens": sums.get("tokens", 0.0),
        "cpu_s": sums.get("cpu_s", 0.0),  # of all ranks, since the last update
        "logprob_gap_max": sums.get("gap_max", 0.0),
        "logprob_gap_mean": sums.get("gap_sum", 0.0) / tokens,
        "kl_sampler": sums.get("kl_sampler_sum", 0.0) / tokens,
        "entropy": sums.get("entropy_sum", 0.0) / tokens,
        "ratio_mean": sums.get("ratio_sum", 0.0) / trained,
        "clip_fraction": sums.get("clipped_sum", 0.0) / trained,
    }
    if "compilations" in sums:
        metrics["compilations"] = sums["compilations"]  # of all processes, since the last update
    if "weight_sum" in sums:
        metrics["importance_mean"] = sums["weight_sum"] / trained
        metrics["importance_capped"] = sums["weight_capped_sum"] / trained
    if "kl_ref_sum" in sums:
        metrics["kl_ref"] = sums["kl_ref_sum"] / trained
    elif kl_tokens:
        metrics["kl_ref"] = kl_sum / kl_tokens
    return metrics
