"""Does the quickstart learn, and with both trainers alike? Three seeds each: gain, lengths, log-prob gaps, compilations.

The curves go to docs/figures/quickstart.svg. Exits 1 where a mark is missed.

    python benchmarks/quickstart_seeds.py [--seeds 0,1,2] [--trainers torch,jax] [key=value ...]
"""

import argparse
from pathlib import Path
from typing import Any

from shared import ROOT, Marks, rolloutpipe, where

MIN_GAIN = 0.15
MIN_SPREAD = 5.0
MAX_GAP = 1e-4

Rounds = list[dict[str, Any]]


def main() -> None:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--trainers", default="torch,jax")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    trainers = arguments.trainers.split(",")
    runs = {(trainer, seed): _run(trainer, seed, arguments.overrides) for trainer in trainers for seed in seeds}
    print(f"\n{where()}")
    marks = Marks()
    for (trainer, seed), rounds in runs.items():
        _check(marks, f"{trainer}, seed {seed}", rounds)
    if {"torch", "jax"} <= set(trainers):
        _check_alike(marks, *([_last(runs[trainer, seed]) for seed in seeds] for trainer in ("torch", "jax")))
    _draw(runs, ROOT / "docs" / "figures" / "quickstart.svg")
    marks.end()


def _run(trainer: str, seed: int, overrides: list[str]) -> Rounds:
    words = (f"trainer={trainer}", f"seed={seed}", f"name=quickstart-{trainer}-seed{seed}", *overrides)
    rounds: Rounds = rolloutpipe("train", "configs/quickstart.yaml", *words)["rounds"]
    return rounds


def _last(rounds: Rounds) -> float:
    """Mean reward of the last two rounds."""
    return sum(metrics["reward_mean"] for metrics in rounds[-2:]) / 2


def _check(marks: Marks, name: str, rounds: Rounds) -> None:
    rewards = [metrics["reward_mean"] for metrics in rounds]
    gain = _last(rounds) - sum(rewards[:2]) / 2
    spreads = [metrics["length_max"] / metrics["length_median"] for metrics in rounds]
    gap = max(metrics["logprob_gap_max"] or 0.0 for metrics in rounds)
    print(f"{name}: reward by round {' '.join(f'{reward:.2f}' for reward in rewards)}")
    marks.check(f"{name}, last two rounds over first two", f"{gain:+.3f}", f"at least {MIN_GAIN}", gain >= MIN_GAIN)
    text = f"{min(spreads):.1f} to {max(spreads):.1f}"
    marks.check(f"{name}, longest over median response", text, f"at least {MIN_SPREAD:g}", min(spreads) >= MIN_SPREAD)
    marks.check(f"{name}, largest log-prob gap", f"{gap:.1e}", f"below {MAX_GAP:g}", gap < MAX_GAP)
    compilations = [metrics["compilations"] for metrics in rounds if metrics["compilations"] is not None]
    if compilations:
        later = f"{compilations[0]:g}, then {sum(compilations[1:]):g}"
        marks.check(f"{name}, compilations of the first round, of all later", later, "then 0", not any(compilations[1:]))


def _check_alike(marks: Marks, torch: list[float], jax: list[float]) -> None:
    """JAX's mean over seeds lies within what seeds alone do to torch's."""
    mean, low, high = sum(jax) / len(jax), min(torch), max(torch)
    name = "mean reward of jax's last two rounds over seeds"
    marks.check(name, f"{mean:.3f}", f"at least torch's lowest seed, {low:.3f} of {low:.3f} to {high:.3f}", mean >= low)


def _draw(runs: dict[tuple[str, int], Rounds], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.2))
    colors = {seed: f"C{place}" for place, seed in enumerate(dict.fromkeys(seed for _, seed in runs))}
    for (trainer, seed), rounds in runs.items():
        line = "-" if trainer == "torch" else "--"
        curve = [m["round"] for m in rounds], [m["reward_mean"] for m in rounds]
        axes.plot(*curve, line, color=colors[seed], marker="o", markersize=3, label=f"{trainer}, seed {seed}")
    axes.set(xlabel="round", ylabel="mean reward of sampled answers", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    print(f"curve: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
