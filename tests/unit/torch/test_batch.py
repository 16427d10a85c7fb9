"""Rows as tensors: masks by length, whatever the token ids."""

import torch

from common.batching import Row
from rolloutpipe_torch.batch import to_batch

CPU = torch.device("cpu")


def row(prompt, response, sampler=None):
    return Row(prompt, response, (-1.0,) * len(response) if sampler is None else sampler, 1.0, True, True)


def test_padding_on_the_right_positions_before_each_response_token():
    batch = to_batch([row((1, 2), (3, 4, 5)), row((6,), (7,))], CPU)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]
    assert batch.targets.tolist() == [3, 4, 5, 7]
    assert batch.positions.tolist() == [1, 2, 3, 5]  # flattened: tokens 2 3 4, and token 6 at row 1
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]


def test_end_of_sequence_that_is_the_padding_token_is_trained():
    for eos in (0, 2):  # 0 is what pads here
        batch = to_batch([row((1,), (5, 6, eos)), row((1,), (eos,))], CPU)
        assert batch.mask.tolist() == [[True, True, True], [True, False, False]]
        assert batch.targets.tolist() == [5, 6, eos, eos]


def test_one_token_and_longest_responses_side_by_side():
    batch = to_batch([row((1,), (5,)), row((1, 2, 3), tuple(range(10, 26)))], CPU)
    assert batch.mask.sum(-1).tolist() == [1, 16]
    assert batch.input_ids.shape == (2, 19)


def test_no_rows_give_one_dummy_of_weight_zero():
    batch = to_batch([], CPU)
    assert batch.input_ids.shape == (1, 2)
    assert not batch.is_counted.any() and not batch.is_real.any()


def test_padded_puts_values_back_in_place_and_lets_gradients_through():
    batch = to_batch([row((1,), (5,)), row((1,), (6, 7))], CPU)
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    placed = batch.padded(values)
    assert placed.tolist() == [[1.0, 0.0], [2.0, 3.0]]
    (placed * torch.tensor([[1.0, 10.0], [2.0, 3.0]])).sum().backward()
    assert values.grad.tolist() == [1.0, 2.0, 3.0]
