"""Sampling by transformers: log-probs of what was sampled, seeds, stops, and groups as a run would make them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from common.records import FinishReason, Request, Sampling
from common.requests import group_requests
from rolloutpipe_torch.sample import _pick, load_sampler, sample_responses

NO_STOPS: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def sampler(tiny_model: Path) -> Any:
    return load_sampler(tiny_model, "float32")


@pytest.fixture
def requests() -> list[Request]:
    """Of prompts of different lengths, so that most are padded."""
    prompts = [(3,), (5, 6, 7, 8, 9), (11, 12)]
    return [request for order, prompt in enumerate(prompts) for request in group_requests(0, order, prompt, 2, seed=4)]


def test_logprobs_are_those_of_the_distribution_sampled(sampler: Any, requests: list[Request]) -> None:
    """A second way to the same figures: whole sequences, one at a time, no cache, no padding."""
    found = sample_responses(sampler, requests, Sampling(temperature=0.7, max_tokens=12), NO_STOPS)
    for request in requests:
        response = found[request.request_id]
        ids = torch.tensor([[*request.prompt_ids, *response.token_ids]])
        with torch.no_grad():
            scores = torch.log_softmax(sampler(ids).logits[0] / 0.7, -1)
        first = len(request.prompt_ids) - 1
        wanted = [scores[first + index, token].item() for index, token in enumerate(response.token_ids)]
        assert response.logprobs == pytest.approx(wanted, abs=2e-5)  # float32 on both sides
        assert len(response.token_ids) == 12 and response.finish_reason is FinishReason.LENGTH


def test_a_response_depends_on_its_own_seed_alone(sampler: Any, requests: list[Request]) -> None:
    sampling = Sampling(temperature=1.0, max_tokens=10)
    together = sample_responses(sampler, requests, sampling, NO_STOPS)
    for request in requests:
        alone = sample_responses(sampler, [request], sampling, NO_STOPS)[request.request_id]
        assert alone.token_ids == together[request.request_id].token_ids
    assert len({response.token_ids for response in together.values()}) == len(requests)


def test_a_response_ends_with_its_first_stop_token(sampler: Any, requests: list[Request]) -> None:
    sampling = Sampling(temperature=1.0, max_tokens=10)
    free = sample_responses(sampler, requests, sampling, NO_STOPS)
    stop = free[requests[0].request_id].token_ids[4]
    for request_id, response in sample_responses(sampler, requests, sampling, frozenset({stop})).items():
        tokens = free[request_id].token_ids
        end = tokens.index(stop) + 1 if stop in tokens else len(tokens)
        assert response.token_ids == tokens[:end] and len(response.logprobs) == end
        assert response.finish_reason is (FinishReason.STOP if stop in tokens else FinishReason.LENGTH)


def test_tokens_come_as_often_as_their_probability_says() -> None:
    """Of 1000 evenly spread chances, p * 1000 fall to a token of probability p, and none to one of probability 0."""
    probabilities = torch.tensor([0.0, 0.5, 0.125, 0.0, 0.375, 0.0], dtype=torch.float64)
    chances = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    picked = _pick(probabilities.log().expand(1000, -1), chances)
    assert torch.bincount(picked, minlength=6).tolist() == [0, 500, 125, 0, 375, 0]
