"""Admission policies: which waiting request enters an engine next (paper, section "frontier-group dispatch").

A policy is an ordinary synchronous object that the caller drives with events; it knows no engine, clock or thread.
It serves one round and remembers every request id of it, so that misuse is an error and never a silent loss:

    submit ──> waiting ──admit──> in flight ──finish──> out
                  ^                   │
                  └─────requeue───────┘        cancel_group: waiting and in flight ──> out

    policy = FrontierGroupDispatch(frontier_width=2)
    policy.submit(Request(request_id=f"{g}/{m}", group_id=g, order=g, member=m) for g in range(32) for m in range(8))
    for request in policy.admit(free_slots=16): ...       # groups 0 and 1, whatever order they were submitted in
    policy.finish("0/0")

Always true: waiting + in flight + out = submitted, and one `admit(n)` returns at most n requests.
Every call is atomic: one that raises has changed nothing. Costs: O(log groups) a request, amortized.
"""

from collections import deque
from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import Protocol

from common._adaptive import AdaptiveFrontierDispatch
from common._admission import Admission, WaitingGroup
from common.errors import check_count
from common.records import PipelineState, PolicySnapshot, Request

__all__ = ["AdaptiveFrontierDispatch", "AdmissionPolicy", "FifoAdmission", "FrontierGroupDispatch"]


class AdmissionPolicy(Protocol):
    """What the round asks of a policy."""

    def submit(self, requests: Iterable[Request]) -> None:
        """New waiting requests. Raises DuplicateRequestError; UsageError where a group's order changes."""
        ...

    def admit(self, free_slots: int) -> list[Request]:
        """What to start now, in order, at most `free_slots`; they are in flight from here on. Raises UsageError."""
        ...

    def finish(self, request_id: Hashable, num_tokens: int | None = None) -> None:
        """An in-flight request was served, well or badly; `num_tokens` of its response, for adaptive policies.

        Raises UnknownRequestError.
        """
        ...

    def requeue(self, request_id: Hashable) -> None:
        """The engine lost an in-flight request: it waits again, first in its group. Raises UnknownRequestError."""
        ...

    def cancel_group(self, group_id: Hashable) -> list[Request]:
        """Forget what waits and return what is in flight, for the caller to abort. Raises UnknownRequestError."""
        ...

    def observe(self, state: PipelineState) -> None:
        """Backlog and rates; only adaptive policies use them."""
        ...

    def snapshot(self) -> PolicySnapshot:
        """Frozen counts."""
        ...


class FifoAdmission(Admission):
    """Arrival order; a requeued request goes first of all. The baseline (`serial`, `cgp`)."""

    def __init__(self) -> None:
        super().__init__()
        # Each waiting request stands here once, in the same relative order as in its group; cancelled ones are skipped.
        self._order: deque[Request] = deque()

    def _arrived(self, new: list[Request]) -> None:
        self._order.extend(new)

    def _returned(self, request: Request, group: WaitingGroup) -> None:
        self._order.appendleft(request)

    def _next(self) -> WaitingGroup | None:
        while self._order:
            request = self._order.popleft()
            group = self._groups[request.group_id]
            if group.next_waiting() is request:
                return group
        return None


class _LowestFirst:
    """Groups, lowest key first: O(1) for those that come in order, as they mostly do, and O(log n) for the others."""

    __slots__ = ("_heap", "_run")

    def __init__(self) -> None:
        self._run: deque[WaitingGroup] = deque()  # ascending keys
        self._heap: list[tuple[int, int, WaitingGroup]] = []

    def push(self, group: WaitingGroup) -> None:
        if not self._run or self._run[-1].is_below(group):
            self._run.append(group)
        else:
            heappush(self._heap, (group.order, group.arrival, group))

    def lowest(self) -> WaitingGroup | None:
        if self._run_is_lowest():
            return self._run[0]
        return self._heap[0][2] if self._heap else None

    def pop(self) -> None:
        if self._run_is_lowest():
            self._run.popleft()
        else:
            heappop(self._heap)

    def _run_is_lowest(self) -> bool:
        return bool(self._run) and (not self._heap or self._run[0].is_below(self._heap[0][2]))


class FrontierGroupDispatch(Admission):
    """Lowest group order first: the groups that the next update needs are sampled first.

    The frontier is the `frontier_width` lowest-order groups that have arrived and are not yet served completely.
    Work-conserving (default): frontier requests first, then deferred groups in order into the free slots; the width only
    marks the frontier. Strict (`work_conserving=False`): the paper's formula to the letter, only frontier requests enter.
    The paper's figures fit the first reading only. Raises UsageError for a width below 1.
    """

    def __init__(self, frontier_width: int = 2, work_conserving: bool = True) -> None:
        super().__init__()
        check_count("frontier_width", frontier_width, 1, "use groups_per_update")
        self._width = frontier_width
        self._work_conserving = work_conserving
        self._ready = _LowestFirst()  # holds every group with waiting requests, and some without
        self._frontier: set[WaitingGroup] = set()  # every group in it has a lower key than every open group outside
        self._highest: list[tuple[int, int, WaitingGroup]] = []  # max-heap that holds the frontier, and groups that left it
        self._deferred = _LowestFirst()  # holds every open group outside the frontier, and some others

    def _opened(self, group: WaitingGroup) -> None:
        if len(self._frontier) < self._width:
            self._enter_frontier(group)
            return
        highest = self._highest_of_frontier()
        if highest.is_below(group):
            self._deferred.push(group)
            return
        self._frontier.remove(highest)
        self._deferred.push(highest)
        self._enter_frontier(group)

    def _closed(self, group: WaitingGroup) -> None:
        if group not in self._frontier:
            return
        self._frontier.remove(group)
        while lowest := self._deferred.lowest():
            self._deferred.pop()
            if lowest.is_open and lowest not in self._frontier:
                self._enter_frontier(lowest)
                return

    def _enter_frontier(self, group: WaitingGroup) -> None:
        self._frontier.add(group)
        heappush(self._highest, (-group.order, -group.arrival, group))
        if len(self._highest) > 2 * self._width:  # forget those that left, in constant time a group
            self._highest = [entry for entry in self._highest if entry[2] in self._frontier]
            heapify(self._highest)

    def _highest_of_frontier(self) -> WaitingGroup:
        while self._highest[0][2] not in self._frontier:
            heappop(self._highest)
        return self._highest[0][2]

    def _joined(self, group: WaitingGroup) -> None:
        if not group.is_ready:
            group.is_ready = True
            self._ready.push(group)

    def _returned(self, request: Request, group: WaitingGroup) -> None:
        self._joined(group)

    def _next(self) -> WaitingGroup | None:
        while group := self._ready.lowest():
            if group.next_waiting():
                # The lowest group that waits stands outside the frontier only if no frontier group waits.
                return group if self._work_conserving or group in self._frontier else None
            self._ready.pop()
            group.is_ready = False
        return None

    def _frontier_ids(self) -> tuple[Hashable, ...]:
        return tuple(group.group_id for group in sorted(self._frontier, key=lambda group: (group.order, group.arrival)))
