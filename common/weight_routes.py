"""How the phase `transfer` of a publish moves weights to the engines. Two routes behind one interface:

    files    each engine reads the spool
    nccl     rank 0 of the trainer sends to the workers of all engines at once, from GPU to GPU

The spool is written and checked either way: an engine that starts later, or in place of a dead one, loads it. After a fault an
engine either was not touched, and serves its old version, or is dead and says so in `health`; a route sees to that.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from common.config import Config
from common.errors import ConfigError, EngineError, PublishError, TrainerDiedError, explain
from common.spool import read_manifest
from common.trainer import RankSet

Result = TypeVar("Result")
Fault = BaseException | None
RouteName = Literal["files", "nccl"]
Tensor = tuple[str, str, list[int]]  # name, dtype, shape

_LONGEST_S = 600.0  # where no deadline is given: a collective may never end
_GRACE_S = 10.0  # for the others, once one has failed
# How tensors are put together on their way; both sides must have the same. Of the buffers each side holds two.
WIRE: dict[str, Any] = {"packed_buffer_size_bytes": 128 * 2**20, "packed_num_buffers": 2}


class FileReader(Protocol):
    """An engine that reads spools."""

    async def publish(self, version: int, spool: Path) -> None:
        """As `Engine.publish`."""
        ...


class Receiver(FileReader, Protocol):
    """An engine whose workers can be in a group with rank 0 of the trainer."""

    @property
    def num_workers(self) -> int:
        """Processes, each with a GPU: the tensor-parallel size."""
        ...

    async def join_group(self, init_info: Mapping[str, Any], timeout_s: float) -> None:
        """Meet the others. Raises EngineError; the engine serves on, or is dead where a worker still waits."""
        ...

    async def receive(self, version: int, tensors: Sequence[Tensor], timeout_s: float) -> None:
        """Load what rank 0 sends, in this order. Raises PublishError, as `publish`."""
        ...

    def condemn(self, reason: str) -> None:
        """Count as dead from now on: sent, not waited for."""
        ...


class Route(Protocol):
    """One way of moving weights."""

    async def deliver(self, version: int, spool: Path, engines: Sequence[Any], timeout_s: float | None) -> list[Fault]:
        """Give the weights of the checked `spool`, which are the trainer's present ones, to all engines at once.

        Returns when each has settled, at most `timeout_s` later: what it raised, or None, in order. Raises TrainerError where
        the trainer is at fault; each engine then has the new weights, or is untouched, or dead, as its `health` says.
        """
        ...


class FilesRoute:
    """Every engine reads the spool."""

    async def deliver(self, version: int, spool: Path, engines: Sequence[FileReader], timeout_s: float | None) -> list[Fault]:
        """As `Route.deliver`."""
        calls = (publish_within(engine, version, spool, timeout_s) for engine in engines)
        return list(await asyncio.gather(*calls, return_exceptions=True))


async def publish_within(engine: FileReader, version: int, spool: Path, timeout_s: float | None) -> None:
    """`engine.publish`, with a deadline. Raises PublishError, EngineError."""
    try:
        async with asyncio.timeout(timeout_s):
            await engine.publish(version, spool)
    except TimeoutError as error:
        text = f"phase transfer did not end within limits.publish_timeout_s ({timeout_s:g} s)"
        raise PublishError(text) from error


class RankSender:
    """The trainer's side: rank 0 sends, and the others gather with it. Its methods are those of a room's `TrainerRank`."""

    def __init__(self, ranks: RankSet) -> None:
        self._ranks = ranks

    async def ready(self, version: int, tensors: Sequence[Tensor]) -> str:
        """The group that rank 0 is in ("" for none). Raises PublishError where it would not send what the spool holds."""
        for group, fault in await self._ranks.call("weight_group", version, list(tensors)):
            if fault:
                raise PublishError(f"weight version {version}: {fault}")
            if group:
                return str(group)
        return ""

    async def meet(self, group: str, world_size: int) -> tuple[str, int]:
        """Leave the old group; where the members of the new one are to meet: (host, port)."""
        answers = await self._ranks.call("meet_engines", group, world_size)
        host, port = answers[0]
        return str(host), int(port)

    async def join(self) -> None:
        """Return when rank 0 has met them. Raises TrainerError; the trainer goes on, as it does meanwhile."""
        await self._ranks.call_in_background("join_engines")

    async def send(self) -> None:
        """Send all tensors in order."""
        await self._ranks.call("send_weights")


class Sender(Protocol):
    """What `NcclRoute` asks of the trainer; see `RankSender`."""

    async def ready(self, version: int, tensors: Sequence[Tensor]) -> str: ...

    async def meet(self, group: str, world_size: int) -> tuple[str, int]: ...

    async def join(self) -> None: ...

    async def send(self) -> None: ...


class NcclRoute:
    """Rank 0 and the workers of all engines form a group; it is made anew whenever a member is another than before.

        ready     the trainer would send exactly what the spool holds, in its order
        join      only where the group is not that of the last publish: no engine is touched
        send      the trainer sends, and all engines receive

    Once one fails, the others wait in a collective for nobody: they get a moment, and then count as dead.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._members: tuple[Receiver, ...] = ()
        self._group = ""
        self._num_groups = 0
        self._joining: asyncio.Task[None] | None = None  # rank 0, which may wait for members that do not come

    async def deliver(self, version: int, spool: Path, engines: Sequence[Receiver], timeout_s: float | None) -> list[Fault]:
        """As `Route.deliver`."""
        timeout_s = _LONGEST_S if timeout_s is None else timeout_s
        grace_s = min(_GRACE_S, timeout_s / 4)
        end_s = asyncio.get_running_loop().time() + timeout_s - 2 * grace_s
        tensors: list[Tensor] = [(name, str(entry["dtype"]), entry["shape"]) for name, entry in read_manifest(spool).items()]
        group = await _within(_left_s(end_s), self._sender.ready(version, tensors), "ready")
        members = tuple(engines)
        if not group or group != self._group or not _same(members, self._members):
            faults = await self._join(members, _left_s(end_s) / 2, grace_s)
            if any(faults):
                return faults
        return await self._send(version, tensors, members, _left_s(end_s), grace_s)

    async def _join(self, members: tuple[Receiver, ...], limit_s: float, grace_s: float) -> list[Fault]:
        self._members, self._group = (), ""
        if self._joining is not None:
            await _within(limit_s, asyncio.wait([self._joining]), "join of the group before")
        self._num_groups += 1
        group, world_size = f"group {self._num_groups}", 1 + sum(engine.num_workers for engine in members)
        host, port = await _within(limit_s, self._sender.meet(group, world_size), "meet")
        calls, offset = [], 1  # rank 0 is the trainer's
        for engine in members:
            place = {"master_address": host, "master_port": port, "rank_offset": offset, "world_size": world_size}
            calls.append(asyncio.create_task(engine.join_group({**place, "packed": True, **WIRE}, limit_s)))
            offset += engine.num_workers
        self._joining = asyncio.create_task(self._sender.join())
        self._joining.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may ask any more
        faults = await _settle(calls, self._joining, members, (limit_s, grace_s), f"not joined within {limit_s:g} s")
        if self._joining.done() and self._joining.exception() is None and not any(faults):
            self._members, self._group, self._joining = members, group, None
            return faults
        cause = self._joining.exception() if self._joining.done() else next(filter(None, faults), None)
        return [fault or PublishError(f"the group of trainer and engines was not complete: {cause}") for fault in faults]

    async def _send(
        self, version: int, tensors: list[Tensor], members: tuple[Receiver, ...], limit_s: float, grace_s: float
    ) -> list[Fault]:
        group, self._members, self._group = self._group, (), ""  # a collective that was left cannot be used again
        calls = [asyncio.create_task(engine.receive(version, tensors, limit_s)) for engine in members]
        sending = asyncio.create_task(self._sender.send())
        reason = f"weight version {version} did not reach it whole"
        faults = await _settle(calls, sending, members, (limit_s, grace_s), reason)
        if not sending.done():
            sending.cancel()
            raise TrainerDiedError(f"weight version {version}: trainer rank 0 still sends; an engine has stopped receiving")
        if (error := sending.exception()) is not None:
            raise error
        if not any(faults):
            self._members, self._group = members, group
        return faults


