"""Adaptive frontier dispatch: order and width from what the run has shown. What it promises stands in `common.policies`."""

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from common._admission import Admission, WaitingGroup
from common._draws import GroupState
from common._plans import Plan, Rest, choose
from common.errors import check_count
from common.forecast import Pipeline, Width
from common.history import History
from common.lengths import Expected
from common.records import PipelineState, Request

_REPLAN_SHARE = 2 / 3  # plan again when no more than this share of the groups that waited at the last plan still waits
_PATIENCE = 2  # a group is overtaken by at most this many times the groups that were open when it came


@dataclass(slots=True)
class _Flight:
    """A request in flight."""

    request: Request
    admitted_s: float
    decoded: float  # steps by the policy's own count when it was admitted
    area: float  # occupancy x steps, summed up to then


class AdaptiveFrontierDispatch(Admission):
    """Plans order and width of the rest of the round by forecast, again and again while groups come in.

    `frontier_width`: groups of an update (U). `history`: what earlier rounds of the run have shown; pass one to all rounds.
    `expect`: predicts the lengths of a request's group; by default the history's own predictor, which knows a prompt by its
    token ids and `task(request)`. `reorder` False keeps to the order of submission and only chooses the width, `in_order` says
    that the trainer takes groups in that order: both for `group_order: submission` with several updates a round.

    Until lengths, step time and the trainer's speed are known, it admits as `FrontierGroupDispatch`. Call `observe` before
    `admit`, and give `finish` the number of tokens. No group is overtaken by more than twice as many groups as were open when
    it came. Raises UsageError for a width below 1.
    """

    def __init__(
        self,
        frontier_width: int = 2,
        *,
        history: History | None = None,
        expect: Callable[[Request], Expected] | None = None,
        task: Callable[[Request], Hashable] = lambda request: None,
        reorder: bool = True,
        in_order: bool = False,
    ) -> None:
        super().__init__()
        check_count("frontier_width", frontier_width, 1, "use groups_per_update")
        self._per_update = frontier_width
        self.history = History() if history is None else history
        self._expect, self._task = expect or self._expect_from_history, task
        self._reorder, self._in_order = reorder, in_order
        self._heap: list[tuple[int, int, int, WaitingGroup]] = []  # groups that may have waiting requests, by rank
        self._rank: dict[WaitingGroup, int] = {}  # of the plan; groups that came later go by order, after all of it
        self._fresh: dict[WaitingGroup, None] = {}  # nothing of them was ever admitted
        self._begun: dict[WaitingGroup, None] = {}  # open, the others
        self._new: list[WaitingGroup] = []  # of the submit that goes on
        self._num_begun = 0
        self._overtake_limit: dict[WaitingGroup, int] = {}  # `_num_begun` at which a fresh group goes first, in order of arrival
        self._num_closed = 0
        self._closed_tokens: list[int] = []  # of each group that has ended, in order
        self._replan_at = math.inf  # number of fresh groups
        self._width = Width(math.inf, math.inf, 0)
        self.plan: Plan | None = None  # the last one, for reports
        self._flights: dict[Hashable, _Flight] = {}
        self._seen: dict[WaitingGroup, tuple[Request, list[int]]] = {}  # lengths of responses that are in
        self._state: PipelineState | None = None
        self._decoded = self._area = 0.0
        self._num_running = 0  # since the last admission
        self._ended: list[tuple[_Flight, int]] = []  # since the last observation

    def submit(self, requests: Iterable[Request]) -> None:
        num_before = self._num_open
        super().submit(requests)
        limit = self._num_begun + _PATIENCE * self._num_open
        for group in self._new:
            self._overtake_limit[group] = limit
        self._new.clear()
        if self._num_open > 1.5 * num_before:
            self._replan_at = math.inf

    def observe(self, state: PipelineState) -> None:
        last, self._state = self._state, state
        if last is not None and state.engine_capacity > 0:
            seconds, occupancy = state.now_s - last.now_s, self._num_running / last.engine_capacity
            steps = seconds / self._step_s(occupancy)
            self._decoded += steps
            self._area += occupancy * steps
        self._learn_speed(state)

    def admit(self, free_slots: int) -> list[Request]:
        check_count("free_slots", free_slots, 0, "pass capacity minus requests in flight")
        if len(self._fresh) <= self._replan_at:
            self._make_plan()
        limit = self._width.first if self._num_closed < self._width.num_first else self._width.rest
        admitted = super().admit(int(max(0.0, min(free_slots, limit - len(self._in_flight)))))
        self._num_running = len(self._in_flight)
        now_s = self._state.now_s if self._state else 0.0
        for request in admitted:
            self._flights[request.request_id] = _Flight(request, now_s, self._decoded, self._area)
        return admitted

    def finish(self, request_id: Hashable, num_tokens: int | None = None) -> None:
        request = self._in_flight.get(request_id)
        if request is not None:
            group, flight = self._groups[request.group_id], self._flights.pop(request_id)
            if num_tokens:
                self._seen.setdefault(group, (request, []))[1].append(num_tokens)
                self._ended.append((flight, num_tokens))
        super().finish(request_id)

    def requeue(self, request_id: Hashable) -> None:
        super().requeue(request_id)
        del self._flights[request_id]

    def cancel_group(self, group_id: Hashable) -> list[Request]:
        if (group := self._groups.get(group_id)) is not None:
            self._seen.pop(group, None)  # the lengths of those members that are in already are the short ones
        in_flight = super().cancel_group(group_id)
        for request in in_flight:
            del self._flights[request.request_id]
        return in_flight

    # --- hooks

    def _opened(self, group: WaitingGroup) -> None:
        self._fresh[group] = None
        self._new.append(group)

    def _closed(self, group: WaitingGroup) -> None:
        self._num_closed += 1
        self._begin(group)
        del self._begun[group]
        self._rank.pop(group, None)
        if (seen := self._seen.pop(group, None)) is not None:
            request, lengths = seen
            self._closed_tokens.append(sum(lengths))
            prompt = request.prompt_ids
            self.history.lengths.learn(prompt, lengths, prompt_tokens=len(prompt), task=self._task(request))

    def _joined(self, group: WaitingGroup) -> None:
        if not group.is_ready:
            group.is_ready = True
            self._push(group)

    def _returned(self, request: Request, group: WaitingGroup) -> None:
        self._joined(group)

    def _next(self) -> WaitingGroup | None:
        if (late := self._overtaken()) is not None:
            self._begin(late)
            return late
        while self._heap:
            group = self._heap[0][-1]
            if group.next_waiting():
                self._begin(group)
                return group
            heappop(self._heap)
            group.is_ready = False
        return None

    def _frontier_ids(self) -> tuple[Hashable, ...]:
        """The first U of the groups begun."""
        return tuple(group.group_id for group in sorted(self._begun, key=self._key)[: self._per_update])

    # --- order

    def _key(self, group: WaitingGroup) -> tuple[int, int, int]:
        return (self._rank.get(group, len(self._groups)), group.order, group.arrival)

    def _push(self, group: WaitingGroup) -> None:
        heappush(self._heap, (*self._key(group), group))

    def _begin(self, group: WaitingGroup) -> None:
        if group in self._fresh:
            del self._fresh[group]
            self._begun[group] = None
            self._overtake_limit.pop(group, None)
            self._num_begun += 1

    def _overtaken(self) -> WaitingGroup | None:
        """The oldest fresh group, where its patience has ended."""
        for group, limit in self._overtake_limit.items():
            return group if self._num_begun >= limit and group.next_waiting() else None
        return None

    # --- plan

    def _make_plan(self) -> None:
        """Order and width for the rest of the round; they stay as they are where too little is known."""
        self._replan_at = len(self._fresh) * _REPLAN_SHARE if len(self._fresh) > 1 else -1.0
        pipeline, token_s = self._pipeline(), self.history.trainer_token_s
        fresh = sorted((group for group in self._fresh if group.next_waiting()), key=lambda group: (group.order, group.arrival))
        states = [self._state_of(group) for group in fresh]
        if pipeline is None or token_s is None or not fresh or any(state.expected.error == math.inf for state in states):
            return
        begun = sorted(self._begun, key=self._key)
        rest = Rest(
            begun=[self._state_of(group) for group in begun],
            fresh=states,
            current=sorted(range(len(fresh)), key=lambda index: self._key(fresh[index])),
            members=max(group.stop - group.start for group in fresh),
            num_to_first=max(self._per_update - self._num_closed, 0),
            per_update=self._per_update,
            parts=self.history.lengths.member_parts,
            longest=self.history.lengths.longest,
            token_s=token_s,
            update_s=self.history.trainer_update_s,
        )
        self.plan = choose(pipeline, rest, reorder=self._reorder)
        width = self.plan.width
        self._width = width._replace(num_first=width.num_first and self._num_closed + width.num_first)
        ranked = begun + [fresh[index] for index in self.plan.order]
        self._rank = {group: rank for rank, group in enumerate(ranked)}
        self._heap = [(*self._key(group), group) for group in {entry[-1]: None for entry in self._heap}]
        heapify(self._heap)

    def _pipeline(self) -> Pipeline | None:
        state, line = self._state, self.history.step_time.line()
        if state is None or state.engine_capacity < 1 or line is None:
            return None
        return Pipeline(float(state.engine_capacity), line[0], line[1], self._backlog_s(state), self._in_order)

    def _backlog_s(self, state: PipelineState) -> float:
        """Seconds of training of the complete groups that wait for it: those that ended last."""
        tokens = self._closed_tokens[-state.trainer_backlog_groups :] if state.trainer_backlog_groups > 0 else []
        group_s = self.history.trainer_update_s / self._per_update
        return sum(tokens) * (self.history.trainer_token_s or 0.0) + len(tokens) * group_s

    def _state_of(self, group: WaitingGroup) -> GroupState:
        admitted = [self._flights.get(request.request_id) for request in group.requests[group.start : group.next]]
        return GroupState(
            order=group.order,
            expected=self._expect(group.requests[group.start]),
            waiting=[r.member for r in (*(group.returned or ()), *group.requests[group.next : group.stop])],
            running=[(f.request.member, self._decoded - f.decoded) for f in admitted if f is not None],
            num_done_tokens=sum(self._seen[group][1]) if group in self._seen else 0,
        )

    # --- what is learned

    def _step_s(self, occupancy: float) -> float:
        """Seconds of an engine step; 1 while unknown."""
        line = self.history.step_time.line()
        return line[0] + line[1] * occupancy if line is not None else 1.0

    def _learn_speed(self, state: PipelineState) -> None:
        for flight, tokens in self._ended:
            steps = self._decoded - flight.decoded
            if steps > 0:
                self.history.step_time.learn((state.now_s - flight.admitted_s) / tokens, (self._area - flight.area) / steps)
        self._ended.clear()
        if state.trainer_tokens_per_s > 0:
            self.history.trainer_token_s = 1 / state.trainer_tokens_per_s
            self.history.trainer_update_s = state.trainer_update_s

    def _expect_from_history(self, request: Request) -> Expected:
        return self.history.lengths.expect(request.prompt_ids, prompt_tokens=len(request.prompt_ids), task=self._task(request))
