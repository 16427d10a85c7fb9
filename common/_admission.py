"""The bookkeeping that every admission policy shares; what a policy promises stands in `common.policies`.

Pure core: the standard library alone. Lean on purpose, so that a round of a million requests stays fast: what waits is one list a
group, what is out is only an id in a set, and what is looked up for each event is as small as the engines' capacity.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from itertools import groupby
from operator import attrgetter

from common.errors import DuplicateRequestError, UnknownRequestError, UsageError, check_count, explain
from common.records import PipelineState, PolicySnapshot, Request

_NO_REQUESTS: list[Request] = []  # of every closed group; never changed


class WaitingGroup:
    """One group's requests. Open: some wait or are in flight; a group that closes forgets its requests.

    `requests[start:next]` have been admitted, `requests[next:stop]` never yet. The list may be shared with the other groups of
    one submit: a list for each of 100,000 groups would cost the cyclic garbage collector more than all else here.
    """

    __slots__ = ("arrival", "group_id", "is_ready", "next", "num_in_flight", "order", "requests", "returned", "start", "stop")

    def __init__(self, group_id: Hashable, order: int, arrival: int) -> None:
        self.group_id = group_id
        self.order = order
        self.arrival = arrival  # unique, so heaps never compare groups
        self.is_ready = False  # stands among the groups that may have waiting requests
        self.close()

    def close(self) -> None:
        """Forget all requests."""
        self.requests: list[Request] = _NO_REQUESTS
        self.start = self.next = self.stop = 0
        self.returned: list[Request] | None = None  # admitted once and waiting again, the first to enter last
        self.num_in_flight = 0

    def add(self, requests: list[Request], start: int, stop: int) -> None:
        """`requests[start:stop]` wait, after all others."""
        if not self.is_open:
            self.requests, self.start, self.next, self.stop = requests, start, start, stop
            return
        if self.stop - self.start < len(self.requests):  # shared: take what is this group's
            self.requests = self.requests[self.start : self.stop]
            self.start, self.next, self.stop = 0, self.next - self.start, len(self.requests)
        self.requests.extend(requests[start:stop])
        self.stop = len(self.requests)

    @property
    def is_open(self) -> bool:
        return self.stop > 0

    @property
    def num_waiting(self) -> int:
        return self.stop - self.next + (len(self.returned) if self.returned else 0)

    def is_below(self, other: "WaitingGroup") -> bool:
        """Served before `other`: lower order, or the same and here first."""
        return self.order < other.order or (self.order == other.order and self.arrival < other.arrival)

    def next_waiting(self) -> Request | None:
        """The request that enters next."""
        if self.returned:
            return self.returned[-1]
        return self.requests[self.next] if self.next < self.stop else None

    def take(self) -> None:
        """`next_waiting` is in flight now."""
        if self.returned:
            self.returned.pop()
        else:
            self.next += 1
        self.num_in_flight += 1

    def give_back(self, request: Request) -> None:
        """A request in flight waits again, first of all."""
        if self.returned is None:
            self.returned = []
        self.returned.append(request)
        self.num_in_flight -= 1


class Admission(ABC):
    """The bookkeeping that all policies share; a subclass says only which group is next.

    That is `_next`; the other hooks, at the end of the class, tell the subclass what has happened, and do nothing by default.
    """

    def __init__(self) -> None:
        self._known: set[Hashable] = set()  # ids of all requests ever submitted
        self._in_flight: dict[Hashable, Request] = {}
        self._groups: dict[Hashable, WaitingGroup] = {}
        self._num_waiting = 0
        self._num_open = 0

    def submit(self, requests: Iterable[Request]) -> None:
        new = list(requests)
        ids = self._check_new(new)
        if self._known:
            self._known |= ids
        else:
            self._known = ids  # not copied: it may be large
        self._num_waiting += len(new)
        self._arrived(new)
        new.sort(key=attrgetter("order"))  # in place: each list of a million costs the collector several passes
        self._add(new)

    def admit(self, free_slots: int) -> list[Request]:
        check_count("free_slots", free_slots, 0, "pass capacity minus requests in flight")
        admitted: list[Request] = []
        while len(admitted) < free_slots and (group := self._next()):
            request = group.next_waiting()
            assert request is not None  # promised by _next
            group.take()
            self._in_flight[request.request_id] = request
            admitted.append(request)
        self._num_waiting -= len(admitted)
        return admitted

    def finish(self, request_id: Hashable, num_tokens: int | None = None) -> None:
        request = self._pop_in_flight(request_id, "finish")
        group = self._groups[request.group_id]
        group.num_in_flight -= 1
        if not group.num_in_flight and not group.num_waiting:
            self._close(group)

    def requeue(self, request_id: Hashable) -> None:
        request = self._pop_in_flight(request_id, "requeue")
        group = self._groups[request.group_id]
        group.give_back(request)
        self._num_waiting += 1
        self._returned(request, group)

    def cancel_group(self, group_id: Hashable) -> list[Request]:
        group = self._groups.get(group_id)
        if group is None:
            rule = "cancel_group needs a group that was submitted"
            raise UnknownRequestError(explain("group_id", rule, group_id, "check the id"))
        in_flight = [r for r in group.requests[group.start : group.stop] if self._in_flight.pop(r.request_id, None)]
        if group.is_open:
            self._num_waiting -= group.num_waiting
            self._close(group)
        return in_flight

    def observe(self, state: PipelineState) -> None:  # noqa: B027
        """This policy decides without it."""

    def snapshot(self) -> PolicySnapshot:
        return PolicySnapshot(
            frontier=self._frontier_ids(),
            num_waiting=self._num_waiting,
            num_in_flight=len(self._in_flight),
            num_groups=self._num_open,
        )

    def _check_new(self, new: list[Request]) -> set[Hashable]:
        """The ids. Raises without having changed anything."""
        ids = {request.request_id for request in new}
        if len(ids) < len(new) or not ids.isdisjoint(self._known):
            self._raise_duplicate(new)
        orders: dict[Hashable, int] = {}
        for request in new:
            if orders.setdefault(request.group_id, request.order) != request.order:
                self._raise_other_order(request.group_id, request.order, orders[request.group_id])
        for group_id, order in orders.items():
            check_count("order", order, None, "number the groups of a round from 0")
            group = self._groups.get(group_id)
            if group and group.order != order:
                self._raise_other_order(group_id, order, group.order)
        return ids

    def _raise_other_order(self, group_id: Hashable, order: int, known: int) -> None:
        rule = f"must be {known} for every request of group {group_id!r}"
        raise UsageError(explain("order", rule, order, "give a group one order"))

    def _raise_duplicate(self, new: list[Request]) -> None:
        seen = set(self._known)
        for request in new:
            if request.request_id in seen:
                rule = "must be new to this policy"
                raise DuplicateRequestError(explain("request_id", rule, request.request_id, "submit each request once a round"))
            seen.add(request.request_id)

    def _add(self, requests: list[Request]) -> None:
        """Put requests, sorted by order, into their groups."""
        start = 0
        for group_id, members in groupby(requests, key=attrgetter("group_id")):
            group = self._groups.get(group_id)
            if group is None:
                group = self._groups[group_id] = WaitingGroup(group_id, requests[start].order, len(self._groups))
            was_open = group.is_open
            stop = start + len(list(members))
            group.add(requests, start, stop)
            if not was_open:
                self._num_open += 1
                self._opened(group)
            self._joined(group)
            start = stop

    def _pop_in_flight(self, request_id: Hashable, call: str) -> Request:
        request = self._in_flight.pop(request_id, None)
        if request is None:
            state = "waiting or out" if request_id in self._known else "unknown"
            rule = f"{call} needs a request in flight, and this one is {state}"
            raise UnknownRequestError(explain("request_id", rule, request_id, f"call {call} once for each admitted request"))
        return request

    def _close(self, group: WaitingGroup) -> None:
        group.close()
        self._num_open -= 1
        self._closed(group)

    def _frontier_ids(self) -> tuple[Hashable, ...]:
        return ()

    def _opened(self, group: WaitingGroup) -> None:  # noqa: B027 (a hook, empty by default)
        """A group has something to serve (again)."""

    def _closed(self, group: WaitingGroup) -> None:  # noqa: B027
        """A group has nothing left to serve."""

    def _arrived(self, new: list[Request]) -> None:  # noqa: B027
        """New requests, in order of arrival; they join their groups next."""

    def _joined(self, group: WaitingGroup) -> None:  # noqa: B027
        """New requests wait, last in this group."""

    def _returned(self, request: Request, group: WaitingGroup) -> None:  # noqa: B027
        """A request waits again, first in its group."""

    @abstractmethod
    def _next(self) -> WaitingGroup | None:
        """The group whose first waiting request enters now; None: nothing may enter."""
