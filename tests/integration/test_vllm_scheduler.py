"""examples/vllm_frontier_scheduler.py in vLLM's own scheduler code, step by step and without a model: no engine starts here."""

import os
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # an installed libtpu is no TPU
import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from common.policies import AdmissionPolicy, FifoAdmission, FrontierGroupDispatch
from examples.vllm_frontier_scheduler import FrontierScheduler, PolicyQueue
from tests.integration.tiny_models import tiny_model

SLOTS = 4
BLOCK = 32  # tokens
PLENTY = 64  # blocks


class FifoScheduler(FrontierScheduler):
    """The planted bug: the plug-in, but first come first served."""

    def new_policy(self) -> AdmissionPolicy:
        return FifoAdmission()


class StrictScheduler(FrontierScheduler):
    """As a user would write it."""

    def new_policy(self) -> AdmissionPolicy:
        return FrontierGroupDispatch(frontier_width=1, work_conserving=False)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    tiny_model(directory, seed=0, tied=True, eos=None)
    return directory


class Lab:
    """A scheduler and a model that answers every step with one token for each request."""

    def __init__(
        self, scheduler_class: type[Scheduler], model_dir: Path, *, num_blocks: int = PLENTY, policy: str = "fcfs"
    ) -> None:
        limits = {"max_num_seqs": SLOTS, "max_num_batched_tokens": 1024, "max_model_len": 256}
        config = VllmConfig(
            model_config=ModelConfig(model=str(model_dir), dtype="float32", max_model_len=256, skip_tokenizer_init=True),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=False),
            scheduler_config=SchedulerConfig(**limits, is_encoder_decoder=False, policy=policy),
        )
        config.cache_config.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.scheduler = scheduler_class(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
        )
        self.started: list[str] = []
        self.resumed: list[str] = []
        self.ended: list[str] = []

    def add(self, ids: Iterable[str], *, prompt: int = 3, max_tokens: int = 4, priority: int = 0) -> None:
        for each in ids:
            params = SamplingParams(max_tokens=max_tokens + sum(map(ord, each)) % 3)
            self.scheduler.add_request(Request(each, [1] * prompt, params, None, priority=priority))

    def schedule(self) -> SchedulerOutput:
        output = self.scheduler.schedule()
        self.started += [each.req_id for each in output.scheduled_new_reqs]
        self.resumed += output.scheduled_cached_reqs.resumed_req_ids
        return output

    def answer(self, output: SchedulerOutput) -> None:
        """One token for every request scheduled; those that had to compute more of their prompt first get none."""
        ids = list(output.num_scheduled_tokens)
        tokens = [[] if self.is_prefilling(each, output) else [5] for each in ids]
        result = ModelRunnerOutput(req_ids=ids, req_id_to_index={each: i for i, each in enumerate(ids)}, sampled_token_ids=tokens)
        for outputs in self.scheduler.update_from_output(output, result).values():
            self.ended += [each.request_id for each in outputs.outputs if each.finish_reason is not None]

    def is_prefilling(self, request_id: str, output: SchedulerOutput) -> bool:
        request = self.scheduler.requests.get(request_id)
        return request is not None and request.is_prefill_chunk

    def step(self) -> None:
        self.answer(self.schedule())

    def run(self, max_steps: int = 500) -> list[str]:
        """Until nothing is left; the ids in the order in which they started."""
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished_requests():
                assert not self.scheduler.waiting
                assert len(self.scheduler.waiting) == 0
                return self.started
            self.step()
        raise AssertionError(f"{self.scheduler.get_request_counts()} (running, waiting) after {max_steps} steps")

    def abort(self, ids: list[str]) -> None:
        self.scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)
        self.ended += ids


def order_of(request_id: str) -> int:
    found = re.search(r"/g(\d+)", request_id)
    assert found
    return int(found[1])


def shuffled(num_groups: int, num_members: int, seed: int = 0, first: int = 0) -> list[str]:
    ids = [f"cmpl-r0/g{group}/m{m}-0-{group}{m}" for group in range(first, first + num_groups) for m in range(num_members)]
    random.Random(seed).shuffle(ids)
    return ids


def by_group(ids: list[str]) -> list[str]:
    return sorted(ids, key=order_of)  # stable: members as they arrived


