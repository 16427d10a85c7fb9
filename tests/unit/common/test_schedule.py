"""Learning rates by step."""

import pytest

from common.config import TrainingConfig
from common.schedule import learning_rate


def rates(schedule, warmup=2, total=6):
    training = TrainingConfig(lr=1.0, lr_schedule=schedule, warmup_steps=warmup)
    return [learning_rate(training, step, total) for step in range(total)]


def test_warmup_then_constant():
    assert rates("constant") == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_linear_decay_ends_above_zero():
    assert rates("linear") == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_cosine_decay():
    # progress 0, 1/4, 1/2, 3/4 after the warm-up: (1 + cos(pi p)) / 2
    assert rates("cosine")[2:] == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_steps_beyond_the_plan_stay_finite():
    training = TrainingConfig(lr=1.0, lr_schedule="linear", warmup_steps=0)
    assert learning_rate(training, 9, 3) == 0.0
