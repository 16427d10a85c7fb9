import numpy as np


def group_advantages(rewards, std="group"):
    known = np.array([r for r in rewards if r is not None], float)
    scale = known.std() + 1e-6 if std == "group" else 1.0
    return [0.0 if r is None else (r - known.mean()) / scale for r in rewards]


def has_spread(rewards, tolerance=1e-6):
    return max(rewards) - min(rewards) > tolerance
