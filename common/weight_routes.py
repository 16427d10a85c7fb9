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
from common.errors import ConfigError, EngineError, PublishError, TrainerDiedError, TrainerError, explain
from common.spool import read_manifest
from common.trainer import RankSet

Result = TypeVar("Result")
Fault = BaseException | None
Tensor = tuple[str, str, list[int]]  # name, dtype, shape

_SHARE_S = 0.9  # of the time for the phase: faults are told, not cut off
_GRACE_S = 10.0  # for the others, once an engine has failed: they wait in a collective for one that will not come


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

    async def condemn(self, reason: str) -> None:
        """Count as dead from now on; never raises."""
        ...


class Route(Protocol):
    """One way of moving weights."""

    async def deliver(self, version: int, spool: Path, engines: Sequence[Any]) -> list[Fault]:
        """Give the weights of the checked `spool`, which are the trainer's present ones, to all engines at once.

        Returns when each has settled: what it raised, or None, in order. Raises TrainerError where the trainer is at fault;
        each engine then is untouched or dead, as its `health` says.
        """
        ...


class FilesRoute:
    """Every engine reads the spool."""

    async def deliver(self, version: int, spool: Path, engines: Sequence[FileReader]) -> list[Fault]:
        """As `Route.deliver`."""
        return list(await asyncio.gather(*(engine.publish(version, spool) for engine in engines), return_exceptions=True))


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

    async def open(self, group: str, world_size: int) -> tuple[str, int]:
        """Where the members are to meet; rank 0 waits for them in the background (`opened`)."""
        answers = await self._ranks.call("meet_engines", group, world_size)
        host, port = answers[0]
        return str(host), int(port)

    async def opened(self) -> None:
        """Return when rank 0 is in the group. Raises TrainerError; the trainer goes on."""
        await self._ranks.call_in_background("join_engines")

    async def send(self) -> None:
        """Send all tensors in order."""
        await self._ranks.call("send_weights")


class Sender(Protocol):
    """What `NcclRoute` asks of the trainer; see `RankSender`."""

    async def ready(self, version: int, tensors: Sequence[Tensor]) -> str: ...

    async def open(self, group: str, world_size: int) -> tuple[str, int]: ...

    async def opened(self) -> None: ...

    async def send(self) -> None: ...


class NcclRoute:
    """Rank 0 and the workers of all engines form a group; it is made anew whenever a member is another than before.

        ready     the trainer would send exactly what the spool holds, in its order
        join      only where the group is not that of the last publish: no engine is touched
        send      the trainer sends, and all engines receive

    Two deadlines, for join and for all of it, end before that of the publish.
    """

    def __init__(self, sender: Sender, timeout_s: float) -> None:
        self._sender, self._limit_s = sender, _SHARE_S * timeout_s
        self._members: tuple[Receiver, ...] = ()
        self._group = ""
        self._num_groups = 0

    async def deliver(self, version: int, spool: Path, engines: Sequence[Receiver]) -> list[Fault]:
        """As `Route.deliver`."""
        end_s = asyncio.get_running_loop().time() + self._limit_s
        tensors: list[Tensor] = [(name, str(entry["dtype"]), entry["shape"]) for name, entry in read_manifest(spool).items()]
        group = await self._trainer(self._sender.ready(version, tensors), "ready", self._limit_s)
        members = tuple(engines)
        if not group or group != self._group or not _same(members, self._members):
            faults = await self._join(members, self._limit_s / 2)
            if any(faults):
                return faults
        return await self._send(version, tensors, members, end_s)

    async def _join(self, members: tuple[Receiver, ...], limit_s: float) -> list[Fault]:
        self._members, self._group = (), ""
        self._num_groups += 1
        group, world_size = f"group {self._num_groups}", 1 + sum(engine.num_workers for engine in members)
        host, port = await self._trainer(self._sender.open(group, world_size), "open", limit_s)
        calls, offset = [], 1  # rank 0 is the trainer's
        for engine in members:
            info = {"master_address": host, "master_port": port, "rank_offset": offset, "world_size": world_size}
            calls.append(asyncio.create_task(engine.join_group(info, limit_s)))
            offset += engine.num_workers
        opened = asyncio.create_task(self._sender.opened())
        await asyncio.wait([*calls, opened], timeout=limit_s + _GRACE_S)
        faults = [
            await _fault(call, engine, f"did not join within {limit_s:g} s") for call, engine in zip(calls, members, strict=True)
        ]
        if not opened.done():
            opened.cancel()
            raise TrainerDiedError(
                f"trainer rank 0 did not meet the engines within {limit_s:g} s: it waits for one that did not come"
            )
        if (error := opened.exception()) is not None:
            if not isinstance(error, TrainerError) or isinstance(error, TrainerDiedError):
                raise error
            return [fault or PublishError(f"the trainer did not join the engines: {error}") for fault in faults]
        if not any(faults):
            self._members, self._group = members, group
        return faults

    async def _send(self, version: int, tensors: list[Tensor], members: tuple[Receiver, ...], end_s: float) -> list[Fault]:
        limit_s = max(0.0, end_s - asyncio.get_running_loop().time())
        calls = [asyncio.create_task(engine.receive(version, tensors, limit_s)) for engine in members]
        sending = asyncio.create_task(self._sender.send())
        _, waiting = await asyncio.wait([*calls, sending], timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            await asyncio.wait(waiting, timeout=_GRACE_S)
        reason = f"weight version {version} did not reach it whole"
        faults = [await _fault(call, engine, reason) for call, engine in zip(calls, members, strict=True)]
        if any(faults) or not sending.done() or sending.exception() is not None:
            self._members, self._group = (), ""  # a collective that was left cannot be used again
        if not sending.done():
            sending.cancel()
            raise TrainerDiedError(f"weight version {version}: trainer rank 0 still sends; an engine has stopped receiving")
        if (error := sending.exception()) is not None:
            raise error
        return faults

    async def _trainer(self, call: Awaitable[Result], phase: str, limit_s: float) -> Result:
        try:
            async with asyncio.timeout(limit_s):
                return await call
        except TimeoutError as error:
            raise TrainerDiedError(f"moving weights: the trainer did not end phase {phase} within {limit_s:g} s") from error


async def _fault(call: "asyncio.Task[None]", engine: Receiver, reason: str) -> Fault:
    """What the call raised; an engine that is still in it is dead from now on."""
    if call.done():
        return call.exception()
    call.cancel()
    await engine.condemn(reason)
    return EngineError(reason)


def _same(left: Sequence[Receiver], right: Sequence[Receiver]) -> bool:
    return len(left) == len(right) and all(one is other for one, other in zip(left, right, strict=True))


def choose_route(config: Config, *, trainer_has_gpus: bool, engines_have_gpus: bool) -> Literal["files", "nccl"]:
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


def make_route(config: Config, ranks: RankSet, *, on_gpu: bool) -> Route:
    """The route of a run whose trainer and engines are `on_gpu`, or not."""
    if choose_route(config, trainer_has_gpus=on_gpu, engines_have_gpus=on_gpu) == "nccl":
        return NcclRoute(RankSender(ranks), config.limits.publish_timeout_s)
    return FilesRoute()
