"""Both ends of the NCCL route with vLLM's own code in between, on the CPU: only the communicator is a queue.

What this cannot show is NCCL itself: that workers meet, streams order the copies, and a broadcast ends.
"""

import os
import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # read when vllm is imported; else an installed libtpu is taken for one
from vllm.distributed.weight_transfer import nccl_engine, packed_tensor

from common.errors import PublishError
from common.model_files import TensorLayout
from common.weight_routes import WIRE
from rolloutpipe_torch.rollout import receiver as receiver_module
from rolloutpipe_torch.rollout.receiver import WeightReceiver
from rolloutpipe_torch.sender import WeightSender

LAYOUT = {
    "embed": TensorLayout((40, 8), "bfloat16"),
    "b.norm": TensorLayout((8,), "float32"),
    "a.up": TensorLayout((16, 8), "bfloat16"),
}
WAIT_S = 20.0


class Wire:
    """A broadcast: what the sender gives, each receiver gets, in order."""

    def __init__(self, size: int) -> None:
        self.queues = [queue.Queue[torch.Tensor]() for _ in range(size - 1)]
        self.sizes: list[int] = []
        self.is_destroyed = False

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        self.sizes.append(tensor.numel())
        for each in self.queues:
            each.put(tensor.clone())

    def destroy(self) -> None:
        self.is_destroyed = True


class Tap:
    """One receiver's end."""

    def __init__(self, wire: Wire, index: int) -> None:
        self.wire, self.index, self.is_destroyed = wire, index, False

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        given = self.wire.queues[self.index].get(timeout=WAIT_S)
        assert given.shape == tensor.shape  # NCCL would hang, or mix tensors up
        tensor.copy_(given)

    def destroy(self) -> None:
        self.is_destroyed = True


class Model:
    """Has parameters of its own, one under another name than the checkpoint, as fused layers have."""

    def __init__(self) -> None:
        self.params = {name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for name, spec in LAYOUT.items()}

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.params.items()

    def load_weights(self, tensors: Any) -> set[str]:
        names = set()
        for name, tensor in tensors:
            self.params[name].copy_(tensor)
            names.add(name)
        return names