async def _settle(
    calls: "Sequence[asyncio.Task[None]]",
    trainer: "asyncio.Task[None]",
    engines: Sequence[Receiver],
    times_s: tuple[float, float],
    reason: str,
) -> list[Fault]:
    """Wait for all within (limit, moment for the others after a failure). Engines that have not ended are dead from now on."""
    limit_s, grace_s = times_s
    try:
        _, waiting = await asyncio.wait([*calls, trainer], timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            await asyncio.wait(waiting, timeout=grace_s)
    finally:  # also where the publish is cut off
        stuck = [engine for call, engine in zip(calls, engines, strict=True) if not call.done()]
        for call in calls:
            call.cancel()
        for engine in stuck:
            engine.condemn(reason)
    return [EngineError(reason) if engine in stuck else call.exception() for call, engine in zip(calls, engines, strict=True)]


def _left_s(end_s: float) -> float:
    return max(0.0, end_s - asyncio.get_running_loop().time())


async def _within(limit_s: float, call: Awaitable[Result], phase: str) -> Result:
    try:
        async with asyncio.timeout(limit_s):
            return await call
    except TimeoutError as error:
        raise TrainerDiedError(f"moving weights: the trainer did not end phase {phase} within {limit_s:g} s") from error


def _same(left: Sequence[Receiver], right: Sequence[Receiver]) -> bool:
    return len(left) == len(right) and all(one is other for one, other in zip(left, right, strict=True))


def choose_route(config: Config, *, trainer_has_gpus: bool, engines_have_gpus: bool) -> RouteName:
    """What `cluster.weights` comes to. Raises ConfigError where nccl is asked for and cannot be."""
    wanted = config.cluster.weights
    cause = ""
    if config.trainer != "torch":
        cause = f"trainer={config.trainer} sends none of its weights that way"
    elif not trainer_has_gpus:
        cause = "the trainer has no GPUs here"
    elif not engines_have_gpus:
        cause = "the engines have no GPUs here"
    if wanted == "nccl" and cause:
        raise ConfigError(explain("cluster.weights", "must not be nccl where " + cause, wanted, "use auto, or files"))
    return "files" if cause or wanted == "files" else "nccl"


def make_route(name: RouteName, ranks: RankSet) -> Route:
    """The route of this name, from these trainer ranks."""
    return NcclRoute(RankSender(ranks)) if name == "nccl" else FilesRoute()
