"""Stubs of slime 0.4.0, verl 0.9.1 and TRL 1.16.0: only what the examples touch, shaped as their public interfaces are.

`install` puts them where the real modules would be. Their engines are one `Server`, which notes who called in which order.
"""

import asyncio
import enum
import sys
import threading
import time
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Server:
    """Answers after a few turns of the event loop, or, for TRL's blocking client, a few milliseconds."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.num_now = self.most = 0
        self.lock = threading.Lock()

    async def answer(self, name: Any) -> str:
        self.enter(name)
        for _ in range(5 + len(self.calls) % 3):
            await asyncio.sleep(0)
        self.leave()
        return f"answer to {name}"

    def answer_blocking(self, name: Any) -> str:
        self.enter(name)
        time.sleep(0.005)
        self.leave()
        return f"answer to {name}"

    def enter(self, name: Any) -> None:
        with self.lock:
            self.calls.append(name)
            self.num_now += 1
            self.most = max(self.most, self.num_now)

    def leave(self) -> None:
        with self.lock:
            self.num_now -= 1


def install(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    """A module `name`, and the packages above it."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        path = ".".join(parts[:length])
        if path not in sys.modules:
            monkeypatch.setitem(sys.modules, path, ModuleType(path))
    for key, value in contents.items():
        setattr(sys.modules[name], key, value)


class Slime:
    """slime/rollout/sglang_rollout.py: `generate_rollout_async`, with the custom generate function as slime calls it."""

    @dataclass
    class Sample:
        """slime/utils/types.py"""

        class Status(enum.Enum):
            PENDING = "pending"
            COMPLETED = "completed"
            ABORTED = "aborted"

        group_index: int | None = None
        index: int | None = None
        prompt: str = ""
        response: str = ""
        status: Status = Status.PENDING

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = Server()
        self.state = SimpleNamespace(aborted=False)
        install(monkeypatch, "slime.utils.types", Sample=self.Sample)
        install(monkeypatch, "slime.rollout.sglang_rollout", GenerateState=lambda args: self.state, generate=self.generate)

    async def generate(self, args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        """slime's own."""
        sample.response = await self.server.answer((sample.group_index, sample.index))
        sample.status = self.Sample.Status.COMPLETED
        return sample

    async def roll_out(self, custom_generate: Any, groups: list[list[Any]], num_wanted: int) -> list[list[Any]]:
        """A task a group and a task a sample; the groups that are whole first are taken, the others told to stop."""

        async def of_group(group: list[Any]) -> list[Any]:
            return list(await asyncio.gather(*(custom_generate(SimpleNamespace(), each, {}) for each in group)))

        pending = {asyncio.create_task(of_group(group)) for group in groups}
        taken: list[list[Any]] = []
        while len(taken) < num_wanted:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            taken += [task.result() for task in done]
        self.state.aborted = True
        if pending:
            await asyncio.wait(pending)
        return taken


class Verl:
    """verl/experimental/agent_loop: a worker's `generate_sequences`, its single-turn agent loop, and the client they share."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server = Server()
        self.registry = registry = {}

        class AgentLoopOutput(SimpleNamespace):
            """Some of its fields."""

        class SingleTurnAgentLoop:
            def __init__(self, *, n: int) -> None:
                self.rollout_config = SimpleNamespace(n=n)

            async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
                assert kwargs["raw_prompt"]
                return AgentLoopOutput(prompt_ids=[1], response_ids=[2], extra_fields={"answer": await server.answer(priority)})

        def register(agent_name: str) -> Any:
            def decorator(subclass: type) -> type:
                registry[agent_name] = subclass
                return subclass

            return decorator

        install(monkeypatch, "verl.experimental.agent_loop.agent_loop", AgentLoopOutput=AgentLoopOutput, register=register)
        install(monkeypatch, "verl.experimental.agent_loop.single_turn_agent_loop", SingleTurnAgentLoop=SingleTurnAgentLoop)

    async def generate_sequences(self, agent_name: str, n: int, priorities: list[int]) -> list[Any]:
        """An agent loop and a task for each sample of the batch."""
        runs = [
            self.registry[agent_name](n=n).run({"temperature": 1.0}, priority=each, raw_prompt=[{}], uid=f"u{each // n}")
            for each in priorities
        ]
        return list(await asyncio.gather(*(asyncio.create_task(run) for run in runs)))


class Trl:
    """trl/generation/vllm_client.py: `VLLMClient`, which blocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server = Server()

        class VLLMClient:
            def __init__(self, base_url: str | None = None) -> None:
                assert base_url

            def generate(
                self, prompts: list[str], *, n: int = 1, temperature: float = 1.0, max_tokens: int = 16
            ) -> dict[str, Any]:
                answers = [server.answer_blocking(prompt) for prompt in prompts for _ in range(n)]
                return {
                    "prompt_ids": [list(prompt.encode()) for prompt in prompts],
                    "completion_ids": [list(answer.encode())[:max_tokens] for answer in answers],
                    "logprobs": [[[-0.5]] * len(answer.encode()[:max_tokens]) for answer in answers],
                    "logprob_token_ids": [[[byte] for byte in answer.encode()[:max_tokens]] for answer in answers],
                }

        install(monkeypatch, "trl.generation.vllm_client", VLLMClient=VLLMClient)
