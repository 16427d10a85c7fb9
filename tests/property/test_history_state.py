"""A restored history forecasts, and learns on, exactly as the one that was saved (pain 18)."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import DataError, UsageError
from common.history import History

prompts = st.one_of(st.tuples(st.integers(0, 5), st.integers(0, 3)), st.sampled_from(["r0/g1", "r0/g2", 7, None]))
tasks = st.one_of(st.none(), st.tuples(st.sampled_from(["gsm8k", "fake"]), st.sampled_from([None, "a", "b"])))
visits = st.tuples(prompts, st.lists(st.integers(0, 4096), max_size=9), st.integers(1, 500), tasks)
steps = st.tuples(st.floats(1e-4, 10.0), st.floats(0.0, 1.5))
lives = st.lists(st.one_of(visits, steps), max_size=40)
ASKED = [(prompt, 17, task) for prompt in [(0, 0), (1, 2), "r0/g1", (9, 9)] for task in [None, ("gsm8k", None), ("fake", "b")]]


def live(history: History, events: list[tuple[Any, ...]]) -> None:
    for event in events:
        if len(event) == 2:
            history.step_time.learn(*event)
            history.trainer_token_s, history.trainer_update_s = event
        else:
            prompt, lengths, prompt_tokens, task = event
            history.lengths.learn(prompt, lengths, prompt_tokens=prompt_tokens, task=task)


def forecasts(history: History) -> list[Any]:
    """Everything that a policy reads, to the last bit."""
    expected = [history.lengths.expect(prompt, prompt_tokens=size, task=task) for prompt, size, task in ASKED]
    return [
        [(one.tokens.hex(), one.error if math.isinf(one.error) else one.error.hex()) for one in expected],
        [part.hex() for part in history.lengths.member_parts],
        history.lengths.longest,
        history.step_time.line(),
        history.trainer_token_s,
        history.trainer_update_s,
    ]


@settings(deadline=None, max_examples=150)
@given(before=lives, after=lives)
def test_a_restored_history_forecasts_and_learns_on_the_same(before: list[Any], after: list[Any]) -> None:
    saved, restored = History(), History()
    live(saved, before)
    restored.restore(json.loads(json.dumps(saved.state(), allow_nan=False)))
    assert restored.state() == saved.state() and forecasts(restored) == forecasts(saved)
    live(saved, after)
    live(restored, after)
    assert restored.state() == saved.state() and forecasts(restored) == forecasts(saved)


def test_only_the_latest_member_parts_are_kept_after_a_restore_too() -> None:
    saved, restored = History(), History()
    live(saved, [((n,), [n + 1, 2 * n + 3], 5, None) for n in range(400)])
    restored.restore(json.loads(json.dumps(saved.state())))
    live(saved, [((999,), [3, 5, 9], 5, None)])
    live(restored, [((999,), [3, 5, 9], 5, None)])
    assert len(restored.lengths.member_parts) == len(saved.lengths.member_parts) and forecasts(saved) == forecasts(restored)


@pytest.mark.parametrize("name", ["lengths", "step_time", "trainer_token_s", "trainer_update_s"])
@pytest.mark.parametrize("broken", ["missing", {"x": {}}, [1.0], "text"])
def test_a_broken_state_is_refused_and_changes_nothing(name: str, broken: Any) -> None:
    history = History()
    live(history, [((1, 2), [5, 9], 4, None), ((3,), [7, 7], 4, None), (0.1, 0.5)])
    state, before = history.state(), forecasts(history)
    if broken == "missing":
        del state[name]
    else:
        state[name] = broken
    with pytest.raises(DataError, match=r"history: must be what History\.state gave"):
        history.restore(state)
    assert forecasts(history) == before


def test_a_name_that_json_cannot_hold_is_refused() -> None:
    history = History()
    history.lengths.learn(frozenset({1}), [3, 4])
    with pytest.raises(UsageError, match="prompt or task"):
        history.state()
