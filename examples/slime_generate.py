"""Frontier-group dispatch in slime: a custom generate function that waits for its turn.

    --custom-generate-function-path examples.slime_generate.generate --sglang-server-concurrency 100000

slime starts a task for every sample and lets its own semaphore, first come first served, hold them back. The second flag gives
that one room for all, and the gate decides instead: groups with the lowest `group_index` first, so those left over from the
rollout before come first. slime samples more groups than it needs, takes those that are whole first and cuts the others off:
whole groups early means less cut off. The rest of slime is as it was; its trainer still starts when the rollout is done.

Written for slime 0.4.0 (docs/en/get_started/customization.md, slime/rollout/sglang_rollout.py).
"""

from typing import Any

from examples.frontier_gate import FrontierGate

NUM_SLOTS = 256  # requests that all your engines run together
gate = FrontierGate(NUM_SLOTS)


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    """slime's own `generate`, when it is this sample's turn."""
    from slime.rollout.sglang_rollout import GenerateState
    from slime.rollout.sglang_rollout import generate as generate_with_sglang
    from slime.utils.types import Sample

    # Samples of an evaluation have no group: each is one of its own.
    group = sample.index if sample.group_index is None else sample.group_index
    async with gate.slot(group):
        if GenerateState(args).aborted:  # while it waited: slime has all it needs
            sample.status = Sample.Status.ABORTED
            return sample
        return await generate_with_sglang(args, sample, sampling_params)
