"""Frontier-group dispatch in verl: an agent loop that waits for its turn.

    actor_rollout_ref.rollout.agent.agent_loop_config_path=frontier.yaml
    actor_rollout_ref.rollout.agent.default_agent_loop=frontier_agent
    actor_rollout_ref.rollout.agent.num_workers=1

with frontier.yaml:

    - name: frontier_agent
      _target_: examples.verl_agent_loop.FrontierAgentLoop

verl numbers the samples of a batch, `n` of a prompt in a row, and hands each its number as `priority`; number // n is the group.
One worker, because each has a gate of its own and would only order its own share. An agent loop of several turns should take
a slot for each turn, around `server_manager.generate`.

With several workers, let vLLM decide: `actor_rollout_ref.rollout.scheduling_policy=priority` makes it follow verl's numbers.
verl's trainer still starts when the whole batch is sampled. Written for verl 0.9.1 (verl/experimental/agent_loop).
"""

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from examples.frontier_gate import FrontierGate

NUM_SLOTS = 256  # requests that all your engines run together
gate = FrontierGate(NUM_SLOTS)


@register("frontier_agent")
class FrontierAgentLoop(SingleTurnAgentLoop):
    """verl's single-turn agent, when it is this sample's turn."""

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        async with gate.slot(int(priority) // self.rollout_config.n):
            return await super().run(sampling_params, priority=priority, **kwargs)
