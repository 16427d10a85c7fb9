"""The bookkeeping that every admission policy shares; what a policy promises stands in `common.policies`.

Pure core: the standard library alone. Lean on purpose, so that a round of a million requests stays fast: what waits is one list a
group, what is out is only an id in a set, and what is looked up for each event is as small as the engines' capacity.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable

from common.errors import DuplicateRequestError, UnknownRequestError, UsageError, check_count, explain
from common.records import PipelineState, PolicySnapshot, Request


class WaitingGroup:
    """One group's requests. Open: some wait or are in flight; a group that closes forgets its requests."""

    __slots__ = ("arrival", "group_id", "is_ready", "num_in_flight", "num_taken", "order", "requests", "returned")

    def __init__(self, group_id: Hashable, order: int, arrival: int, requests: list[Request]) -> None:
        self.group_id = group_id
        self.order = order
        self.arrival = arrival  # unique, so heaps never compare groups
        self.requests = requests  # since it opened, as they arrived; the first `num_taken` have been admitted
        self.num_taken = 0
        self.returned: list[Request] | None = None  # admitted once and waiting again, the first to enter last
        self.num_in_flight = 0
        self.is_ready = False  # stands among the groups that may have waiting requests

    def is_below(self, other: "WaitingGroup") -> bool:
        """Served before `other`: lower order, or the same and here first."""
        return self.order < other.order or (self.order == other.order and self.arrival < other.arrival)

    @property
    def num_waiting(self) -> int:
        return len(self.requests) - self.num_taken + (len(self.returned) if self.returned else 0)

    def next_waiting(self) -> Request | None:
        """The request that enters next."""
        if self.returned:
            return self.returned[-1]
        return self.requests[self.num_taken] if self.num_taken < len(self.requests) else None

    def take(self) -> None:
        """`next_waiting` is in flight now."""
        if self.returned:
            self.returned.pop()
        else:
            self.num_taken += 1
        self.num_in_flight += 1

    def give_back(self, request: Request) -> None:
        """A request in flight waits again, first of all."""
        if self.returned is None:
            self.returned = []
        self.returned.append(request)
        self.num_in_flight -= 1

    def close(self) -> None:
        """Forget all requests."""
        self.requests.clear()
        self.num_taken = self.num_in_flight = 0
        self.returned = None


class Admission(ABC):
    """The bookkeeping that all policies share; a subclass says only which group is next.

    Its hooks: `_arrived` (new requests wait), `_returned` (one waits again), `_next` (the group whose first waiting request
    enters next, or None), `_opened` and `_closed` (a group has something to serve again, or nothing left).
    """

    def __init__(self) -> None:
        self._known: set[Hashable] = set()  # ids of all requests ever submitted
        self._in_flight: dict[Hashable, Request] = {}
        self._groups: dict[Hashable, WaitingGroup] = {}
        self._num_waiting = 0
        self._num_open = 0

    def submit(self, requests: Iterable[Request]) -> None:
        new = list(requests)
        ids, batches = self._check_new(new)
        if self._known:
            self._known |= ids
        else:
            self._known = ids
        self._num_waiting += len(new)
        groups = [self._add(group_id, batch) for group_id, batch in batches.items()]
        self._arrived(new, groups)

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

    def finish(self, request_id: Hashable) -> None:
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
        in_flight = [request for request in group.requests if self._in_flight.pop(request.request_id, None)]
        if group.requests:
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

    def _check_new(self, new: list[Request]) -> tuple[set[Hashable], dict[Hashable, list[Request]]]:
        """The ids and, by group, the requests. Raises without having changed anything."""
        ids = {request.request_id for request in new}
        if len(ids) < len(new) or not ids.isdisjoint(self._known):
            self._raise_duplicate(new)
        batches: dict[Hashable, list[Request]] = {}
        for request in new:
            batch = batches.get(request.group_id)
            if batch is None:
                batches[request.group_id] = [request]
                self._check_order(request)
            elif request.order == batch[0].order:
                batch.append(request)
            else:
                self._raise_other_order(request, batch[0].order)
        return ids, batches

    def _check_order(self, request: Request) -> None:
        check_count("order", request.order, None, "number the groups of a round from 0")
        known = self._groups.get(request.group_id)
        if known and request.order != known.order:
            self._raise_other_order(request, known.order)

    def _raise_other_order(self, request: Request, order: int) -> None:
        rule = f"must be {order} for every request of group {request.group_id!r}"
        raise UsageError(explain("order", rule, request.order, "give a group one order"))

    def _raise_duplicate(self, new: list[Request]) -> None:
        seen = set(self._known)
        for request in new:
            if request.request_id in seen:
                rule = "must be new to this policy"
                raise DuplicateRequestError(explain("request_id", rule, request.request_id, "submit each request once a round"))
            seen.add(request.request_id)

    def _add(self, group_id: Hashable, batch: list[Request]) -> WaitingGroup:
        group = self._groups.get(group_id)
        is_open = group is not None and bool(group.requests)
        if group is None:
            group = self._groups[group_id] = WaitingGroup(group_id, batch[0].order, len(self._groups), batch)
        else:
            group.requests.extend(batch)
        if not is_open:
            self._num_open += 1
            self._opened(group)
        return group

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

    @abstractmethod
    def _arrived(self, new: list[Request], groups: list[WaitingGroup]) -> None:
        """New requests wait, last in their groups (each group once, in order of arrival)."""

    @abstractmethod
    def _returned(self, request: Request, group: WaitingGroup) -> None:
        """A request waits again, first in its group."""

    @abstractmethod
    def _next(self) -> WaitingGroup | None:
        """The group whose first waiting request enters now; None: nothing may enter."""
