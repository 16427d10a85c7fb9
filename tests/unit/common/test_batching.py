"""The micro-batch plan and the rows it is made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.batching import padded_tokens, plan_micro_batches, rows_of
from common.errors import ConfigError, UsageError
from common.records import FinishReason, Group, Request, Response, Sample, Verdict

LENGTHS = st.lists(st.integers(1, 100), max_size=40)


def sample(member, tokens, reward=1.0, advantage=0.0, prompt=(1, 2), logprobs=None):
    return Sample(
        request=Request(request_id=f"g/m{member}", group_id="g", order=0, member=member, prompt_ids=prompt),
        response=Response(
            request_id=f"g/m{member}",
            token_ids=tokens,
            logprobs=(-1.0,) * len(tokens) if logprobs is None else logprobs,
            finish_reason=FinishReason.STOP,
            version_start=0,
            version_end=0,
        ),
        reward=reward,
        status=Verdict.ERROR if reward is None else Verdict.OK,
        advantage=advantage,
    )


def group(*samples):
    return Group(group_id="g", order=0, weight_version=0, samples=samples)


@given(LENGTHS, st.integers(100, 400), st.integers(1, 5))
def test_every_sequence_once_equal_counts_budget_kept(lengths, budget, ranks):
    plan = plan_micro_batches(lengths, budget, ranks)
    assert len(plan) == ranks
    assert len({len(steps) for steps in plan}) == 1
    assert sorted(index for steps in plan for run in steps for index in run) == list(range(len(lengths)))
    for steps in plan:
        for run in steps:
            assert not run or len(run) * max(lengths[index] for index in run) <= budget


@given(LENGTHS, st.integers(100, 400), st.integers(1, 5))
def test_the_plan_is_a_function_of_its_arguments(lengths, budget, ranks):
    assert plan_micro_batches(lengths, budget, ranks) == plan_micro_batches(tuple(lengths), budget, ranks)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.integers(100, 400))
def test_one_rank_needs_no_more_passes_than_longest_first_filling(lengths, budget):
    passes = rows = longest = 0
    for length in sorted(lengths, reverse=True):
        if rows and (rows + 1) * longest <= budget:
            rows += 1
        else:
            passes, rows, longest = passes + 1, 1, length
    assert len(plan_micro_batches(lengths, budget, 1)[0]) == passes


def test_unequal_ranks_are_evened_out():
    # Five of 95 and five of 20 under a budget of 100: the long ones fill a pass each, the short ones share one.
    plan = plan_micro_batches([95] * 5 + [20] * 5, 100, 2)
    assert [len(steps) for steps in plan] == [3, 3]


def test_what_fits_one_pass_is_still_spread_over_ranks():
    assert [[len(run) for run in steps] for steps in plan_micro_batches([10] * 8, 1000, 2)] == [[4], [4]]


def test_fewer_sequences_than_ranks_leaves_empty_passes():
    assert plan_micro_batches([10, 20], 100, 3) == [[[1]], [[0]], [[]]]
    assert plan_micro_batches([], 100, 2) == [[], []]


def test_no_divisibility_is_asked_for():
    # R=10 groups of K=3 on 4 ranks
    plan = plan_micro_batches([7] * 30, 64, 4)
    assert {len(steps) for steps in plan} == {1}
    assert padded_tokens(plan, [7] * 30) == 210


def test_sorting_keeps_padding_small():
    lengths = [100, 1] * 10
    assert padded_tokens(plan_micro_batches(lengths, 500, 1), lengths) <= 1010


def test_a_sequence_beyond_the_budget_is_a_configuration_error():
    with pytest.raises(ConfigError, match=r"training\.micro_batch_tokens: must hold the longest sequence \(101 tokens.*got 100;"):
        plan_micro_batches([5, 101], 100, 1)


def test_rows_keep_order_and_mark_what_is_not_trained():
    rows = rows_of(group(sample(0, (5,), advantage=0.5), sample(1, (6, 7), reward=None), sample(2, ())))
    assert [row.response_ids for row in rows] == [(5,), (6, 7)]  # the member without tokens weighs nothing
    assert [row.is_counted for row in rows] == [True, False]
    assert all(row.has_spread for row in rows)
    assert rows[1].num_tokens == 4


def test_a_group_of_zero_advantages_has_no_spread_unless_others_are_given():
    flat = group(sample(0, (5,)), sample(1, (6,)))
    assert not any(row.has_spread for row in rows_of(flat))
    assert [row.advantage for row in rows_of(flat, [1.0, -1.0])] == [1.0, -1.0]
    assert all(row.has_spread for row in rows_of(flat, [1.0, -1.0]))


def test_rows_refuse_what_cannot_be_trained():
    with pytest.raises(UsageError, match="prompt_ids: must hold at least one token"):
        rows_of(group(sample(0, (5,), prompt=())))
    with pytest.raises(UsageError, match="logprobs: must have one value for each of the 2 response tokens, got 1"):
        rows_of(group(sample(0, (5, 6), logprobs=(-1.0,))))
