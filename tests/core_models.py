"""Reference models of the pure core: lists and sorts, quadratic, and so plain that they are right by reading.

The property tests hold the shipped policies and queue to them, step by step.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from common.errors import RolloutPipeError
from common.policies import AdmissionPolicy
from common.queue import CompleteGroupQueue
from common.records import Reason, Request

MakePolicy = Callable[..., AdmissionPolicy]
MakeQueue = Callable[..., CompleteGroupQueue]


class ReferencePolicy:
    """Every request of the round in one list of what waits, one of what is in flight, one of what is out."""

    def __init__(self, kind: str, width: int = 2) -> None:
        self.kind = kind  # fifo, fgd, fgd-strict; adaptive, whose order nobody foresees
        self.width = width
        self.waiting: list[Request] = []  # in the order in which a FIFO would admit them
        self.in_flight: list[Request] = []
        self.out: list[Request] = []
        self.group_ids: list[Hashable] = []  # in order of arrival

    def submit(self, requests: Sequence[Request]) -> None:
        self.waiting += requests
        self.group_ids += dict.fromkeys(request.group_id for request in requests if request.group_id not in self.group_ids)

    def admit(self, free_slots: int) -> list[Request]:
        line = self.waiting if self.kind == "fifo" else sorted(self.waiting, key=self.key)  # stable: within a group as they wait
        if self.kind == "fgd-strict":
            line = [request for request in line if request.group_id in self.frontier()]
        admitted = line[:free_slots]
        self.waiting = [request for request in self.waiting if request not in admitted]
        self.in_flight += admitted
        return admitted

    def follow(self, admitted: Sequence[Request]) -> None:
        """These were admitted. What holds of any policy: they waited, and they are the first of their groups that did."""
        waiting: dict[Hashable, list[Request]] = {}
        for request in self.waiting:
            waiting.setdefault(request.group_id, []).append(request)
        for request in admitted:
            assert request in self.waiting, "admitted, and did not wait"
            assert request == waiting[request.group_id].pop(0), "not the first of its group"
            self.waiting.remove(request)
        self.in_flight += admitted

    def finish(self, request: Request) -> None:
        self.in_flight.remove(request)
        self.out.append(request)

    def requeue(self, request: Request) -> None:
        self.in_flight.remove(request)
        self.waiting.insert(0, request)

    def cancel_group(self, group_id: Hashable) -> list[Request]:
        gone = [request for request in self.in_flight if request.group_id == group_id]
        self.out += gone + [request for request in self.waiting if request.group_id == group_id]
        self.in_flight = [request for request in self.in_flight if request.group_id != group_id]
        self.waiting = [request for request in self.waiting if request.group_id != group_id]
        return gone

    def key(self, request: Request) -> tuple[int, int]:
        return request.order, self.group_ids.index(request.group_id)

    def open_groups(self) -> list[Hashable]:
        """Not yet served completely, lowest order first."""
        unserved = sorted(self.waiting + self.in_flight, key=self.key)
        return list(dict.fromkeys(request.group_id for request in unserved))

    def frontier(self) -> tuple[Hashable, ...]:
        assert self.kind != "adaptive", "its order is its own"
        return () if self.kind == "fifo" else tuple(self.open_groups()[: self.width])


class ReferenceQueue:
    """The line of groups that wait, and what was taken and dropped."""

    def __init__(self, num_groups: int, per_update: int, order: str) -> None:
        self.num_expected = num_groups
        self.per_update = per_update
        self.order = order
        self.waiting: list[Any] = []
        self.taken: list[Any] = []
        self.dropped: dict[Hashable, int | None] = {}  # order by group id
        self.updates: list[list[Any]] = [[]]  # the last one is open

    def num_left(self) -> int:
        return self.num_expected - len(self.taken) - len(self.dropped)

    def put(self, group: Any) -> None:
        self.waiting.append(group)

    def drop(self, group_id: Hashable, order: int | None) -> None:
        for group in self.waiting:
            if group.group_id == group_id:
                order = group.order
        self.waiting = [group for group in self.waiting if group.group_id != group_id]
        self.dropped[group_id] = order

    def releasable(self) -> list[Any]:
        """What may be taken now, in order."""
        if self.order == "arrival":
            return self.waiting
        gone = {group.order for group in self.taken} | set(self.dropped.values())
        line = sorted(self.waiting, key=lambda group: group.order)
        return [group for group in line if all(lower in gone for lower in range(group.order))]

    def take(self) -> tuple[list[Any], int, bool] | str:
        """Groups, update index and whether the update ends; or `not yet`, or `end`."""
        index = len(self.updates) - 1
        for group in self.releasable()[:1]:
            self.waiting.remove(group)
            self.taken.append(group)
            self.updates[-1].append(group)
            is_last = len(self.updates[-1]) == self.per_update or self.num_left() == 0
            if is_last:
                self.updates.append([])
            return [group], index, is_last
        if self.num_left():
            return "not yet"
        if self.updates[-1]:
            self.updates.append([])
            return [], index, True
        return "end"


def refusal(call: Callable[[], Any]) -> type[RolloutPipeError] | None:
    """The exact kind of error with which the call is refused; None: it is not."""
    try:
        call()
    except RolloutPipeError as error:
        return type(error)
    return None


def run_machine(machine: type[RuleBasedStateMachine], *, max_examples: int, steps: int, shrink: bool = True) -> None:
    """Run a state machine: always the same examples, nothing kept between runs, no time limits of its own."""
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            derandomize=True,
            database=None,
            deadline=None,
            phases=phases,
            print_blob=False,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


REASONS = tuple(Reason)
