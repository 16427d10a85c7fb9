"""Scored groups without an engine: sampled by transformers itself, for where there is no vLLM, such as comparing trainers.

Slow and simple. Log-probs are those of the distribution that was sampled, as the engines return them, and a response depends
on its own seed alone, up to the rounding of whatever it was batched with.

Axes: B requests of a batch, T response tokens, V vocabulary.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from common.config import Config
from common.grpo import StdKind
from common.materialize import make_sample, materialize, scale_to_batch, task_of
from common.prepare import Prepared
from common.protocols import Problem, Verifier
from common.records import FinishReason, Group, Request, Response, Sample, Sampling, Times
from common.requests import group_requests
from common.rewards.verifier import make_verifier
from common.workloads.sampler import PromptSampler
from rolloutpipe_torch.rollout.engine import eos_token_ids

_TRIES = 4  # prompts that are sampled for each trainable group that is wanted, at most

Batch = list[tuple[Problem, list[Request]]]  # some groups of one round


def sample_groups(config: Config, prepared: Prepared, num_groups: int) -> list[Group]:
    """Trainable groups under the starting weights, in the order of a run's prompts: `num_groups` of them.

    Fewer where one in four prompts does not give a trainable group, or the problems end (`workload.when_short`).
    """
    torch.set_num_threads(config.training.threads)
    return asyncio.run(_sample_groups(config, prepared, num_groups))


async def _sample_groups(config: Config, prepared: Prepared, num_groups: int) -> list[Group]:
    model = load_sampler(prepared.model_dir, config.rollout.dtype)
    sampling = config.sampling.build()
    stops = frozenset((*eos_token_ids(prepared.model_dir), *sampling.stop_token_ids))
    verifier = make_verifier(config.rewards, examples=prepared.workload.examples)
    found: list[Group] = []
    try:
        await verifier.start(config.limits.start_timeout_s)
        for batch in islice(_batches(config, prepared), _num_batches(config, num_groups)):
            responses = sample_responses(model, [request for _, requests in batch for request in requests], sampling, stops)
            groups = [await _score(config, prepared, verifier, group, responses) for group in batch]
            found += [group for group in _scaled(config, groups) if group.filtered is None]
            if len(found) >= num_groups:
                break
    finally:
        await verifier.close()
    return found[:num_groups]


def load_sampler(model_dir: Path, dtype: str) -> Any:
    """The model for sampling, on the CPU."""
    return AutoModelForCausalLM.from_pretrained(
        str(model_dir), dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False
    ).eval()


def _batch_groups(config: Config) -> int:
    """Groups that are sampled together: as many requests as one engine would run, but with advantages by batch a whole round."""
    if config.advantage_std == "batch":
        return config.groups_per_round
    return max(1, config.rollout.capacity // config.responses_per_group)


def _num_batches(config: Config, num_groups: int) -> int:
    return -(-_TRIES * num_groups // min(config.groups_per_round, _batch_groups(config)))


def _batches(config: Config, prepared: Prepared) -> Iterator[Batch]:
    """Round by round, the requests that a run would make."""
    problems, num_members = prepared.workload.problems, config.responses_per_group
    prompts = PromptSampler(len(problems), config.seed, config.workload.when_short)
    round_index = 0
    while drawn := prompts.draw(config.groups_per_round):
        groups = [
            (problems[index], group_requests(round_index, order, problems[index].prompt_ids, num_members, config.seed))
            for order, index in enumerate(drawn)
        ]
        for start in range(0, len(groups), _batch_groups(config)):
            yield groups[start : start + _batch_groups(config)]
        round_index += 1


async def _score(
    config: Config,
    prepared: Prepared,
    verifier: Verifier,
    group: tuple[Problem, list[Request]],
    responses: dict[Any, Response],
) -> Group:
    """A materialized group of weight version 0."""
    problem, requests = group

    async def sample(request: Request) -> Sample:
        response = responses[request.request_id]
        text = str(prepared.tokenizer.decode(response.token_ids, skip_special_tokens=True))
        return make_sample(request, response, await verifier.score(task_of(problem, response), text), text, Times())

    samples = await asyncio.gather(*map(sample, requests))
    std: StdKind = "none" if config.advantage_std == "batch" else config.advantage_std
    group_id, order = str(requests[0].group_id), requests[0].order
    return materialize(group_id, order, 0, samples, std=std, keep_flat=config.filter == "keep")


def _scaled(config: Config, groups: list[Group]) -> list[Group]:
    if config.advantage_std != "batch":
        return groups
    return scale_to_batch([group for group in groups if group.filtered is None])


@torch.no_grad()
def sample_responses(model: Any, requests: Sequence[Request], sampling: Sampling, stops: frozenset[int]) -> dict[Any, Response]:
    """A response to each request, by its id, all of them sampled side by side."""
    chances = torch.stack([_chances(request, sampling.max_tokens) for request in requests])
    tokens: list[list[int]] = [[] for _ in requests]
    logprobs: list[list[float]] = [[] for _ in requests]
    is_open = [True] * len(requests)
    step = _stepper(model, [request.prompt_ids for request in requests])
    picked: Tensor | None = None
    for index in range(sampling.max_tokens):
        scores = torch.log_softmax(step(picked).double() / sampling.temperature, dim=-1)
        picked = _pick(scores, chances[:, index])
        values = scores.gather(-1, picked[:, None])[:, 0].tolist()
        for row, (token, value) in enumerate(zip(picked.tolist(), values, strict=True)):
            if is_open[row]:
                tokens[row].append(token)
                logprobs[row].append(value)
                is_open[row] = token not in stops
        if not any(is_open):
            break
    return {
        request.request_id: Response(
            request_id=request.request_id,
            token_ids=tuple(row_tokens),
            logprobs=tuple(row_logprobs),
            finish_reason=FinishReason.LENGTH if row_is_open else FinishReason.STOP,
            version_start=0,
            version_end=0,
        )
        for request, row_tokens, row_logprobs, row_is_open in zip(requests, tokens, logprobs, is_open, strict=True)
    }


def _chances(request: Request, max_tokens: int) -> Tensor:
    """A number in [0, 1) for each token of the response, [T] float64."""
    return torch.rand(max_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(request.seed))


def _pick(scores: Tensor, chances: Tensor) -> Tensor:
    """The tokens [B] at which the cumulative probability of `scores` [B, V] passes `chances` [B]."""
    cumulative = scores.exp().cumsum(-1)
    # Times the sum, which rounding keeps from being exactly 1.
    return torch.searchsorted(cumulative, (chances * cumulative[:, -1])[:, None], right=True)[:, 0]


def _stepper(model: Any, prompts: Sequence[tuple[int, ...]]) -> Callable[[Tensor | None], Tensor]:
    """Gives the logits [B, V] of the next token, first after the prompts, then after each token [B] that it is told."""
    width = max(map(len, prompts))
    ids = torch.tensor([[*(0 for _ in range(width - len(prompt))), *prompt] for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    cache: Any = None

    def step(picked: Tensor | None) -> Tensor:
        nonlocal ids, mask, cache
        if picked is not None:
            ids, mask = picked[:, None], torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        cache = out.past_key_values
        logits: Tensor = out.logits[:, -1]
        return logits

    return step
