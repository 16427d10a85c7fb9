"""The bookkeeping that every admission policy shares; what a policy promises stands in `common.policies`.

Pure core: the standard library alone.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterable

from common.errors import DuplicateRequestError, UnknownRequestError, UsageError, explain
from common.records import PipelineState, PolicySnapshot, Request

WAITING, OUT = "waiting", "out"


class WaitingGroup:
    """One group's requests that are not out. Open: some wait or are in flight."""

    __slots__ = ("group_id", "in_flight", "is_ready", "key", "order", "waiting")

    def __init__(self, group_id: Hashable, order: int, arrival: int) -> None:
        self.group_id = group_id
        self.order = order
        self.key = (order, arrival)  # unique among open groups, so heaps never compare groups
        self.waiting: deque[Request] = deque()
        self.in_flight: dict[Hashable, Request] = {}
        self.is_ready = False  # stands in the heap of groups that may have waiting requests

    @property
    def is_open(self) -> bool:
        return bool(self.waiting or self.in_flight)


class Admission(ABC):
    """The bookkeeping that all policies share; a subclass says only which group is next.

    Its hooks: `_arrived` (a request waits now), `_returned` (one waits again), `_closed` (a group has nothing left),
    `_next` (the group whose first waiting request enters next, or None).
    """

    def __init__(self) -> None:
        self._state: dict[Hashable, str | WaitingGroup] = {}  # by request id: WAITING, OUT, or its group while in flight
        self._groups: dict[Hashable, WaitingGroup] = {}
        self._num_waiting = 0
        self._num_in_flight = 0
        self._num_open = 0

    def submit(self, requests: Iterable[Request]) -> None:
        new = list(requests)
        self._check_new(new)
        for request in new:
            group = self._groups.get(request.group_id)
            if group is None:
                group = self._groups[request.group_id] = WaitingGroup(request.group_id, request.order, len(self._groups))
            if not group.is_open:
                self._num_open += 1
                self._opened(group)
            self._state[request.request_id] = WAITING
            group.waiting.append(request)
            self._num_waiting += 1
            self._arrived(request, group)

    def admit(self, free_slots: int) -> list[Request]:
        if free_slots < 0:
            raise UsageError(explain("free_slots", "must be 0 or more", free_slots, "pass capacity minus requests in flight"))
        admitted: list[Request] = []
        while len(admitted) < free_slots:
            group = self._next()
            if group is None:
                break
            request = group.waiting.popleft()
            group.in_flight[request.request_id] = request
            self._state[request.request_id] = group
            admitted.append(request)
        self._num_waiting -= len(admitted)
        self._num_in_flight += len(admitted)
        return admitted

    def finish(self, request_id: Hashable) -> None:
        group = self._group_in_flight(request_id, "finish")
        del group.in_flight[request_id]
        self._state[request_id] = OUT
        self._num_in_flight -= 1
        self._close_if_served(group)

    def requeue(self, request_id: Hashable) -> None:
        group = self._group_in_flight(request_id, "requeue")
        request = group.in_flight.pop(request_id)
        self._state[request_id] = WAITING
        self._num_in_flight -= 1
        self._num_waiting += 1
        group.waiting.appendleft(request)
        self._returned(request, group)

    def cancel_group(self, group_id: Hashable) -> list[Request]:
        group = self._groups.get(group_id)
        if group is None:
            rule = "cancel_group needs a group that was submitted"
            raise UnknownRequestError(explain("group_id", rule, group_id, "check the id"))
        was_open = group.is_open
        in_flight = list(group.in_flight.values())
        for request in (*group.waiting, *in_flight):
            self._state[request.request_id] = OUT
        self._num_waiting -= len(group.waiting)
        self._num_in_flight -= len(in_flight)
        group.waiting.clear()
        group.in_flight.clear()
        if was_open:
            self._close_if_served(group)
        return in_flight

    def observe(self, state: PipelineState) -> None:  # noqa: B027
        """This policy decides without it."""

    def snapshot(self) -> PolicySnapshot:
        return PolicySnapshot(
            frontier=self._frontier_ids(),
            num_waiting=self._num_waiting,
            num_in_flight=self._num_in_flight,
            num_groups=self._num_open,
        )

    def _check_new(self, new: list[Request]) -> None:
        ids = set()
        orders: dict[Hashable, int] = {}
        for request in new:
            if request.request_id in self._state or request.request_id in ids:
                rule = "must be new to this policy"
                raise DuplicateRequestError(explain("request_id", rule, request.request_id, "submit each request once a round"))
            ids.add(request.request_id)
            known = self._groups.get(request.group_id)
            order = known.order if known else orders.setdefault(request.group_id, request.order)
            if request.order != order:
                rule = f"must be {order} for every request of group {request.group_id!r}"
                raise UsageError(explain("order", rule, request.order, "give a group one order"))

    def _group_in_flight(self, request_id: Hashable, call: str) -> WaitingGroup:
        group = self._state.get(request_id, "unknown")
        if isinstance(group, str):
            rule = f"{call} needs a request in flight, and this one is {group}"
            raise UnknownRequestError(explain("request_id", rule, request_id, f"call {call} once for each admitted request"))
        return group

    def _close_if_served(self, group: WaitingGroup) -> None:
        if not group.is_open:
            self._num_open -= 1
            self._closed(group)

    def _frontier_ids(self) -> tuple[Hashable, ...]:
        return ()

    def _opened(self, group: WaitingGroup) -> None:  # noqa: B027 (a hook, empty by default)
        """A group has something to serve (again)."""

    def _closed(self, group: WaitingGroup) -> None:  # noqa: B027
        """A group has nothing left to serve."""

    @abstractmethod
    def _arrived(self, request: Request, group: WaitingGroup) -> None:
        """A request waits, last in its group."""

    @abstractmethod
    def _returned(self, request: Request, group: WaitingGroup) -> None:
        """A request waits again, first in its group."""

    @abstractmethod
    def _next(self) -> WaitingGroup | None:
        """The group whose first waiting request enters now; None: nothing may enter."""
