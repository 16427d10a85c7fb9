"""Adaptive frontier dispatch, whatever its predictor, its observations and its settings say."""

import math
import random
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest
from adaptive_lab import SIZE, STEP_S, draw, group, groups, informed, play, state

from common.errors import UsageError
from common.lengths import NOTHING_KNOWN, Expected
from common.policies import AdaptiveFrontierDispatch
from common.records import Request


def adversary(request: Request) -> Expected:
    """Lower orders are longest, so that they are never wanted where training is the bottleneck."""
    return Expected(tokens=10_000.0 / (1 + request.order), error=0.0)


WRONG: dict[str, Callable[[Request], Expected]] = {
    "adversary": adversary,
    "all one token": lambda request: Expected(tokens=1.0, error=0.0),
    "all enormous": lambda request: Expected(tokens=1e300, error=0.0),
    "tiny": lambda request: Expected(tokens=1e-300, error=9.0),
    "unsure": lambda request: Expected(tokens=100.0, error=1e6),
    "nothing known": lambda request: NOTHING_KNOWN,
    "of some": lambda request: NOTHING_KNOWN if request.order % 2 else Expected(tokens=50.0, error=0.1),
    "noise": lambda request: Expected(tokens=random.Random(request.order).lognormvariate(3.0, 3.0), error=1.0),
}


@pytest.mark.parametrize("token_s", [1e-6, 0.01])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_predictor_breaks_nothing(wrong: str, token_s: float) -> None:
    lengths, policy = draw(range(30)), informed(expect=WRONG[wrong])
    policy.submit(groups(range(30)))
    admitted = play(policy, lengths, token_s=token_s)
    assert sorted(request.request_id for request in admitted) == sorted(lengths)
    assert policy.snapshot().num_groups == 0


@pytest.mark.parametrize("answer", [None, 100.0, {"tokens": 5}, (5.0, 0.1)])
def test_an_expectation_of_another_type_is_refused(answer: object) -> None:
    policy = informed(expect=lambda request: answer)  # type: ignore[arg-type, return-value]
    policy.submit(groups(range(4)))
    policy.observe(state(0.0))
    for _ in range(2):  # as nothing has changed, it is refused again
        with pytest.raises(UsageError, match=r"^expect: must return a common.lengths.Expected for '0/0', got .*; return NOTHING"):
            policy.admit(4)
    assert policy.snapshot().num_waiting == 4 * SIZE


@pytest.mark.parametrize("bad", [math.nan, math.inf, -5.0, 0.0, 10**400, "5"])
def test_an_expectation_that_is_no_length_is_refused_before_anything_changes(bad: Any) -> None:
    policy = informed(expect=lambda request: Expected(tokens=bad, error=0.5))
    policy.submit(groups(range(4)))
    policy.observe(state(0.0))
    for _ in range(2):
        with pytest.raises(UsageError, match=r"^expected tokens: must be a finite number above 0, got"):
            policy.admit(4)
    assert policy.snapshot().num_in_flight == 0


@pytest.mark.parametrize("bad", [-1, 1.5, "7", 10**310])
def test_a_number_of_tokens_is_whole_and_not_negative(bad: object) -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit(groups([0]))
    policy.admit(4)
    with pytest.raises(UsageError, match=r"^num_tokens: must be .*; pass the tokens of the response, or nothing"):
        policy.finish("0/0", bad)  # type: ignore[arg-type]
    assert policy.snapshot().num_in_flight == 4


