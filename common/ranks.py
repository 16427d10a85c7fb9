"""A trainer's processes as one: start them, call them together, watch them, find out which one died, start them again.

A process that dies takes the others with it, because they wait for it in a collective and fail in turn. So the first
failure is not always the cause; after one, the others get a moment to fail too, and a dead process is named before an
unhappy one. A death (TrainerDiedError) may be answered by `restart`; another failure would repeat itself. Ray is imported
where it is used: `common` needs no framework to be imported.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.config import Config
from common.errors import InputError, TrainerDiedError, TrainerError, UsageError, explain
from common.network import LOOPBACK
from common.rank_process import RankProcess, has_run, how_it_died, is_death, what_failed

_GRACE_S = 3.0
_RETRY_S = 1.0  # until Ray knows that a node is gone
_ROOT = Path(__file__).resolve().parents[1]
_BACKGROUND, _WATCH = "background", "watch"

RankOptions = Callable[[int], dict[str, Any]]  # process -> Ray's options of its actor: what it takes, and where


def local_options(num_gpus: float) -> dict[str, Any]:
    """Of a process on the one node of a local run."""
    return {"num_cpus": 0, "num_gpus": num_gpus}


class Ranks:
    """`num_processes` actors, each with `<room>.rank.TrainerRank(config, model_dir, process, num_processes)`.

    A process may drive several of the ranks that micro-batches are planned for: `scatter` deals their shares out.
    """

    def __init__(
        self, room: str, config: Config, model_dir: Path, log_dir: Path, *, num_processes: int, options: RankOptions
    ) -> None:
        import ray

        if not ray.is_initialized():
            raise UsageError(explain("start_trainer", "needs Ray to run", None, "call start_ray first"))
        self._config = config
        self._log_dir = log_dir.absolute()
        self._error: TrainerError | None = None
        # A Ray worker knows the driver's packages only where they are installed or on its path.
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        shared = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}
        remote: Any = ray.remote  # its types do not know concurrency groups
        actor = remote(concurrency_groups={_BACKGROUND: 1, _WATCH: 1})(RankProcess)
        self._make = lambda: [
            actor.options(**shared, **options(process)).remote(
                self._log(process), room, config, model_dir.absolute(), process, num_processes
            )
            for process in range(num_processes)
        ]
        self._actors = self._make()
        self._end: asyncio.Future[Any] | None = None  # of these processes, once it is watched for

    async def watch(self) -> None:
        """Never returns; raises TrainerDiedError at once when a process dies, whether calls run or not.

        After another failure, which ends all processes, it raises that one.
        """
        self._check_open()
        # One call for all who watch: Ray keeps what a call that never returns has taken.
        if self._end is None or self._end.get_loop() is not asyncio.get_running_loop():
            calls = [actor.watch.options(concurrency_group=_WATCH) for actor in self._actors]
            refs = {process: call.remote() for process, call in enumerate(calls)}
            self._end = asyncio.ensure_future(self._gather(refs, grace_s=0))
            self._end.add_done_callback(lambda end: end.cancelled() or end.exception())  # also where nobody watches any more
        await asyncio.shield(self._end)

    async def restart(self) -> None:
        """End what is left of the processes, also of those that hang, start new ones and let them join.

        Raises TrainerDiedError where one dies meanwhile, TrainerError where they do not start in time.
        """
        end_s = asyncio.get_running_loop().time() + self._config.limits.start_timeout_s
        while True:
            self.close()
            self._actors, self._error, self._end = self._make(), None, None
            try:
                return await self.join(max(0.0, end_s - asyncio.get_running_loop().time()))
            except TrainerDiedError as error:
                if has_run(error.__cause__):
                    raise
            await asyncio.sleep(_RETRY_S)

    async def join(self, timeout_s: float) -> None:
        """Let the processes meet and load the model; where that fails, none is left."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._meet()
        except TimeoutError as error:
            self.close()
            limit = self._config.limits.start_timeout_s
            message = f"trainer ranks did not start within {limit:g} s (limits.start_timeout_s); see {self._log(0)}"
            raise TrainerError(message) from error
        except BaseException:
            self.close()
            raise

    async def _meet(self) -> None:
        """Process 0 opens the meeting point; in a local run on the loopback address."""
        cluster = self._config.cluster
        addresses = [LOOPBACK] * len(self._actors)
        if not cluster.is_local:
            calls = [actor.address.remote(cluster.host) for actor in self._actors]
            addresses = await self._gather(dict(enumerate(calls)))
        (port,) = await self._gather({0: self._actors[0].call.remote("listen", addresses[0])})
        await self.call_each("join", [(port, addresses[0], address) for address in addresses])

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

    async def _gather(self, refs: dict[int, Any], *, is_alone: bool = False, grace_s: float = _GRACE_S) -> list[Any]:
        """The answers. A failure ends all processes, unless the call `is_alone`: no other waits for it or uses its work."""
        actors = self._actors
        calls = {process: asyncio.wrap_future(ref.future()) for process, ref in refs.items()}
        try:
            await asyncio.wait(calls.values(), return_when=asyncio.FIRST_EXCEPTION)
            if any(_failed(call) for call in calls.values()):
                await asyncio.wait(calls.values(), timeout=grace_s)
                errors = {process: call.exception() for process, call in calls.items() if _failed(call)}
                if self._error is not None:
                    raise self._error  # of another call at the same time: it ended the processes, and with them this one
                if self._actors is not actors:
                    raise TrainerError("the trainer was started again meanwhile")
                raise self._judge(errors, is_alone=is_alone)
            return [call.result() for call in calls.values()]
        finally:
            for call in calls.values():
                call.cancel()

    def _judge(self, errors: dict[int, BaseException | None], *, is_alone: bool) -> Exception:
        """The error to raise for what the processes raised."""
        from ray.exceptions import RayTaskError

        dead = next((process for process, error in errors.items() if is_death(error)), None)
        if dead is not None:
            return self._fail(self._error_of(TrainerDiedError, dead, f"died ({how_it_died(errors[dead])})", errors[dead]))
        process, error = next(iter(errors.items()))
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, InputError):
            return cause  # bad input is not the process's fault, and it can go on
        failure = self._error_of(TrainerError, process, what_failed(error), error)
        return failure if is_alone else self._fail(failure)

    def _fail(self, error: TrainerError) -> TrainerError:
        # The others may hang in a collective, and their sums are worthless.
        self._error = error
        self.close()
        return error

    def _error_of(self, kind: type[TrainerError], process: int, what: str, cause: BaseException | None) -> TrainerError:
        error = kind(f"trainer rank {process} {what}; see {self._log(process)}")
        error.__cause__ = cause
        return error

    def _log(self, process: int) -> Path:
        return self._log_dir / f"trainer-rank-{process}.log"


def _failed(call: "asyncio.Future[Any]") -> bool:
    return call.done() and not call.cancelled() and call.exception() is not None
