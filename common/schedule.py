"""The learning rate of each optimizer step: linear warm-up, then constant, linear or cosine decay towards 0."""

import math

from common.config import TrainingConfig


def learning_rate(training: TrainingConfig, step: int, total: int) -> float:
    """Of the step that follows `step` finished ones, out of `total` in the run.

    Warm-up reaches the full rate at its last step; decay never reaches 0 within the run, as that step would do nothing.
    """
    if step < training.warmup_steps:
        return training.lr * (step + 1) / training.warmup_steps
    progress = min(1.0, (step - training.warmup_steps) / max(1, total - training.warmup_steps))
    factor = {"constant": 1.0, "linear": 1.0 - progress, "cosine": (1.0 + math.cos(math.pi * progress)) / 2}
    return training.lr * factor[training.lr_schedule]