NO_NUMBERS: list[tuple[str, list[Any]]] = [
    ("now_s", [math.nan, math.inf, -math.inf, "1", None, 10**400]),
    ("trainer_backlog_groups", [-1, 2.0, "2", 10**400, None]),
    ("engine_capacity", [-1, math.inf, math.nan, 16.0, "16", 10**400]),
    ("engine_running", [-1, 0.5]),
    ("trainer_tokens_per_s", [-1.0, math.nan, math.inf, "1"]),
    ("trainer_update_s", [-1.0, math.nan, math.inf, None]),
    ("trainer_groups_per_s", [math.nan]),
    ("engine_tokens_per_s", [-0.1]),
]


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, values in NO_NUMBERS for bad in values])
def test_an_observation_that_is_none_is_refused_and_changes_nothing(name: str, bad: Any) -> None:
    """The policy that was given it does, and has learned, what one does that was not."""
    lengths = draw(range(20))
    policy, reference = informed(), informed()
    for one in (policy, reference):
        one.submit(groups(range(20)))
        one.observe(state(0.0))
        for request in one.admit(8):
            one.finish(request.request_id, lengths[request.request_id])
    with pytest.raises(UsageError, match=rf"^{name}: must be .*, got .*; pass "):
        policy.observe(replace(state(1.0, update_s=3.0, token_s=1e-3), **{name: bad}))
    assert policy.history.trainer_token_s == reference.history.trainer_token_s == pytest.approx(1e-5)
    assert play(policy, lengths) == play(reference, lengths)
    assert policy.history.step_time.line() == reference.history.step_time.line()


def test_something_else_than_an_observation_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^state: must be a PipelineState, got None"):
        AdaptiveFrontierDispatch().observe(None)  # type: ignore[arg-type]


def test_a_rate_next_to_nothing_is_not_learned() -> None:
    policy = informed()
    policy.observe(replace(state(0.0), trainer_tokens_per_s=1e-320))
    assert policy.history.trainer_token_s == 1e-5


@pytest.mark.parametrize("jump_s", [-100.0, -1.0, 1e300, 1e9])
def test_one_glitch_of_the_clock_teaches_nothing_wrong(jump_s: float) -> None:
    policy, running, now_s = AdaptiveFrontierDispatch(), [], 0.0
    policy.submit(groups(range(40)))
    while True:
        policy.observe(state(now_s + (jump_s if now_s == 20.0 else 0.0), capacity=8))
        running += policy.admit(8 - len(running))
        if not running:
            break
        now_s += 1.0
        policy.observe(state(now_s + (jump_s if now_s == 20.0 else 0.0), capacity=8))
        for request in running[:2]:  # each runs four seconds
            policy.finish(request.request_id, 200)
        del running[:2]
    line = policy.history.step_time.line()
    assert line is not None
    assert line[0] + line[1] == pytest.approx(STEP_S, rel=0.15)


def raises(request: Request) -> Hashable:
    raise KeyError("the caller's")


@pytest.mark.parametrize(
    ("task", "error", "message"), [(lambda r: [1], UsageError, "^task: must"), (raises, KeyError, "caller's")]
)
@pytest.mark.parametrize("size", [1, 2])
def test_a_task_that_fails_leaves_the_policy_as_it_was(task: Any, error: type[Exception], message: str, size: int) -> None:
    answers = iter([task])  # the first time, then a good one
    policy = AdaptiveFrontierDispatch(task=lambda request: next(answers, lambda r: "math")(request))
    policy.submit(group(0, size))
    policy.admit(size)
    before = policy.snapshot()
    with pytest.raises(error, match=message):
        policy.finish("0/0", 5)
    assert policy.snapshot() == before
    for member in range(size):
        policy.finish(f"0/{member}", 5)
    assert policy.snapshot().num_groups == 0
    assert policy.history.lengths.expect((1, 2, 3, 0), task="math").tokens == pytest.approx(5.0)


def test_a_prompt_that_cannot_be_learned_is_refused_before_the_group_closes() -> None:
    policy = AdaptiveFrontierDispatch()
    policy.submit([Request(request_id="a", group_id=0, order=0, prompt_ids=[1, 2])])  # type: ignore[arg-type]
    policy.admit(1)
    with pytest.raises(UsageError, match=r"^prompt_ids: must be hashable for 'a', got \[1, 2\]; pass a tuple of ints"):
        policy.finish("a", 5)
    assert policy.snapshot().num_in_flight == 1
    policy.finish("a")
    assert policy.snapshot().num_groups == 0


def test_a_width_beyond_every_float_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^frontier_width: must be .* or less"):
        AdaptiveFrontierDispatch(10**400)


@pytest.mark.parametrize("width", [0, -3])
def test_a_width_below_one_is_refused(width: int) -> None:
    with pytest.raises(UsageError, match=rf"^frontier_width: must be 1 or more, got {width}; use groups_per_update"):
        AdaptiveFrontierDispatch(width)