class Lab:
    """A sender and two receivers; `meet` joins them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = SimpleNamespace(synchronize=lambda: None)
        monkeypatch.setattr(packed_tensor, "_get_streams", lambda device, num: (stream,) * num)
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
        monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", self._open)
        monkeypatch.setattr(nccl_engine, "worker_init_process_group", self._join)
        monkeypatch.setattr(receiver_module, "initialize_layerwise_reload", lambda model: None)
        monkeypatch.setattr(receiver_module, "finalize_layerwise_reload", lambda model, config: None)
        monkeypatch.setattr(receiver_module, "rebind_tied_head", lambda model: None)
        torch.manual_seed(0)
        self.params = {name: torch.randn(spec.shape) for name, spec in LAYOUT.items()}
        self.sender = WeightSender(self.params, LAYOUT, 0)
        self.sender.version = 1
        vllm_config: Any = SimpleNamespace(parallel_config=None, model_config=SimpleNamespace(quantization=None))
        self.models = [Model(), Model()]
        build: Callable[..., Any] = WeightReceiver
        self.receivers = [build(None, vllm_config, torch.device("cpu"), model) for model in self.models]

    def _open(self, info: Any) -> Wire:
        self.wire = Wire(info.world_size)
        self.sender_info = info
        return self.wire

    def _join(self, info: Any, parallel: object) -> Tap:
        assert (info.master_address, info.master_port) == (self.sender_info.master_address, self.sender_info.master_port)
        assert info.world_size == self.sender_info.world_size
        for name in WIRE:  # else the two sides cut the stream differently
            assert getattr(info, name) == getattr(self.sender_info, name) == WIRE[name]
        assert info.packed
        assert self.sender_info.packed
        return Tap(self.wire, info.rank_offset - 1)

    def meet(self, group: str = "group 1") -> None:
        host, port = self.sender.meet(group, "127.0.0.1", 3)
        self.sender.join()
        for number, receiver in enumerate(self.receivers):
            place = {"master_address": host, "master_port": port, "rank_offset": 1 + number, "world_size": 3}
            receiver.init_transfer_engine(receiver.parse_init_info({"group": {**place, "packed": True, **WIRE}}))

    def send(self, names: list[str] | None = None) -> list[BaseException | None]:
        """What each receiver raised."""
        names = names or list(LAYOUT)
        update = {
            "names": names,
            "dtype_names": [LAYOUT[name].dtype for name in names],
            "shapes": [list(LAYOUT[name].shape) for name in names],
        }
        faults: list[BaseException | None] = [None, None]

        def receive(number: int) -> None:
            receiver = self.receivers[number]
            try:
                receiver.start_weight_update()
                receiver.update_weights(update)
                receiver.finish_weight_update()
            except BaseException as error:  # told to the test
                faults[number] = error

        threads = [threading.Thread(target=receive, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        self.sender.send()
        for thread in threads:
            thread.join(WAIT_S)
        return faults


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def values(params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(getattr(torch, LAYOUT[name].dtype)) for name, tensor in params.items()}


def check(lab: Lab) -> None:
    for model in lab.models:
        for name, wanted in values(lab.params).items():
            assert torch.equal(model.params[name], wanted)


@pytest.mark.parametrize("buffer_bytes", [1, 650, WIRE["packed_buffer_size_bytes"]], ids=["one each", "two", "one in all"])
def test_every_value_arrives_at_every_engine_in_the_dtype_of_the_layout(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int
) -> None:
    """Also where the stream is cut into buffers."""
    monkeypatch.setitem(WIRE, "packed_buffer_size_bytes", buffer_bytes)
    lab.meet()
    assert lab.send() == [None, None]
    check(lab)
    assert sum(lab.wire.sizes) == 640 + 32 + 256
    assert len(lab.wire.sizes) == {1: 3, 650: 2}.get(buffer_bytes, 1)


def test_the_same_group_serves_again_and_a_new_one_ends_the_old(lab: Lab) -> None:
    """An engine was replaced: its peers leave the group that cannot be used any more."""
    lab.meet()
    lab.send()
    lab.params["b.norm"].add_(1.0)
    assert lab.send() == [None, None]
    check(lab)
    old, taps = lab.wire, [receiver._nccl.model_update_group for receiver in lab.receivers]
    lab.meet("group 2")
    assert old.is_destroyed
    assert all(tap.is_destroyed for tap in taps)
    assert lab.sender.weight_group(1, tensors())[0] == "group 2"
    assert lab.send() == [None, None]


def test_an_engine_that_lacks_a_tensor_at_the_end_says_which(lab: Lab) -> None:
    """It does not serve a parameter that was never filled."""
    lab.meet()
    for model in lab.models:
        model.params["extra"] = torch.zeros(1)
    faults = lab.send()
    assert all(
        isinstance(fault, PublishError) and "parameter extra of the engine was in no shard" in str(fault) for fault in faults
    )


def test_an_engine_in_no_group_refuses_at_once(lab: Lab) -> None:
    """Not a hang in a collective of one."""
    lab.receivers[0].start_weight_update()
    with pytest.raises(PublishError, match="in no group with the trainer"):
        lab.receivers[0].update_weights({"names": [], "dtype_names": [], "shapes": []})


def tensors() -> list[tuple[str, str, list[int]]]:
    return [(name, spec.dtype, list(spec.shape)) for name, spec in LAYOUT.items()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given[::-1], "the trainer sends .'embed'.* where the spool has .'a.up'"),
        (lambda given: given[:2], "the trainer sends 3 tensors, and the spool has 2"),
        (lambda given: [(given[0][0], "float32", given[0][2]), *given[1:]], "where the spool has .'embed', 'float32'"),
        (lambda given: [(given[0][0], given[0][1], [8, 40]), *given[1:]], r"where the spool has .*\[8, 40\]"),
    ],
    ids=["order", "fewer", "dtype", "shape"],
)
def test_a_trainer_that_would_send_something_else_is_found_before_anyone_waits(lab: Lab, change: Any, message: str) -> None:
    """Two sides that disagree about the stream would hang in it, or load garbage."""
    assert lab.sender.weight_group(1, tensors()) == ("", "")
    group, fault = lab.sender.weight_group(1, change(tensors()))
    assert group == ""
    assert re.search(message, fault)


def test_weights_that_have_moved_on_since_the_export_are_not_sent(lab: Lab) -> None:
    """The spool is what was checked, and what the version's fingerprint is of."""
    assert "exported version 1" in lab.sender.weight_group(2, tensors())[1]
    lab.sender.version = None
    assert "the trainer holds other weights by now" in lab.sender.weight_group(1, tensors())[1]


def test_a_rank_beside_rank_0_gathers_and_sends_nothing(lab: Lab) -> None:
    """It opens no endpoint, and needs no address."""
    gathered: list[str] = []
    other = WeightSender(lab.params, LAYOUT, 1)
    given = other.tensors

    def watched() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in given():
            gathered.append(name)
            yield name, tensor

    other.tensors = watched  # type: ignore[method-assign]
    assert other.meet("group 1", "127.0.0.1", 3) == ("", 0)
    other.join()
    other.send()
    assert gathered == list(LAYOUT)
    assert not hasattr(lab, "wire")
