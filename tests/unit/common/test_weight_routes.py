"""Moving weights: the order of calls, and what is left after a fault in each phase, with a communicator that is none.

It has the nature of a collective: all members must come, a tensor passes when all take it, and who waits for one that does not
come waits for ever. Deadlines run in virtual time.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from round_lab import config_of

from common.errors import ConfigError, EngineError, PublishError, TrainerDiedError, TrainerError
from common.spool import SpoolWriter
from common.testing import run_virtual
from common.weight_routes import FilesRoute, NcclRoute, RankSender, Tensor, choose_route, make_route

TENSORS: list[Tensor] = [("embed", "float32", [4, 3]), ("layer.weight", "bfloat16", [3, 3]), ("a.norm", "float32", [3])]
LIMIT_S = 100.0


class Group:
    """Members that have come, and one barrier a tensor."""

    def __init__(self, size: int) -> None:
        self.size, self.num_come, self.num_members = size, 0, 0
        self.complete = asyncio.Event()
        self.barriers: list[asyncio.Barrier] = []
        self.sent: dict[int, Tensor] = {}

    async def come(self, num_workers: int = 1) -> None:
        self.num_come += num_workers
        self.num_members += 1
        if self.num_come == self.size:
            self.barriers = [asyncio.Barrier(self.num_members) for _ in TENSORS]
            self.complete.set()
        await self.complete.wait()


class Wire:
    """What the two sides share, and the calls in order."""

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}
        self.calls: list[str] = []


class FakeReceiver:
    """`fault` is what it does wrong, and where: (phase or number of a tensor, "raise" or "hang")."""

    def __init__(self, wire: Wire, name: str, num_workers: int = 1) -> None:
        self.wire, self.name, self._num_workers = wire, name, num_workers
        self.version, self.is_alive, self.is_half_new = 0, True, False
        self.fault: tuple[str | int, str] | None = None
        self.group: Group | None = None
        self.infos: list[dict[str, Any]] = []
        self.got: list[Tensor] = []

    @property
    def num_workers(self) -> int:
        return self._num_workers

    @property
    def serves(self) -> int | None:
        """Version; None for a dead engine. A half-new one that is not dead is what must never be."""
        assert not (self.is_alive and self.is_half_new)
        return self.version if self.is_alive else None

    async def publish(self, version: int, spool: Path) -> None:
        self.wire.calls.append(f"{self.name} reads {spool.name}")
        await self._meet_fault("publish")
        self.version = version

    async def join_group(self, init_info: dict[str, Any], timeout_s: float) -> None:
        self.wire.calls.append(f"{self.name} joins")
        self.infos.append(init_info)
        await self._meet_fault("join")
        self.group = self.wire.groups[init_info["master_port"]]
        await self.group.come(self._num_workers)

    async def receive(self, version: int, tensors: Sequence[Tensor], timeout_s: float) -> None:
        self.wire.calls.append(f"{self.name} receives")
        assert self.group is not None
        self.is_half_new = True
        try:
            for number, tensor in enumerate(tensors):
                await self._meet_fault(number)
                await self.group.barriers[number].wait()
                assert self.group.sent[number] == tensor
                self.got.append(tensor)
            await self._meet_fault("finish")
        except PublishError:
            self.is_alive = False  # as the actor sees to
            raise
        self.version, self.is_half_new = version, False

    def condemn(self, reason: str) -> None:
        self.is_alive = False

    async def _meet_fault(self, place: str | int) -> None:
        if self.fault is not None and self.fault[0] == place:
            if self.fault[1] == "hang":
                await asyncio.get_running_loop().create_future()
            raise (EngineError if place == "join" else PublishError)(f"{self.name} fails at {place}")


class FakeSender:
    """The trainer; `fault` as of the receiver."""

    def __init__(self, wire: Wire) -> None:
        self.wire, self.group_name, self.group = wire, "", None
        self.fault: tuple[str | int, str] | None = None
        self.tensors = TENSORS
        self._port = 0

    async def ready(self, version: int, tensors: Sequence[Tensor]) -> str:
        await self._meet_fault("ready")
        assert list(tensors) == self.tensors
        return self.group_name

    async def meet(self, group: str, world_size: int) -> tuple[str, int]:
        await self._meet_fault("meet")
        self._port += 1
        self.wire.groups[self._port] = Group(world_size)
        self._next, self.group_name = group, ""
        self.wire.calls.append(f"trainer meets {world_size}")
        return "127.0.0.1", self._port

    async def join(self) -> None:
        await self._meet_fault("join")
        self.group = self.wire.groups[self._port]
        try:
            async with asyncio.timeout(300):  # vLLM's own
                await self.group.come()
        except TimeoutError:
            raise TrainerError("trainer rank 0 failed: nobody came") from None
        self.group_name = self._next

    async def send(self) -> None:
        self.wire.calls.append("trainer sends")
        assert self.group is not None
        for number, tensor in enumerate(self.tensors):
            await self._meet_fault(number)
            self.group.sent[number] = tensor
            await self.group.barriers[number].wait()

    async def _meet_fault(self, place: str | int) -> None:
        if self.fault is not None and self.fault[0] == place:
            if self.fault[1] == "hang":
                await asyncio.get_running_loop().create_future()
            raise TrainerError(f"trainer fails at {place}")


class Lab:
    """Two engines, the first of two workers, and a spool."""

    def __init__(self, root: Path) -> None:
        self.wire = Wire()
        self.engines = [FakeReceiver(self.wire, "engine-0", 2), FakeReceiver(self.wire, "engine-1")]
        self.sender = FakeSender(self.wire)
        self.route = NcclRoute(self.sender)
        self.spool = root / "v1"
        with SpoolWriter(self.spool, 1) as writer:
            for name, dtype, shape in TENSORS:
                writer.add(name, dtype, tuple(shape), bytes(int(np.prod(shape)) * (2 if dtype == "bfloat16" else 4)))

    async def deliver(self, version: int) -> list[BaseException | None]:
        """Within the deadline, in virtual time."""
        async with asyncio.timeout(LIMIT_S):
            return await self.route.deliver(version, self.spool, self.engines, LIMIT_S)

    async def next_works(self, version: int = 9) -> None:
        """Dead engines are replaced, the trainer may have to be, and then a publish reaches all."""
        for number, engine in enumerate(self.engines):
            if engine.serves is None:
                self.engines[number] = FakeReceiver(self.wire, engine.name, engine.num_workers)
            engine.fault = None
        self.sender.fault = None
        assert await self.deliver(version) == [None, None]
        assert [engine.serves for engine in self.engines] == [version, version]


def test_both_sides_have_the_same_tensors_in_the_order_of_the_spool(tmp_path: Path) -> None:
    """Which is no alphabetical one; ranks follow each other, the trainer is 0."""

    async def main() -> None:
        lab = Lab(tmp_path)
        assert await lab.deliver(1) == [None, None]
        assert [engine.got for engine in lab.engines] == [TENSORS, TENSORS]
        assert [(info["rank_offset"], info["world_size"]) for engine in lab.engines for info in engine.infos] == [(1, 4), (3, 4)]
        assert lab.wire.calls == [
            "trainer meets 4",
            "engine-0 joins",
            "engine-1 joins",
            "engine-0 receives",
            "engine-1 receives",
            "trainer sends",
        ]

    run_virtual(main())


def test_the_group_is_kept_while_its_members_are_the_same_and_made_anew_when_one_is_not(tmp_path: Path) -> None:
    """An engine that was replaced, and ranks that started again, are other members."""

    async def main() -> None:
        lab = Lab(tmp_path)
        meetings = lambda: lab.wire.calls.count("trainer meets 4")  # noqa: E731
        for version, expected in ((1, 1), (2, 1)):
            assert await lab.deliver(version) == [None, None]
            assert meetings() == expected
        lab.engines[1] = FakeReceiver(lab.wire, "engine-1")
        assert await lab.deliver(3) == [None, None]
        assert meetings() == 2
        lab.sender.group_name = ""  # the ranks are new
        assert await lab.deliver(4) == [None, None]
        assert meetings() == 3

    run_virtual(main())


PHASES = ["join", 0, 1, 2, "finish"]


@pytest.mark.parametrize("kind", ["raise", "hang"])
@pytest.mark.parametrize("phase", PHASES)
def test_an_engine_that_fails_leaves_old_versions_or_dead_engines_and_the_next_publish_works(
    tmp_path: Path, phase: str | int, kind: str
) -> None:
    """In each phase: it raises, or it never answers. At `join` no engine has been touched."""

    async def main() -> None:
        lab = Lab(tmp_path)
        lab.engines[1].fault = (phase, kind)
        faults: list[BaseException | None] = []
        is_over = phase == "finish"  # all tensors have passed: trainer and the other engine are done
        if phase == "join" or is_over:
            faults = await lab.deliver(1)
            assert faults[1] is not None
            assert (faults[0] is None) == is_over
        else:
            with pytest.raises(TrainerDiedError, match="weight version 1: trainer rank 0 still sends"):
                await lab.deliver(1)
        ends = {"join": [None, 0 if kind == "raise" else None], "finish": [1, None]}
        assert [engine.serves for engine in lab.engines] == ends.get(str(phase), [None, None])
        if phase == "join":  # rank 0 waits for those that did not come, as long as vLLM does
            await asyncio.sleep(300)
        await lab.next_works()

    run_virtual(main())


@pytest.mark.parametrize("kind", ["raise", "hang"])
@pytest.mark.parametrize("phase", ["ready", "meet", "join", 0, 1, 2])
def test_a_trainer_that_fails_does_so_too(tmp_path: Path, phase: str | int, kind: str) -> None:
    """Before the first tensor no engine is touched; a trainer that hangs is reported as one to start again."""

    async def main() -> None:
        lab = Lab(tmp_path)
        lab.sender.fault = (phase, kind)
        if phase == "join":  # engines that wait for rank 0 cannot serve
            faults = await lab.deliver(1)
            assert all(isinstance(fault, EngineError | PublishError) for fault in faults)
        else:
            with pytest.raises(TrainerDiedError if kind == "hang" else TrainerError):
                await lab.deliver(1)
        expected = [0, 0] if phase in ("ready", "meet") else [None, None]
        assert [engine.serves for engine in lab.engines] == expected
        lab.sender = FakeSender(lab.wire)
        if phase == "join" and kind == "hang":
            return  # the next test
        lab.route._sender = lab.sender
        await lab.next_works()

    run_virtual(main())


def test_a_rank_that_never_leaves_the_meeting_is_one_to_start_again(tmp_path: Path) -> None:
    """Found by the next publish, which would otherwise wait behind it."""

    async def main() -> None:
        lab = Lab(tmp_path)
        lab.sender.fault = ("join", "hang")
        await lab.deliver(1)
        lab.engines = [FakeReceiver(lab.wire, engine.name) for engine in lab.engines]
        with pytest.raises(TrainerDiedError, match="join of the group before"):
            await lab.deliver(2)
        assert [engine.serves for engine in lab.engines] == [0, 0]

    run_virtual(main())


def test_a_publish_that_is_cut_off_leaves_no_engine_that_may_be_half_new(tmp_path: Path) -> None:
    """Ctrl-C, or a deadline further out."""

    async def main() -> None:
        lab = Lab(tmp_path)
        lab.engines[1].fault = (1, "hang")
        task = asyncio.create_task(lab.deliver(1))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert [engine.serves for engine in lab.engines] == [None, None]

    run_virtual(main())


def test_files_reach_all_engines_and_one_that_hangs_is_told(tmp_path: Path) -> None:
    """The same interface; the others are not held up, and not lost."""

    async def main() -> None:
        lab = Lab(tmp_path)
        lab.engines[0].fault = ("publish", "hang")
        faults = await FilesRoute().deliver(1, lab.spool, lab.engines, LIMIT_S)
        assert isinstance(faults[0], PublishError)
        assert "phase transfer did not end within limits.publish_timeout_s (100 s)" in str(faults[0])
        assert faults[1] is None
        assert lab.wire.calls == ["engine-0 reads v1", "engine-1 reads v1"]

    run_virtual(main())


def test_a_group_that_failed_is_not_used_again_by_the_same_members(tmp_path: Path) -> None:
    """Also where trainer and engines are the same afterwards and all say that they are in it: its collective was left."""

    async def main() -> None:
        lab = Lab(tmp_path)
        assert await lab.deliver(1) == [None, None]
        lab.engines[1].fault = ("finish", "raise")
        assert (await lab.deliver(2))[1] is not None
        lab.engines[1].fault, lab.engines[1].is_alive, lab.engines[1].is_half_new = None, True, False
        assert await lab.deliver(3) == [None, None]
        assert lab.wire.calls.count("trainer meets 4") == 2

    run_virtual(main())


class FakeRanks:
    """Two ranks; answers by method."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.calls = answers, []

    async def call(self, method: str, *args: Any) -> list[Any]:
        self.calls.append((method, *args))
        return [self.answers[method], ("", "") if method == "weight_group" else None]

    async def call_in_background(self, method: str, *args: Any) -> list[Any]:
        self.calls.append(("background", method, *args))
        return [None, None]


