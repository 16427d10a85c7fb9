"""Adaptive frontier dispatch, driven by hand and by a small round of its own. Groups are named by their order."""

import math
import random
from collections.abc import Callable, Hashable
from heapq import heappop, heappush
from typing import Any

import pytest

from common import _adaptive
from common._patience import Patience
from common.history import History
from common.lengths import Expected
from common.policies import AdaptiveFrontierDispatch, AdmissionPolicy
from common.records import PipelineState, Request

SIZE, STEP_S = 4, 0.02
Lengths = dict[Hashable, int]


def group(order: int, size: int = SIZE) -> list[Request]:
    prompt = (1, 2, 3, order)
    return [Request(request_id=f"{order}/{m}", group_id=order, order=order, member=m, prompt_ids=prompt) for m in range(size)]


def groups(orders: range | list[int], size: int = SIZE) -> list[Request]:
    return [request for order in orders for request in group(order, size)]


def state(now_s: float, *, capacity: int = 16, backlog: int = 0, token_s: float = 1e-5, update_s: float = 0.0) -> PipelineState:
    return PipelineState(
        now_s=now_s,
        trainer_backlog_groups=backlog,
        trainer_groups_per_s=1.0,
        engine_tokens_per_s=0.0,
        engine_running=0,
        engine_capacity=capacity,
        trainer_tokens_per_s=1 / token_s if token_s else 0.0,
        trainer_update_s=update_s,
    )


def play(
    policy: AdmissionPolicy,
    lengths: Lengths,
    *,
    capacity: int = 16,
    token_s: float = 1e-5,
    on_tick: Callable[[float], None] = lambda now_s: None,
) -> list[Request]:
    """To the end, on an engine of constant speed; requests in order of admission."""
    now_s, running, admitted = 0.0, [], []
    while True:
        policy.observe(state(now_s, capacity=capacity, token_s=token_s))
        for request in policy.admit(capacity - len(running)):
            admitted.append(request)
            heappush(running, (now_s + STEP_S * lengths[request.request_id], len(admitted), request))
        if not running:
            return admitted
        now_s, _, request = heappop(running)
        policy.finish(request.request_id, lengths[request.request_id])
        on_tick(now_s)


def draw(orders: range, seed: int = 0, *, prompt_sigma: float = 0.8, member_sigma: float = 0.2) -> Lengths:
    rng = random.Random(seed)
    centers = [rng.lognormvariate(4.5, prompt_sigma) for _ in orders]
    return {
        request.request_id: max(1, round(center * rng.lognormvariate(0.0, member_sigma)))
        for order, center in zip(orders, centers, strict=True)
        for request in group(order)
    }


def oracle(lengths: Lengths) -> Callable[[Request], Expected]:
    def expect(request: Request) -> Expected:
        logs = [math.log(lengths[f"{request.group_id}/{member}"]) for member in range(SIZE)]
        return Expected(tokens=math.exp(sum(logs) / SIZE), error=0.1)

    return expect


def first_seen(requests: list[Request]) -> list[int]:
    """Orders of groups, as they began."""
    return list(dict.fromkeys(request.order for request in requests))


def informed(**settings: Any) -> AdaptiveFrontierDispatch:
    """One whose history knows the engine and the trainer already."""
    history = History()
    for _ in range(20):
        history.step_time.learn(STEP_S, 1.0)
    history.trainer_token_s = 1e-5
    return AdaptiveFrontierDispatch(history=history, **settings)


ARRIVALS: dict[str, Callable[[], list[Request]]] = {
    "grouped": lambda: groups(range(12)),
    "backwards": lambda: groups(list(reversed(range(12)))),
    "interleaved": lambda: sorted(groups(range(12)), key=lambda request: request.member),
    "shuffled": lambda: random.Random(0).sample(groups(range(12)), 12 * SIZE),
}


def plant(bug: type, module: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`bug` stands in for the class that it derives from, wherever tests of `module` (its globals) come by one."""
    if issubclass(bug, Patience):
        monkeypatch.setattr(_adaptive, "Patience", bug)
        return
    for names in (globals(), module):
        monkeypatch.setitem(names, "AdaptiveFrontierDispatch", bug)
