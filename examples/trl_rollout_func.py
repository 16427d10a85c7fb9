"""Frontier-group dispatch in TRL: a rollout function for GRPOTrainer.

    GRPOTrainer(..., rollout_func=rollout_func)      # with `trl vllm-serve` or `vllm serve` at SERVER

TRL gives this process's prompts, each as often as it wants responses to it, and takes one response to each back, in the same
order. Requests go out one by one, lowest group first; a rollout of several turns should take a slot for each turn.
TRL's trainer still starts when all are back. For text prompts and chats.

Written for TRL 1.16.0 (trl/trainer/grpo_trainer.py, trl/generation/vllm_client.py), which calls `rollout_func` experimental.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from examples.frontier_gate import FrontierGate

SERVER = "http://127.0.0.1:8000"
NUM_SLOTS = 64  # requests under way at once, from this process


@cache
def get_client() -> Any:
    """One for all calls."""
    from trl.generation.vllm_client import VLLMClient

    return VLLMClient(base_url=SERVER)


def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
    """One response to each prompt."""
    texts = [each if isinstance(each, str) else apply_template(each, trainer) for each in prompts]
    answers = asyncio.run(sample_all(texts, trainer.args))
    return {
        "prompt_ids": [answer["prompt_ids"][0] for answer in answers],
        "completion_ids": [answer["completion_ids"][0] for answer in answers],
        "logprobs": [[token[0] for token in answer["logprobs"][0]] for answer in answers],  # of the token sampled
    }


def apply_template(messages: list[dict[str, Any]], trainer: Any) -> str:
    """A chat as text."""
    return str(trainer.processing_class.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


async def sample_all(texts: list[str], args: Any) -> list[dict[str, Any]]:
    """Equal prompts are a group; groups are numbered as they first appear. An error ends the round."""
    groups = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    gate = FrontierGate(NUM_SLOTS)
    with ThreadPoolExecutor(NUM_SLOTS) as threads:  # TRL's client blocks, and sets no time limit

        def generate(text: str) -> dict[str, Any]:
            return dict(get_client().generate([text], temperature=args.temperature, max_tokens=args.max_completion_length))

        async def sample(text: str) -> dict[str, Any]:
            async with gate.slot(groups[text]):
                return await asyncio.get_running_loop().run_in_executor(threads, generate, text)

        async with asyncio.TaskGroup() as tasks:
            sampled = [tasks.create_task(sample(text)) for text in texts]
    return [task.result() for task in sampled]
