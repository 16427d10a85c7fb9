"""Frontier-group dispatch inside vLLM: a scheduler that admits by group, whatever order requests arrive in.

    PYTHONPATH=. vllm serve MODEL --max-num-seqs 64 --scheduler-cls examples.vllm_frontier_scheduler.FrontierScheduler

from the directory that holds `examples` (a copy of this file will do), with RolloutPipe installed. A request's group:

- its id says so, where the client sets it: the header `X-Request-Id: r0/g3/m1` means round 0, group 3, member 1. vLLM adds to
  both ends (`cmpl-r0/g3/m1-0-1b2c3d4e`); a request for n responses, `r0/g3`, becomes n members. Lower rounds go first.
- else vLLM's own `priority` number is the order of its group. Requests with neither are thus one group of order 0.

Written for vLLM 0.32, whose scheduler is not a public interface: check it again before another version. Each data-parallel
replica decides for itself. Without this file, `--scheduling-policy priority` and `priority` = group order come close.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request as VllmRequest

from common.policies import AdmissionPolicy, FrontierGroupDispatch
from common.records import Request

_GROUP_IN_ID = re.compile(r"(?<![A-Za-z0-9])r(\d+)/g(\d+)(?![A-Za-z0-9])")
_GROUPS_PER_ROUND = 10**9  # more than there will ever be


class FrontierScheduler(AsyncScheduler):
    """vLLM's own scheduler, with or without asynchronous scheduling; only who waits is in a policy's hands.

    For another policy, subclass it and override `new_policy`.
    """

    waiting: "PolicyQueue"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting = PolicyQueue(self.new_policy)

    def new_policy(self) -> AdmissionPolicy:
        """A fresh policy: called whenever the engine has become empty, so that what it remembers stays small."""
        return FrontierGroupDispatch()

    def _free_request(self, request: VllmRequest, *args: Any, **kwargs: Any) -> Any:
        # Every request ends here: served, failed or aborted.
        self.waiting.forget(request)
        return super()._free_request(request, *args, **kwargs)


class PolicyQueue(RequestQueue):
    """Waiting requests, in the order of an admission policy.

    In the policy's words, a request that vLLM has popped is in flight until `forget`; one that vLLM puts back (preempted, or not
    startable yet) is requeued. vLLM looks at a request before it takes it: that one is admitted, and goes back if something
    comes between.
    Always: len(tickets) = waiting here + in flight.
    """

    def __init__(self, new_policy: Callable[[], AdmissionPolicy]) -> None:
        self._new_policy = new_policy
        self._policy = new_policy()
        self._numbers = itertools.count()
        self._tickets: dict[str, int] = {}  # by vLLM's id; numbers of our own, because vLLM may see an id again
        self._waiting: dict[int, VllmRequest] = {}  # by ticket
        self._looked_at: VllmRequest | None = None

    def add_request(self, request: VllmRequest) -> None:
        """It waits; one that had been popped waits first in its group."""
        self._put_back()
        ticket = self._tickets.get(request.request_id)
        if ticket is None:
            ticket = self._submit(request)
        else:
            self._policy.requeue(ticket)
        self._waiting[ticket] = request

    def prepend_request(self, request: VllmRequest) -> None:
        """The same: the policy knows where it belongs."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[VllmRequest]) -> None:
        """The last one will be the first in its group, as in vLLM's own queue."""
        for request in requests:
            self.add_request(request)

    def peek_request(self) -> VllmRequest:
        """The request that `pop_request` would return. Raises IndexError where none may start."""
        if not self:
            raise IndexError("no request may start now")
        assert self._looked_at is not None
        return self._looked_at

    def pop_request(self) -> VllmRequest:
        """Take the next request out. Raises IndexError where none may start."""
        request = self.peek_request()
        self._looked_at = None
        del self._waiting[self._tickets[request.request_id]]
        return request

    def remove_request(self, request: VllmRequest) -> None:
        """It does not wait any more (aborted); where it is not here, nothing."""
        if self._tickets.get(request.request_id) in self._waiting:
            self.forget(request)

    def remove_requests(self, requests: Iterable[VllmRequest]) -> None:
        """As `remove_request`, each."""
        for request in requests:
            self.remove_request(request)

    def forget(self, request: VllmRequest) -> None:
        """The request has ended, wherever it was; an unknown one, nothing."""
        self._put_back()
        ticket = self._tickets.pop(request.request_id, None)
        # One that still waits stays in the policy as a mere number, which `_admit` finishes when its turn comes.
        if ticket is not None and self._waiting.pop(ticket, None) is None:
            self._policy.finish(ticket)

    def __bool__(self) -> bool:
        """Whether one may start: under a strict policy not the same as whether one waits."""
        if self._looked_at is None:
            self._looked_at = self._admit()
        return self._looked_at is not None

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[VllmRequest]:
        """All that wait, in no promised order."""
        return iter(list(self._waiting.values()))

    def _submit(self, request: VllmRequest) -> int:
        if not self._tickets:
            self._policy = self._new_policy()
        ticket = self._tickets[request.request_id] = next(self._numbers)
        found = _GROUP_IN_ID.search(request.request_id)
        group_id = found.group() if found else request.priority
        order = int(found[1]) * _GROUPS_PER_ROUND + int(found[2]) if found else request.priority
        self._policy.submit([Request(request_id=ticket, group_id=group_id, order=order)])
        return ticket

    def _admit(self) -> VllmRequest | None:
        while admitted := self._policy.admit(1):
            ticket = admitted[0].request_id
            if ticket in self._waiting:
                return self._waiting[ticket]
            self._policy.finish(ticket)  # it ended while it waited
        return None

    def _put_back(self) -> None:
        if self._looked_at is not None:
            self._policy.requeue(self._tickets[self._looked_at.request_id])
            self._looked_at = None