@pytest.mark.parametrize("seed", range(3))
def test_requests_start_group_by_group_whatever_order_they_arrive_in(model_dir: Path, seed: int) -> None:
    lab = Lab(FrontierScheduler, model_dir)
    ids = shuffled(8, 3, seed)
    lab.add(ids)
    assert lab.run() == by_group(ids)
    assert sorted(lab.ended) == sorted(ids)


@pytest.mark.parametrize("scheduler_class", [Scheduler, AsyncScheduler, FifoScheduler])
def test_without_the_policy_they_start_as_they_arrive(model_dir: Path, scheduler_class: type[Scheduler]) -> None:
    """The check above can fail."""
    lab = Lab(scheduler_class, model_dir)
    ids = shuffled(8, 3)
    lab.add(ids)
    assert lab.run() == ids != by_group(ids)


def test_groups_are_read_from_every_kind_of_id_and_else_from_the_priority(model_dir: Path) -> None:
    lab = Lab(FrontierScheduler, model_dir)
    lab.add(["r1/g0/m0-1a"])  # another round, later
    lab.add(["chatcmpl-r0/g12/m0-2b", "1_cmpl-r0/g2-0-3c", "r0/g1/m0-4d", "0_cmpl-r0/g2-0-3c"])
    lab.add(["chatcmpl-b5f8", "bar0/g0x"], priority=3)
    lab.add(["cmpl-77aa-0-5e"], priority=0)
    expected = ["cmpl-77aa-0-5e", "r0/g1/m0-4d", "1_cmpl-r0/g2-0-3c", "0_cmpl-r0/g2-0-3c", "chatcmpl-b5f8", "bar0/g0x"]
    assert lab.run() == [*expected, "chatcmpl-r0/g12/m0-2b", "r1/g0/m0-1a"]


def test_a_lower_group_that_arrives_late_goes_before_all_that_wait(model_dir: Path) -> None:
    lab = Lab(FrontierScheduler, model_dir)
    high = shuffled(5, 2, first=10)
    lab.add(high)
    lab.step()
    lab.add(late := shuffled(2, 2))
    assert lab.run() == by_group(high)[:SLOTS] + by_group(late) + by_group(high)[SLOTS:]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_preempted_requests_come_back_before_later_groups_and_all_end(model_dir: Path, policy: str) -> None:
    lab = Lab(FrontierScheduler, model_dir, num_blocks=6, policy=policy)  # five usable: four running requests outgrow them
    ids = shuffled(3, 4)
    lab.add(ids, prompt=30, max_tokens=40)
    while not lab.resumed:
        lab.step()
    assert all(order_of(each) <= min(order_of(other) for other in lab_waiting(lab)) for each in lab.resumed)
    assert lab.run() == by_group(ids)
    assert sorted(lab.ended) == sorted(ids)


def lab_waiting(lab: Lab) -> list[str]:
    return [each.request_id for each in lab.scheduler.waiting]


def test_aborted_requests_leave_no_trace_wherever_they_were(model_dir: Path) -> None:
    lab = Lab(FrontierScheduler, model_dir)
    ids = by_group(shuffled(6, 2))
    lab.add(ids)
    lab.step()
    lab.abort([ids[0], ids[4], ids[5]])  # one that runs, and a whole group that waits
    assert lab.run() == [each for each in ids if each not in (ids[4], ids[5])]
    assert sorted(lab.ended) == sorted(ids)
    lab.add(ids)  # the same ids again: another round, or a client that tries again
    lab.run()
    assert sorted(lab.ended) == sorted(ids * 2)


def test_nothing_is_remembered_of_requests_that_have_ended(model_dir: Path) -> None:
    lab = Lab(FrontierScheduler, model_dir)
    for start in range(0, 60, 6):
        lab.add(ids := shuffled(6, 2, first=start))
        lab.step()
        lab.abort(ids[:3])
        lab.run()
    queue: Any = lab.scheduler.waiting
    assert (queue._tickets, queue._waiting, queue._looked_at) == ({}, {}, None)
    lab.add(["r0/g0/m0"])
    assert len(queue._policy._known) == 1


