"""One replica with continuous batching, as a fluid: every running request decodes one token a step.

All running requests advance together, so one number says how far: `decoded`, the tokens that a request which was there from the
start would have. A request that enters at `decoded = v` with n tokens to go is done at `v + n`, however the speed changes
meanwhile. That makes each event O(log running).

Prompts are computed one at a time, and nothing is decoded meanwhile. Where key-value memory runs out, the youngest request
is put back in front of the replica's own queue. When a request has ended and there is room, it is computed again up to where
it was: until then the others only grow, so it would not fit.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from common.records import Request
from common.simulation.agenda import Agenda
from common.simulation.models import EngineModel

_ROUNDING = 1e-6  # tokens by which sums of floats may be off


@dataclass(slots=True, eq=False)
class Job:
    """A request on a replica."""

    request: Request
    tokens: int  # of its response
    entered: float = 0.0  # `decoded` when it entered, less what it had by then
    had: float = 0.0  # tokens from before it was put back
    is_running: bool = False


class Replica:
    """Calls `on_done(job)` at the moment its last token is out."""

    def __init__(self, model: EngineModel, agenda: Agenda, on_done: Callable[["Replica", Job], None], index: int) -> None:
        self._model, self._agenda, self._on_done, self.index = model, agenda, on_done, index
        self.num_running = 0
        self.speed = 1.0  # below 1 while something else takes the machine
        self._decoded = 0.0
        self._prefill_s = 0.0  # of prompts not yet computed
        self._updated_s = 0.0
        self._ends: list[tuple[float, int, Job]] = []  # of running requests, and of some put back
        self._count = 0
        self._plan = 0
        self._target = 0.0  # `decoded` at the planned event
        self.num_put_back = 0
        self._queue: deque[Job] = deque()  # placed here, and no memory yet
        self._running: dict[Job, None] = {}  # oldest first; kept only where memory is limited
        self._held = 0.0  # tokens in memory = _held + num_running * decoded

    @property
    def memory_tokens(self) -> float:
        """Key-value memory in use, at the latest event; followed only where memory is limited."""
        return self._held + self.num_running * self._decoded

    def add(self, job: Job) -> None:
        """A request enters; call `plan` after the last of a batch."""
        self.advance()
        if self._queue or not self._has_room(len(job.request.prompt_ids)):
            self._queue.append(job)
        else:
            self._enter(job)

    def advance(self) -> None:
        """Decode up to now."""
        elapsed_s = (self._agenda.now_s - self._updated_s) * self.speed
        self._updated_s = self._agenda.now_s
        if not self.num_running or elapsed_s <= 0:
            return
        if self._prefill_s:
            prefill_s = min(self._prefill_s, elapsed_s)
            self._prefill_s -= prefill_s
            elapsed_s -= prefill_s
        self._decoded += elapsed_s / self._step_s()

    def plan(self) -> None:
        """Plan the next event: an end, or memory that runs out."""
        self._plan += 1
        if not self.num_running:
            return
        while not self._ends[0][2].is_running or self._ends[0][0] != self._end_of(self._ends[0][2]):
            heappop(self._ends)
        to_go = self._ends[0][0] - self._decoded
        if self._model.kv_tokens is not None and self.num_running > 1:
            to_go = min(to_go, (self._model.kv_tokens - self.memory_tokens) / self.num_running)
        to_go = max(to_go, 0.0)
        self._target = self._decoded + to_go
        seconds = (self._prefill_s + to_go * self._step_s()) / self.speed
        plan = self._plan
        self._agenda.after(seconds, lambda: self._happen(plan))

    def _happen(self, plan: int) -> None:
        if plan != self._plan:
            return  # something has changed since it was planned
        self._updated_s = self._agenda.now_s
        self._decoded, self._prefill_s = self._target, 0.0  # not by the clock, which late in a long run is too coarse
        done: list[Job] = []
        while self._ends and self._ends[0][0] <= self._decoded + _ROUNDING:
            end, _, job = heappop(self._ends)
            if job.is_running and end == self._end_of(job):
                self._leave(job)
                done.append(job)
        if done:
            self._let_in()
        elif self._is_full():
            self._put_back_youngest()
        for job in done:
            self._on_done(self, job)
        self.plan()

    def _step_s(self) -> float:
        return self._model.step_s + self._model.step_per_request_s * self.num_running

    def _end_of(self, job: Job) -> float:
        return job.entered + job.tokens

    def _is_full(self) -> bool:
        limit = self._model.kv_tokens
        return limit is not None and self.memory_tokens >= limit - _ROUNDING * self.num_running

    def _has_room(self, tokens: float) -> bool:
        limit = self._model.kv_tokens
        return limit is None or not self.num_running or self.memory_tokens + tokens <= limit

    def _enter(self, job: Job) -> None:
        tokens = len(job.request.prompt_ids) + job.had
        self._prefill_s += tokens * self._model.prefill_s_per_token
        job.entered = self._decoded - job.had
        job.is_running = True
        self.num_running += 1
        self._count += 1
        heappush(self._ends, (self._end_of(job), self._count, job))
        if self._model.kv_tokens is not None:
            self._running[job] = None
            self._held += tokens - self._decoded

    def _leave(self, job: Job) -> None:
        job.is_running = False
        self.num_running -= 1
        if self._model.kv_tokens is not None:
            del self._running[job]
            self._held -= len(job.request.prompt_ids) - job.entered
        if not self.num_running:
            self._decoded, self._held, self._prefill_s = 0.0, 0.0, 0.0
            self._ends.clear()

    def _put_back_youngest(self) -> None:
        """One request alone is never put back: it could not end anywhere else either."""
        if self.num_running < 2:
            return
        self.num_put_back += 1
        job = next(reversed(self._running))
        self._leave(job)
        job.had = self._decoded - job.entered
        self._queue.appendleft(job)

    def _let_in(self) -> None:
        while self._queue and self._has_room(len(self._queue[0].request.prompt_ids) + self._queue[0].had):
            self._enter(self._queue.popleft())
