"""The reward function of the fakes' runs."""

import hashlib
import time
from typing import Any


def score(task: dict[str, Any], response: str) -> float:
    """By the text alone; slow enough to be killed within."""
    time.sleep(0.01)
    return float(hashlib.sha256(response.encode()).digest()[0] % 2)
