"""The ranks as one: start them, call them together, find out which one died.

A rank that dies takes the others with it, because they wait for it in a collective and fail in turn. So the first failure
is not always the cause; after one, the others get a moment to fail too, and a dead process is named before an unhappy one.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

import rolloutpipe_torch
from common.config import Config
from common.errors import InputError, TrainerError
from common.process import die_with_parent, log_to

_GRACE_S = 3.0
_ROOT = Path(rolloutpipe_torch.__file__).parents[1]


class _RankProcess:
    """A `TrainerRank` in a process of its own. The driver needs only this shell, so it imports no torch."""

    def __init__(self, log_file: Path, *args: Any) -> None:
        die_with_parent()
        log_to(log_file)
        from rolloutpipe_torch.rank import TrainerRank

        self._rank = TrainerRank(*args)

    def call(self, method: str, *args: Any) -> Any:
        """What `method` of the rank returns."""
        return getattr(self._rank, method)(*args)

    def pid(self) -> int:
        """Process id."""
        return os.getpid()


class Ranks:
    """One actor for each rank, on one machine."""

    def __init__(self, config: Config, model_dir: Path, log_dir: Path, *, on_gpu: bool) -> None:
        self._log_dir = log_dir
        self._error: TrainerError | None = None
        # A Ray worker knows the driver's packages only where they are installed or on its path.
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        options = {"num_cpus": 0, "num_gpus": int(on_gpu), "runtime_env": {"env_vars": {"PYTHONPATH": path}}}
        num_ranks = config.training.ranks
        actor: Any = ray.remote(_RankProcess)
        self._actors = [
            actor.options(**options).remote(self._log(rank), config, model_dir, rank, num_ranks) for rank in range(num_ranks)
        ]

    async def join(self, timeout_s: float) -> None:
        """Let the ranks meet and load the model."""
        try:
            async with asyncio.timeout(timeout_s):
                port = (await self._gather({0: self._actors[0].call.remote("listen")}))[0]
                await self.call("join", port)
        except TimeoutError as error:
            message = f"trainer ranks did not start within {timeout_s:g} s (limits.start_timeout_s); see {self._log(0)}"
            raise TrainerError(message) from error

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Call `method` with the same arguments on every rank; their answers in order."""
        return await self.call_each(method, [args] * len(self._actors))

    async def call_each(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call `method` with `args[rank]`. Raises TrainerError that names the rank, then again at each later call."""
        if self._error is not None:
            raise self._error
        calls = zip(self._actors, args, strict=True)
        return await self._gather({rank: actor.call.remote(method, *mine) for rank, (actor, mine) in enumerate(calls)})

    def pids(self) -> list[int]:
        """Process ids of the ranks."""
        pids: list[int] = ray.get([actor.pid.remote() for actor in self._actors])
        return pids

    def close(self) -> None:
        """End the processes; idempotent."""
        if ray.is_initialized():  # else they are gone already
            for actor in self._actors:
                ray.kill(actor)
        self._actors = []
        self._error = self._error or TrainerError("the trainer is closed")

    async def _gather(self, refs: dict[int, Any]) -> list[Any]:
        calls = {rank: asyncio.wrap_future(ref.future()) for rank, ref in refs.items()}
        try:
            await asyncio.wait(calls.values(), return_when=asyncio.FIRST_EXCEPTION)
            if any(_failed(call) for call in calls.values()):
                await asyncio.wait(calls.values(), timeout=_GRACE_S)
                raise self._judge({rank: call.exception() for rank, call in calls.items() if _failed(call)})
            return [call.result() for call in calls.values()]
        finally:
            for call in calls.values():
                call.cancel()

    def _judge(self, errors: dict[int, BaseException | None]) -> Exception:
        """The error to raise for what the ranks raised."""
        dead = next((rank for rank, error in errors.items() if isinstance(error, RayActorError)), None)
        if dead is not None:
            return self._fail(dead, "died", errors[dead])
        rank, error = next(iter(errors.items()))
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, InputError):
            return cause  # bad input is not the rank's fault, and it can go on
        return self._fail(rank, f"failed with {type(cause).__name__}: {_one_line(cause)}", error)

    def _fail(self, rank: int, what: str, cause: BaseException | None) -> TrainerError:
        # The others may hang in a collective, and their sums are worthless.
        self._error = TrainerError(f"trainer rank {rank} {what}; see {self._log(rank)}")
        self._error.__cause__ = cause
        self.close()
        return self._error

    def _log(self, rank: int) -> Path:
        return self._log_dir / f"trainer-rank-{rank}.log"


def _failed(call: "asyncio.Future[Any]") -> bool:
    return call.done() and not call.cancelled() and call.exception() is not None


def _one_line(error: BaseException | None) -> str:
    return " ".join(str(error).split())
