"""When would the trainer be done, if groups were admitted in this order and width? A fluid model of the rest of a round.

Pure core: the standard library alone. All running requests decode one token a step, so in units of steps a round is list
scheduling on as many machines as requests may run; seconds follow from the step time, a line over the occupancy. Groups that are
complete go to a single server, the trainer, one after the other:

    trainer end = max over j of (completion of the j-th group + training of the j-th and all later ones)

Cost: O(requests * log capacity); callers thin out a large round before (`common._plans`).
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple


class Work(NamedTuple):
    """One group, as the model sees it."""

    waiting: tuple[float, ...]  # tokens of each member that is not admitted yet
    running: tuple[float, ...]  # tokens that each admitted member still has to go
    train_s: float  # seconds of training, its share of the optimizer step included


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The rest of the machine."""

    capacity: float  # requests that may run together
    step_s: float  # seconds of a step of an empty engine
    full_step_s: float  # further seconds where it is full
    trainer_free_s: float = 0.0  # seconds until the trainer has worked off what it has now
    in_order: bool = False  # the trainer takes groups by order, not by completion


class Width(NamedTuple):
    """How many requests may run: `first` until `num_first` groups have ended, then `rest`."""

    first: float
    rest: float
    num_first: int


def forecast(pipeline: Pipeline, works: list[Work], order: list[int], width: Width) -> float:
    """Seconds from now to the end of training. `order`: indices into `works`, all of them, in order of admission."""
    ends = _completions(pipeline, works, order, width)
    sequence = list(enumerate(ends))
    if not pipeline.in_order:
        sequence.sort(key=lambda pair: pair[1])
    done_s = pipeline.trainer_free_s
    for index, end_s in sequence:
        done_s = max(done_s, end_s) + works[index].train_s
    return done_s


def _completions(pipeline: Pipeline, works: list[Work], order: list[int], width: Width) -> list[float]:
    """Seconds at which each group is complete, by index."""
    step_s, slope_s = pipeline.step_s, pipeline.full_step_s / pipeline.capacity
    running = [(tokens, index) for index, work in enumerate(works) for tokens in work.running]
    heapify(running)
    queue = [(tokens, index) for index in order for tokens in works[index].waiting]
    left = [len(work.waiting) + len(work.running) for work in works]
    ends = [0.0] * len(works)
    limit, num_ended = width.first if width.num_first else width.rest, 0
    decoded = now_s = 0.0
    place, num_queued = 0, len(queue)
    while True:
        while place < num_queued and len(running) < limit:
            tokens, index = queue[place]
            heappush(running, (decoded + tokens, index))
            place += 1
        if not running:
            return ends
        end, index = running[0]
        if end > decoded:
            now_s += (end - decoded) * (step_s + slope_s * len(running))
            decoded = end
        left[index] -= 1
        if not left[index]:
            ends[index] = now_s
            num_ended += 1
            if num_ended == width.num_first:
                limit = width.rest
        if place < num_queued and len(running) - 1 < limit:
            heapreplace(running, (decoded + queue[place][0], queue[place][1]))
            place += 1
        else:
            heappop(running)
