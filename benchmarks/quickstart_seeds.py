"""Does the quickstart learn? Three seeds; the gain of each, the lengths, the gap, and the curve as docs/figures/quickstart.svg.

python benchmarks/quickstart_seeds.py [--seeds 0,1,2] [key=value ...]
"""

import argparse
from pathlib import Path
from typing import Any

from shared import ROOT, Marks, rolloutpipe, where

MIN_GAIN = 0.15
MIN_SPREAD = 5.0
MAX_GAP = 1e-4


def main() -> None:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    runs = {seed: _run(seed, arguments.overrides) for seed in seeds}
    print(f"\n{where()}")
    marks = Marks()
    for seed, rounds in runs.items():
        rewards = [metrics["reward_mean"] for metrics in rounds]
        gain = sum(rewards[-2:]) / 2 - sum(rewards[:2]) / 2
        spreads = [metrics["length_max"] / metrics["length_median"] for metrics in rounds]
        gap = max(metrics["logprob_gap_max"] or 0.0 for metrics in rounds)
        print(f"seed {seed}: reward by round {' '.join(f'{reward:.2f}' for reward in rewards)}")
        marks.check(f"seed {seed}, last two rounds over first two", f"{gain:+.3f}", f"at least {MIN_GAIN}", gain >= MIN_GAIN)
        text = f"{min(spreads):.1f} to {max(spreads):.1f}"
        marks.check(f"seed {seed}, longest over median response", text, f"at least {MIN_SPREAD:g}", min(spreads) >= MIN_SPREAD)
        marks.check(f"seed {seed}, largest log-prob gap", f"{gap:.1e}", f"below {MAX_GAP:g}", gap < MAX_GAP)
    _draw(runs, ROOT / "docs" / "figures" / "quickstart.svg")
    marks.end()


def _run(seed: int, overrides: list[str]) -> list[dict[str, Any]]:
    result = rolloutpipe("train", "configs/quickstart.yaml", f"seed={seed}", f"name=quickstart-seed{seed}", *overrides)
    rounds: list[dict[str, Any]] = result["rounds"]
    return rounds


def _draw(runs: dict[int, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.2))
    for seed, rounds in runs.items():
        axes.plot(
            [m["round"] for m in rounds], [m["reward_mean"] for m in rounds], marker="o", markersize=3, label=f"seed {seed}"
        )
    axes.set(xlabel="round", ylabel="mean reward of sampled answers", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    print(f"curve: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
