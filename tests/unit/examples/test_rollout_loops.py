"""The examples for slime, verl and TRL against stubs of their interfaces: the policy decides the order, groups come back whole.

In each, the first requests find free slots and go at once; what waits after that is the gate's to order.
"""

import asyncio
import importlib
import random
from typing import Any

import pytest

from common.policies import FifoAdmission
from examples import frontier_gate
from examples.frontier_gate import FrontierGate
from tests.unit.examples.stub_systems import Slime, Trl, Verl

SLOTS = 4


@pytest.fixture(params=["frontier", "fifo"])
def is_frontier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the policy is in its place; with first come first served there instead, the order must be wrong."""
    if request.param == "fifo":
        monkeypatch.setattr(frontier_gate, "FrontierGroupDispatch", FifoAdmission)
    return bool(request.param == "frontier")


def load(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """The example, imported anew."""
    module = importlib.reload(importlib.import_module(f"examples.{name}"))
    monkeypatch.setattr(module, "NUM_SLOTS", SLOTS)
    if hasattr(module, "gate"):
        monkeypatch.setattr(module, "gate", FrontierGate(SLOTS))
    return module


def is_ordered(groups: list[int], *, looks_ahead: int = 0) -> bool:
    """Whether each call, beyond the first, was for a group that was due then, or would be `looks_ahead` calls later."""
    due = sorted(groups[SLOTS:])
    return all(group <= due[min(index + looks_ahead, len(due) - 1)] for index, group in enumerate(groups[SLOTS:]))


def test_slime_generates_lowest_groups_first_and_cuts_fewer_off(monkeypatch: pytest.MonkeyPatch, is_frontier: bool) -> None:
    slime = Slime(monkeypatch)
    example = load(monkeypatch, "slime_generate")
    groups = [[slime.Sample(group_index=group, index=8 * group + member) for member in range(8)] for group in range(12)]
    random.Random(0).shuffle(groups)
    taken = asyncio.run(slime.roll_out(example.generate, groups, num_wanted=8))
    called = [group for group, _ in slime.server.calls]
    assert is_ordered(called) == is_frontier
    assert slime.server.most == SLOTS
    assert all(sample.status == slime.Sample.Status.COMPLETED for group in taken for sample in group)
    for group in taken:
        assert [sample.response for sample in group] == [f"answer to {(each.group_index, each.index)}" for each in group]
    if is_frontier:
        indices = sorted(group[0].group_index for group in taken)
        assert indices[:7] == list(range(7))
        cut = [sample for group in groups for sample in group if sample.status == slime.Sample.Status.ABORTED]
        assert len(cut) + len(called) == 96
        assert len(cut) >= 96 - 64 - 2 * SLOTS  # hardly more was sampled than was taken


def test_slime_samples_of_an_evaluation_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slime = Slime(monkeypatch)
    example = load(monkeypatch, "slime_generate")
    samples = [[slime.Sample(index=index)] for index in (7, 3, 9, 1, 8, 2)]
    taken = asyncio.run(slime.roll_out(example.generate, samples, num_wanted=6))
    assert [index for _, index in slime.server.calls] == [7, 3, 9, 1, 2, 8]
    assert len(taken) == 6


def test_verl_agent_loops_run_lowest_groups_first(monkeypatch: pytest.MonkeyPatch, is_frontier: bool) -> None:
    verl = Verl(monkeypatch)
    load(monkeypatch, "verl_agent_loop")
    priorities = list(range(48))
    random.Random(0).shuffle(priorities)
    outputs = asyncio.run(verl.generate_sequences("frontier_agent", 6, priorities))
    assert is_ordered([priority // 6 for priority in verl.server.calls]) == is_frontier
    if is_frontier:  # and the members of a group as they came
        assert verl.server.calls[SLOTS:] == sorted(priorities[SLOTS:], key=lambda priority: priority // 6)
    assert verl.server.most == SLOTS
    assert [output.extra_fields["answer"] for output in outputs] == [f"answer to {each}" for each in priorities]


def test_trl_rollouts_go_lowest_group_first_and_come_back_in_order(monkeypatch: pytest.MonkeyPatch, is_frontier: bool) -> None:
    trl = Trl(monkeypatch)
    example = load(monkeypatch, "trl_rollout_func")

    class Trainer:
        class args:
            temperature = 0.7
            max_completion_length = 6

    prompts = [f"prompt {group}" for _ in range(5) for group in range(8)]
    output = example.rollout_func(prompts, Trainer())
    # The threads that were started together may reach the server in any order.
    assert is_ordered([int(name[-1]) for name in trl.server.calls], looks_ahead=SLOTS) == is_frontier
    assert trl.server.most <= SLOTS
    assert {key: len(value) for key, value in output.items()} == {"prompt_ids": 40, "completion_ids": 40, "logprobs": 40}
    assert [bytes(ids).decode() for ids in output["prompt_ids"]] == prompts
    assert {len(ids) for ids in output["completion_ids"]} == {6}
    assert output["logprobs"] == [[-0.5] * 6] * 40


def test_trl_chats_are_written_out_by_the_trainers_template(monkeypatch: pytest.MonkeyPatch) -> None:
    trl = Trl(monkeypatch)
    example = load(monkeypatch, "trl_rollout_func")

    class Trainer:
        class args:
            temperature = 1.0
            max_completion_length = 4

        class processing_class:
            @staticmethod
            def apply_chat_template(messages: list[dict[str, Any]], *, add_generation_prompt: bool, tokenize: bool) -> str:
                assert add_generation_prompt
                assert not tokenize
                return f"<{messages[0]['content']}>"

    output = example.rollout_func([[{"role": "user", "content": "a"}]] * 2, Trainer())
    assert trl.server.calls == ["<a>", "<a>"]
    assert bytes(output["prompt_ids"][1]) == b"<a>"
