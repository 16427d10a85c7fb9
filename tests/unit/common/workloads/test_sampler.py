"""Order of problems: once an epoch, never twice in a round, the same after a resume."""

import json
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import DataError
from common.workloads.sampler import PromptSampler


@given(num_problems=st.integers(1, 40), count=st.integers(1, 15), seed=st.integers(0, 3), extras=st.integers(0, 4))
def test_wrap_draws_each_problem_once_an_epoch_and_never_twice_in_a_round(
    num_problems: int, count: int, seed: int, extras: int
) -> None:
    sampler = PromptSampler(num_problems, seed)
    drawn: list[int] = []
    for _ in range(12):
        this_round = sampler.draw(count)
        assert len(this_round) == count
        this_round += [index for index in (sampler.draw_extra() for _ in range(extras)) if index is not None]
        if count <= num_problems:
            assert len(set(this_round)) == len(this_round)
        drawn += this_round
    for start in range(0, len(drawn) - num_problems + 1, num_problems):
        assert sorted(drawn[start : start + num_problems]) == list(range(num_problems))


@given(
    num_problems=st.integers(1, 30),
    count=st.integers(1, 12),
    when_short=st.sampled_from(["wrap", "short", "stop"]),
    rounds=st.integers(0, 6),
    extras=st.integers(0, 3),
)
def test_a_resumed_sampler_goes_on_as_the_undisturbed_one(
    num_problems: int, count: int, when_short: str, rounds: int, extras: int
) -> None:
    whole = PromptSampler(num_problems, 7, when_short)  # type: ignore[arg-type]
    for _ in range(rounds):
        whole.draw(count)
        for _ in range(extras):
            whole.draw_extra()
    resumed = PromptSampler(num_problems, 7, when_short)  # type: ignore[arg-type]
    resumed.restore(json.loads(json.dumps(whole.state())))
    for _ in range(8):
        assert resumed.draw_extra() == whole.draw_extra()
        assert resumed.draw(count) == whole.draw(count)
    assert resumed.state() == whole.state()


def test_epochs_and_seeds_differ() -> None:
    sampler, other = PromptSampler(20, 0), PromptSampler(20, 1)
    first, second = sampler.draw(20), sampler.draw(20)
    assert first != second
    assert first != other.draw(20)
    assert first == PromptSampler(20, 0).draw(20)
    assert sampler.epoch == 1


def test_a_set_smaller_than_the_round_repeats_evenly() -> None:
    sampler = PromptSampler(3, 0)
    assert Counter(sampler.draw(7)).most_common()[0][1] == 3
    assert sampler.draw_extra() is None


def test_short_takes_what_is_left_and_then_starts_over() -> None:
    sampler = PromptSampler(10, 0, "short")
    rounds = [sampler.draw(4) for _ in range(6)]
    assert [len(drawn) for drawn in rounds] == [4, 4, 2, 4, 4, 2]
    assert sorted(chain(*rounds[:3])) == sorted(chain(*rounds[3:])) == list(range(10))
    assert sampler.draw_extra() is None  # the epoch is used up


def test_stop_ends_the_run_when_a_round_cannot_be_filled() -> None:
    sampler = PromptSampler(10, 0, "stop")
    assert [len(sampler.draw(4)) for _ in range(4)] == [4, 4, 0, 0]
    assert sampler.draw_extra() is not None
    assert PromptSampler(3, 0, "stop").draw(4) == []


def test_an_extra_problem_is_new_to_the_round() -> None:
    sampler = PromptSampler(6, 0)
    drawn = sampler.draw(4)
    drawn += [index for index in (sampler.draw_extra() for _ in range(5)) if index is not None]
    assert sorted(drawn) == list(range(6))


def test_another_set_or_seed_cannot_be_resumed() -> None:
    sampler = PromptSampler(10, 0)
    before = sampler.state()
    for num_problems, seed, field in ((9, 0, "num_problems 9"), (10, 1, "seed 1")):
        with pytest.raises(DataError, match=field):
            sampler.restore(PromptSampler(num_problems, seed).state())
    assert sampler.state() == before
    with pytest.raises(DataError, match="at least one problem"):
        PromptSampler(0, 0)