def test_the_queue_alone_keeps_the_promises_of_vllms_interface() -> None:
    queue = PolicyQueue(FrontierGroupDispatch)
    assert (len(queue), bool(queue), list(queue)) == (0, False, [])
    with pytest.raises(IndexError):
        queue.peek_request()
    with pytest.raises(IndexError):
        queue.pop_request()
    second, first, third, other = (Request(each, [1], SamplingParams(), None) for each in ("r0/g1", "r0/g0", "r0/g2", "r0/g3"))
    queue.prepend_requests([second, first])
    assert queue.peek_request() is queue.peek_request() is first
    queue.add_request(third)
    queue.remove_request(first)
    queue.remove_requests([other])  # which is not here: nothing
    assert sorted(each.request_id for each in queue) == ["r0/g1", "r0/g2"]
    assert queue.pop_request() is second
    queue.remove_requests({second})  # nor is this one any more
    queue.prepend_request(second)
    assert [queue.pop_request(), queue.pop_request(), len(queue)] == [second, third, 0]


def test_a_strict_policy_leaves_slots_empty_and_ends_all_the_same(model_dir: Path) -> None:
    lab = Lab(StrictScheduler, model_dir)
    ids = shuffled(4, 2)
    lab.add(ids)
    most = 0
    while lab.scheduler.has_unfinished_requests():
        lab.step()
        most = max(most, len(lab.scheduler.running))
    assert most == 2 < SLOTS
    assert lab.started == by_group(ids)


def test_an_aborted_group_does_not_stand_in_a_strict_policys_way(model_dir: Path) -> None:
    lab = Lab(StrictScheduler, model_dir)
    ids = by_group(shuffled(5, 2))
    lab.add(ids)
    lab.abort(ids[:2])  # the whole frontier, before any of it has started
    lab.step()
    lab.abort(ids[3:4])
    assert lab.run() == ids[2:]
    assert sorted(lab.ended) == sorted(ids)


@pytest.mark.parametrize("scheduler_class", [FrontierScheduler, StrictScheduler])
def test_a_pause_holds_everything_back_and_loses_nothing(model_dir: Path, scheduler_class: type[FrontierScheduler]) -> None:
    from vllm.v1.core.sched.interface import PauseState

    lab = Lab(scheduler_class, model_dir)
    ids = shuffled(4, 2)
    lab.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    lab.add(ids)
    lab.step()
    assert lab.started == []
    lab.scheduler.set_pause_state(PauseState.UNPAUSED)
    lab.step()
    lab.scheduler.reset_prefix_cache(reset_running_requests=True)  # preempts all that run
    assert lab.run() == by_group(ids)
    assert sorted(lab.ended) == sorted(ids)


@pytest.mark.parametrize("num_blocks", [PLENTY, 8])
def test_asynchronous_scheduling_starts_in_the_same_order(model_dir: Path, num_blocks: int) -> None:
    """vLLM then schedules a step before it has the answers of the one before."""
    lab = Lab(FrontierScheduler, model_dir, num_blocks=num_blocks)
    ids = shuffled(6, 3)
    lab.add(ids, prompt=20, max_tokens=30)
    under_way = [lab.schedule()]
    for _ in range(1000):
        under_way.append(lab.schedule())
        lab.answer(under_way.pop(0))
        if not lab.scheduler.has_unfinished_requests():
            break
    assert lab.started == by_group(ids)
    assert sorted(lab.ended) == sorted(ids)
    assert bool(lab.resumed) == (num_blocks < PLENTY)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_request_ends_once_and_no_lower_group_is_passed_over(model_dir: Path, seed: int) -> None:
    rng = random.Random(seed)
    lab = Lab(FrontierScheduler, model_dir, num_blocks=rng.choice([7, PLENTY]), policy=rng.choice(["fcfs", "priority"]))
    ids = shuffled(12, 3, seed)
    unsent = list(ids)
    while unsent or lab.scheduler.has_unfinished_requests():
        for _ in range(min(rng.randrange(4), len(unsent))):
            lab.add([unsent.pop()], prompt=rng.randrange(1, 40), max_tokens=rng.randrange(1, 40))
        alive = [each for each in lab.scheduler.requests if rng.random() < 0.01]
        lab.abort(alive)
        if rng.random() < 0.02:
            lab.scheduler.reset_prefix_cache(reset_running_requests=True)
        num_started, num_resumed = len(lab.started), len(lab.resumed)
        output = lab.schedule()
        entered = [order_of(each) for each in lab.started[num_started:] + lab.resumed[num_resumed:]]
        waiting = [order_of(each) for each in lab_waiting(lab)]
        assert not entered or not waiting or max(entered) <= min(waiting)
        lab.answer(output)
    assert sorted(lab.ended) == sorted(ids)
