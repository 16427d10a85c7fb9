"""A reward function of your own. Use it with

    rolloutpipe train CONFIG rewards.function=examples.custom_reward:score

from the directory that holds it (or with that directory on PYTHONPATH). It runs in killable worker processes: a call that takes
longer than `rewards.timeout_s` gets reward 0 and its worker is replaced, so nothing here needs a time limit of its own. An
exception leaves the response out of training and is reported in one line; return 0.0 for an answer that is merely wrong.
"""

import re
from typing import Any


def score(task: dict[str, Any], response: str) -> tuple[float, str]:
    """Reward and, for the records, why. A plain float will do as well.

    `task` is what the workload stored with the problem, with task["num_tokens"] of the response and its task["finish_reason"].
    Of data from files: task["gold"]; for `jsonl` also task["row"] with every field of the line. For reasoning-gym: task["entry"]
    with question, answer and metadata.
    """
    gold = task["entry"]["answer"] if task["workload"] == "reasoning_gym" else task["gold"]
    numbers = re.findall(r"-?\d+", response)
    if not numbers or numbers[-1] != gold:
        return 0.0, "the last number is not the answer"
    # Right answers earn from 0.5 to 1.0: shorter is better, down to 100 characters.
    return 0.5 + 0.5 * min(1.0, 100 / len(response)), "right"