def test_the_sender_asks_the_ranks() -> None:
    """All of them each time, as sending gathers; meeting the engines is the one call that others pass by."""

    async def main() -> None:
        ranks = FakeRanks(weight_group=("group 3", ""), meet_engines=("10.0.0.1", 5), send_weights=None)
        sender = RankSender(ranks)  # type: ignore[arg-type]
        assert await sender.ready(7, TENSORS) == "group 3"
        assert await sender.meet("group 4", 3) == ("10.0.0.1", 5)
        await sender.join()
        await sender.send()
        assert ranks.calls == [
            ("weight_group", 7, TENSORS),
            ("meet_engines", "group 4", 3),
            ("background", "join_engines"),
            ("send_weights",),
        ]
        ranks.answers["weight_group"] = ("group 3", "the trainer holds other weights by now")
        with pytest.raises(PublishError, match="weight version 7: the trainer holds other weights by now"):
            await sender.ready(7, TENSORS)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("weights", "trainer", "has_gpus", "engines", "expected"),
    [
        ("auto", "torch", True, True, "nccl"),
        ("auto", "torch", False, True, "files"),
        ("auto", "torch", True, False, "files"),
        ("auto", "jax", True, True, "files"),
        ("files", "torch", True, True, "files"),
        ("nccl", "torch", True, True, "nccl"),
    ],
)
def test_the_route_is_chosen_by_what_there_is(weights: str, trainer: str, has_gpus: bool, engines: bool, expected: str) -> None:
    config = config_of(cluster={"weights": weights}, trainer=trainer)
    assert choose_route(config, trainer_has_gpus=has_gpus, engines_have_gpus=engines) == expected
    kind = {"nccl": NcclRoute, "files": FilesRoute}[expected]
    chosen = choose_route(config, trainer_has_gpus=has_gpus, engines_have_gpus=engines)
    assert isinstance(make_route(chosen, FakeRanks()), kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trainer", "has_gpus", "engines", "cause"),
    [
        ("jax", True, True, "trainer=jax"),
        ("torch", False, True, "the trainer has no GPUs"),
        ("torch", True, False, "the engines"),
    ],
)
def test_nccl_where_it_cannot_be_is_refused_with_the_reason(trainer: str, has_gpus: bool, engines: bool, cause: str) -> None:
    config = config_of(cluster={"weights": "nccl"}, trainer=trainer)
    with pytest.raises(ConfigError, match=rf"^cluster.weights: must not be nccl where {cause}.*; use auto, or files$"):
        choose_route(config, trainer_has_gpus=has_gpus, engines_have_gpus=engines)
