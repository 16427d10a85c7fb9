"""One try of one request on the engine, with every deadline that rule 7 asks for, and whether its response may be used.

Nothing is kept between tries: retries, slots and groups belong to `common.rollout_side`.
"""

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

from common.books import Books
from common.config import Config
from common.engine_wait import check_alive, wait_for_engine
from common.errors import EngineDiedError, EngineError
from common.open_group import Member, OpenGroup
from common.protocols import Engine
from common.records import FinishReason, Response, Sampling
from common.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a try has given no response that may be used, in one line."""

    reason: str
    is_move: bool = False  # its engine is gone: not the request's doing, and no try of it


_ENDED = Loss("its group has ended")


def max_moves(config: Config) -> int:
    """Engines that one request may lose, after which it is taken for what kills them.

    So many restarts does one engine have, and 3 at least: a prompt that kills every engine costs its group and not the run. What
    runs beside it each time goes with it.
    """
    return max(config.supervision.max_restarts, 3)


class Sampler:
    """Asks the engine for responses of one weight version."""

    def __init__(
        self,
        config: Config,
        *,
        index: int | None,
        version: int,
        engine: Engine,
        timeline: Timeline,
        books: Books,
        sampling: Sampling | None = None,
        prefix: str = "",
    ) -> None:
        """`index` None: in no round. `prefix`: of the kinds of its events, where they are no training's."""
        self._limits, self._sampling = config.limits, sampling or config.sampling.build()
        self._no_engine_s = config.supervision.no_engine_s
        self._version, self._prefix = version, prefix
        self._engine, self._timeline, self._books = engine, timeline, books
        self.where = {} if index is None else {"round": index}  # of events
        self.num_responses = 0
        self.num_tokens = 0

    async def sample(self, member: Member, group: OpenGroup) -> Response | Loss:
        """A response that may be used, or why there is none. Raises EngineError where no engine is alive or on its way."""
        request, limit = member.request, self._limits.request_timeout_s
        if not group.is_open:
            return _ENDED  # between admission and now
        try:
            member.replica = self._engine.place(request)
        except EngineError as error:  # an engine was lost between admission and now
            return await self._lost(error, is_move=True)
        self._emit("dispatch", member)
        try:
            async with asyncio.timeout(limit):
                response = await self._engine.generate(request, self._sampling)
        except TimeoutError:
            await self.abort([member])
            return Loss(f"no response within limits.request_timeout_s ({limit:g} s)")
        except EngineError as error:
            return await self._lost(error, is_move=isinstance(error, EngineDiedError))
        if not group.is_open:
            return _ENDED
        fault = self._fault_of(member, response)
        return Loss(fault) if fault else response

    async def _lost(self, error: EngineError, *, is_move: bool) -> Loss:
        await check_alive(self._engine, error, self._limits.close_timeout_s)
        return Loss(str(error), is_move)

    async def await_engine(self) -> None:
        """Return when there is capacity; raises EngineError where none comes within supervision.no_engine_s, or at all."""
        await wait_for_engine(self._engine, self._no_engine_s)

    def _fault_of(self, member: Member, response: Response) -> str:
        """Why `response` may not be used; empty where it may."""
        self.num_responses += 1
        self.num_tokens += len(response.token_ids)
        self._emit(
            "response",
            member,
            start=round(member.admitted_s, 6),
            tokens=len(response.token_ids),
            finish_reason=response.finish_reason,
            version=response.version_end,
        )
        if response.version_start != self._version or response.version_end != self._version:
            self._books.rejected += 1
            versions = f"{response.version_start} to {response.version_end}"
            return f"sampled from weight version {versions}, the round's is {self._version} (rule 1)"
        return "aborted by the engine" if response.finish_reason is FinishReason.ABORT else ""

    async def abort(self, members: Iterable[Member]) -> None:
        """Return when the engine has let them go, at the latest after `limits.close_timeout_s`.

        An engine that is dead or stuck has nothing to let go; the next try finds that out.
        """
        request_ids = [member.request.request_id for member in members]
        if request_ids:
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(self._limits.close_timeout_s):
                    await self._engine.abort(request_ids)

    async def stop(self, members: Iterable[Member], tasks: "Collection[asyncio.Task[None]]") -> None:
        """Nothing runs on: the engine lets `members` go, then `tasks` end, at the latest after `limits.close_timeout_s` each."""
        try:
            await self.abort(members)
        finally:
            running = list(tasks)  # of now: some have ended or begun meanwhile
            for task in running:
                task.cancel()
        if running:
            await asyncio.wait(running, timeout=self._limits.close_timeout_s)

    def _emit(self, kind: str, member: Member, **fields: object) -> None:
        request = member.request
        ids = {"request": request.request_id, "group": request.group_id, "member": request.member}
        self._timeline.emit(f"{self._prefix}{kind}", **self.where, replica=f"engine-{member.replica}", **ids, **fields)
