"""A trainer's processes as one: start them, call them together, find out which one died.

A process that dies takes the others with it, because they wait for it in a collective and fail in turn. So the first
failure is not always the cause; after one, the others get a moment to fail too, and a dead process is named before an
unhappy one. Ray is imported where it is used: `common` needs no framework to be imported.
"""

import asyncio
import importlib
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.config import Config
from common.errors import InputError, TrainerError, UsageError, explain
from common.process import die_with_parent, log_to

_GRACE_S = 3.0
_ROOT = Path(__file__).resolve().parents[1]
_BACKGROUND = "background"


class _RankProcess:
    """A `TrainerRank` in a process of its own. The driver needs only this shell, so it imports no trainer's framework.

    `call`s run one after the other in one thread, whose settings they share; `background_call`s in another one.
    """

    def __init__(self, log_file: Path, room: str, *args: Any) -> None:
        die_with_parent()
        log_to(log_file)
        self._rank = importlib.import_module(f"{room}.rank").TrainerRank(*args)

    def call(self, method: str, *args: Any) -> Any:
        """What `method` of the rank returns."""
        return getattr(self._rank, method)(*args)

    def background_call(self, method: str, *args: Any) -> Any:
        """The same beside ordinary calls, for a `method` that waits and touches nothing that they use."""
        return getattr(self._rank, method)(*args)

    def pid(self) -> int:
        """Process id."""
        return os.getpid()


class Ranks:
    """`num_processes` actors on one machine, each with `<room>.rank.TrainerRank(config, model_dir, process, num_processes)`.

    A process may drive several of the ranks that micro-batches are planned for: `scatter` deals their shares out.
    """

    def __init__(
        self, room: str, config: Config, model_dir: Path, log_dir: Path, *, num_processes: int, gpus_per_process: float
    ) -> None:
        import ray

        if not ray.is_initialized():
            raise UsageError(explain("start_trainer", "needs Ray to run", None, "call start_ray first"))
        self._log_dir = log_dir.absolute()
        self._error: TrainerError | None = None
        self._start_timeout_s = config.limits.start_timeout_s
        # A Ray worker knows the driver's packages only where they are installed or on its path.
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        options = {"num_cpus": 0, "num_gpus": gpus_per_process, "runtime_env": {"env_vars": {"PYTHONPATH": path}}}
        remote: Any = ray.remote  # its types do not know concurrency groups
        actor = remote(concurrency_groups={_BACKGROUND: 1})(_RankProcess)
        self._make = lambda: [
            actor.options(**options).remote(self._log(process), room, config, model_dir.absolute(), process, num_processes)
            for process in range(num_processes)
        ]
        self._actors = self._make()

    async def watch(self) -> None:
        """Never returns; raises TrainerDiedError that names the process, when one dies."""
        await asyncio.get_running_loop().create_future()

    async def restart(self) -> None:
        """End what is left of the processes, and start new ones."""
        self.close()
        self._actors, self._error = self._make(), None
        await self.join(self._start_timeout_s)

    async def join(self, timeout_s: float) -> None:
        """Let the processes meet and load the model; where that fails, none is left."""
        try:
            async with asyncio.timeout(timeout_s):
                port = (await self._gather({0: self._actors[0].call.remote("listen")}))[0]
                await self.call("join", port)
        except TimeoutError as error:
            self.close()
            message = f"trainer ranks did not start within {timeout_s:g} s (limits.start_timeout_s); see {self._log(0)}"
            raise TrainerError(message) from error
        except BaseException:
            self.close()
            raise

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Call `method` with the same arguments in every process; their answers in order."""
        return await self.call_each(method, [args] * len(self._actors))

    async def call_each(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call `method` with `args[process]`. Raises TrainerError that names the process, then again at each later call."""
        self._check_open()
        calls = zip(self._actors, args, strict=True)
        return await self._gather({process: actor.call.remote(method, *mine) for process, (actor, mine) in enumerate(calls)})

    async def scatter(self, method: str, shares: Sequence[Any], *args: Any) -> list[Any]:
        """Call `method` once in every process, with the list of its part of `shares` (one for each rank), then `args`.

        Of n shares process p of P gets those from p * n // P up to (p + 1) * n // P. Returns the answers, one for each
        share, in order; none where `method` returns None.
        """
        self._check_open()
        num_processes = len(self._actors)
        cuts = [process * len(shares) // num_processes for process in range(num_processes + 1)]
        parts = await self.call_each(method, [(list(shares[start:end]), *args) for start, end in pairwise(cuts)])
        return [answer for part in parts if part is not None for answer in part]

    async def call_in_background(self, method: str, *args: Any) -> list[Any]:
        """As `call`, for a method that takes long: other calls go on meanwhile, and where it fails they go on too."""
        self._check_open()
        calls = [actor.background_call.options(concurrency_group=_BACKGROUND) for actor in self._actors]
        refs = {process: call.remote(method, *args) for process, call in enumerate(calls)}
        return await self._gather(refs, is_alone=True)

    def pids(self) -> list[int]:
        """Process ids in order."""
        import ray

        pids: list[int] = ray.get([actor.pid.remote() for actor in self._actors])
        return pids

    def close(self) -> None:
        """End the processes; idempotent."""
        import ray

        if ray.is_initialized():  # else they are gone already
            for actor in self._actors:
                ray.kill(actor)
        self._actors = []
        self._error = self._error or TrainerError("the trainer is closed")

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    async def _gather(self, refs: dict[int, Any], *, is_alone: bool = False) -> list[Any]:
        """The answers. A failure ends all processes, unless the call `is_alone`: no other waits for it or uses its work."""
        calls = {process: asyncio.wrap_future(ref.future()) for process, ref in refs.items()}
        try:
            await asyncio.wait(calls.values(), return_when=asyncio.FIRST_EXCEPTION)
            if any(_failed(call) for call in calls.values()):
                await asyncio.wait(calls.values(), timeout=_GRACE_S)
                errors = {process: call.exception() for process, call in calls.items() if _failed(call)}
                raise self._judge(errors, is_alone=is_alone)
            return [call.result() for call in calls.values()]
        finally:
            for call in calls.values():
                call.cancel()

    def _judge(self, errors: dict[int, BaseException | None], *, is_alone: bool) -> Exception:
        """The error to raise for what the processes raised."""
        from ray.exceptions import RayActorError, RayTaskError

        if self._error is not None:
            return self._error  # of another call at the same time: it ended the processes, and with them this one
        dead = next((process for process, error in errors.items() if isinstance(error, RayActorError)), None)
        if dead is not None:
            return self._fail(dead, "died", errors[dead])
        process, error = next(iter(errors.items()))
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, InputError):
            return cause  # bad input is not the process's fault, and it can go on
        what = f"failed with {type(cause).__name__}: {_one_line(cause)}"
        return self._error_of(process, what, error) if is_alone else self._fail(process, what, error)

    def _fail(self, process: int, what: str, cause: BaseException | None) -> TrainerError:
        # The others may hang in a collective, and their sums are worthless.
        self._error = self._error_of(process, what, cause)
        self.close()
        return self._error

    def _error_of(self, process: int, what: str, cause: BaseException | None) -> TrainerError:
        error = TrainerError(f"trainer rank {process} {what}; see {self._log(process)}")
        error.__cause__ = cause
        return error

    def _log(self, process: int) -> Path:
        return self._log_dir / f"trainer-rank-{process}.log"


def _failed(call: "asyncio.Future[Any]") -> bool:
    return call.done() and not call.cancelled() and call.exception() is not None


def _one_line(error: BaseException | None) -> str:
    return " ".join(str(error).split())
