"""Adaptive frontier dispatch: order and width from what the run has shown. What it promises stands in `common.policies`."""

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nsmallest

from common._admission import Admission, WaitingGroup
from common._draws import GroupState
from common._flights import Flights, check_state
from common._patience import Patience
from common._plans import Plan, Rest, choose
from common.errors import MAX_COUNT, UsageError, check_count, explain
from common.forecast import Pipeline, Width
from common.history import History
from common.lengths import Expected
from common.records import PipelineState, Request

_SLOWEST = 1e-9  # tokens a second; a rate below is no measurement
_REPLAN_NEW = 3  # plan again when one in so many of the open groups has just come
_REPLAN_BEGUN = 2  # and when one in so many of the groups that waited at the last plan has begun
_REPLAN_GROUPS = 4  # and at least so many: a plan takes the driver some milliseconds, in which nothing else is done


@dataclass(slots=True)
class _Seen:
    """Lengths of an open group's responses that are in."""

    prompt: tuple[int, ...]
    task: Hashable
    lengths: list[int] = field(default_factory=list)


class AdaptiveFrontierDispatch(Admission):
    """Plans order and width of the rest of the round by forecast, again and again while groups come in.

    `frontier_width`: groups of an update (U). `history`: what earlier rounds of the run have shown; pass one to all rounds.
    `expect`: predicts the lengths of a request's group; by default the history's own predictor, which knows a prompt by its
    token ids and `task(request)`. `reorder` False keeps to the order of submission and only chooses the width, `in_order` says
    that the trainer takes groups in that order: both for `group_order: submission` with several updates a round.

    Until lengths, step time and the trainer's speed are known, it admits as `FrontierGroupDispatch`. Call `observe` before
    `admit`, and give `finish` the number of tokens. No group is overtaken by more than twice as many groups as were open when
    it came: so many may begin before it that came later. The same holds for what waits of a group that has begun, from its last
    turn on (a turn is all that waits of a group when it is chosen), and a group that gets new members for ever counts anew with
    each turn that they make. What was requeued may come before anything and does not count. Raises UsageError for a width
    below 1, and where `expect` returns anything but an `Expected`.
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
        check_count("frontier_width", frontier_width, 1, "use groups_per_update", maximum=MAX_COUNT)
        self._per_update = frontier_width
        self.history = History() if history is None else history
        self._expect, self._task = expect or self._expect_from_history, task
        self._reorder, self._in_order = reorder, in_order
        self._heap: list[tuple[float, int, int, WaitingGroup]] = []  # groups that may have waiting requests, by rank
        self._rank: dict[WaitingGroup, int] = {}  # of the plan; groups that came later go by order, after all of it
        self._fresh: dict[WaitingGroup, None] = {}  # nothing of them was ever admitted
        self._begun: dict[WaitingGroup, None] = {}  # open, the others
        self._new: list[WaitingGroup] = []  # began to wait in the submit that goes on
        self._num_begun = 0
        self._patience = Patience()
        self._turn: WaitingGroup | None = None  # chosen last
        self._num_left = 0  # of its turn, requests
        self._is_late = False  # it was passed over as often as it may be: nothing comes between
        self._num_closed = 0
        self._closed_tokens: list[int] = []  # of each group that has ended, in order
        self._replan_at = 0  # number of groups begun
        self._width = Width(math.inf, math.inf, 0)
        self.plan: Plan | None = None  # the last one, for reports
        self._flights = Flights(self.history.step_time)
        self._seen: dict[WaitingGroup, _Seen] = {}
        self._state: PipelineState | None = None

    def submit(self, requests: Iterable[Request]) -> None:
        num_before = self._num_open
        super().submit(requests)
        for group in self._new:
            self._patience.wait(group, self._num_open)
        self._new.clear()
        if _REPLAN_NEW * (self._num_open - num_before) > self._num_open:
            self._replan_at = self._num_begun

    def observe(self, state: PipelineState) -> None:
        check_state(state)
        self._state = state
        self._flights.observe(state)
        if state.trainer_tokens_per_s > _SLOWEST:
            self.history.trainer_token_s = 1 / state.trainer_tokens_per_s
        if state.trainer_update_s > 0:
            self.history.trainer_update_s = state.trainer_update_s

    def admit(self, free_slots: int) -> list[Request]:
        check_count("free_slots", free_slots, 0, "pass capacity minus requests in flight")
        if self._num_begun >= self._replan_at:
            self._make_plan()
        limit = self._width.first if self._num_closed < self._width.num_first else self._width.rest
        admitted = super().admit(int(max(0.0, min(free_slots, limit - len(self._in_flight)))))
        self._flights.admit(admitted)
        return admitted

    def finish(self, request_id: Hashable, num_tokens: int | None = None) -> None:
        if num_tokens is not None:
            check_count("num_tokens", num_tokens, 0, "pass the tokens of the response, or nothing", maximum=MAX_COUNT)
            if (request := self._in_flight.get(request_id)) is not None:
                self._see(request, num_tokens)  # first, as it may raise; what follows does not
        super().finish(request_id)
        self._flights.finish(request_id, num_tokens)

    def requeue(self, request_id: Hashable) -> None:
        super().requeue(request_id)
        self._flights.forget(request_id)

    def cancel_group(self, group_id: Hashable) -> list[Request]:
        if (group := self._groups.get(group_id)) is not None:
            self._seen.pop(group, None)  # the lengths of those members that are in already are the short ones
        in_flight = super().cancel_group(group_id)
        for request in in_flight:
            self._flights.forget(request.request_id)
        return in_flight

    # --- hooks

    def _opened(self, group: WaitingGroup) -> None:
        self._fresh[group] = None

    def _closed(self, group: WaitingGroup) -> None:
        self._num_closed += 1
        self._begin(group)
        del self._begun[group]
        self._rank.pop(group, None)
        self._patience.forget(group)
        if group is self._turn:
            self._num_left = 0
        if (seen := self._seen.pop(group, None)) is not None:
            self._closed_tokens.append(sum(seen.lengths))
            self.history.lengths.learn(
                seen.prompt or group.group_id, seen.lengths, prompt_tokens=len(seen.prompt), task=seen.task
            )

    def _joined(self, group: WaitingGroup) -> None:
        self._push(group)
        self._patience.submitted(group)
        if not self._patience.is_waiting(group):
            self._new.append(group)

    def _returned(self, request: Request, group: WaitingGroup) -> None:
        self._push(group)
        if not self._patience.is_waiting(group):
            self._patience.wait(group, self._num_open)

    def _next(self) -> WaitingGroup | None:
        group = self._turn if self._is_late and self._num_left else self._first_by_rank()
        if group is None:
            return None
        if group is not self._turn or not self._num_left:  # else it goes on: members of a group stay together
            group = self._start_turn(group)
        self._num_left -= 1
        if group.num_waiting == 1:
            self._patience.forget(group)
        return group

    def _start_turn(self, first: WaitingGroup) -> WaitingGroup:
        """`first` by rank, if nobody was passed over too often."""
        late = self._patience.first()
        group = first if late is None else late
        self._turn, self._num_left, self._is_late = group, group.num_waiting, late is not None
        self._patience.take_turn(group, self._num_open)
        self._begin(group)
        return group

    def _frontier_ids(self) -> tuple[Hashable, ...]:
        """The first U of the groups begun."""
        return tuple(group.group_id for group in nsmallest(self._per_update, self._begun, key=self._key))

    # --- order

    def _key(self, group: WaitingGroup) -> tuple[float, int, int]:
        return (self._rank.get(group, math.inf), group.order, group.arrival)

    def _push(self, group: WaitingGroup) -> None:
        if not group.is_ready:
            group.is_ready = True
            heappush(self._heap, (*self._key(group), group))

    def _first_by_rank(self) -> WaitingGroup | None:
        while self._heap:
            group = self._heap[0][-1]
            if group.next_waiting():
                return group
            heappop(self._heap)
            group.is_ready = False
        return None

    def _begin(self, group: WaitingGroup) -> None:
        if group in self._fresh:
            del self._fresh[group]
            self._begun[group] = None
            self._num_begun += 1

    # --- plan

    def _make_plan(self) -> None:
        """Order and width for the rest of the round; they stay as they are where too little is known."""
        pipeline = self._pipeline()
        if pipeline is not None and self.history.trainer_token_s is not None and self._fresh:
            begun = sorted(self._begun, key=self._key)
            fresh = sorted(self._fresh, key=lambda group: (group.order, group.arrival))
            rest = self._rest(begun, fresh, self.history.trainer_token_s)
            if all(state.expected.error < math.inf for state in (*rest.begun, *rest.fresh)):
                self.plan = choose(pipeline, rest, reorder=self._reorder)
                self._follow(self.plan, begun, fresh, pipeline.capacity)
        self._replan_at = self._num_begun + max(-(-len(self._fresh) // _REPLAN_BEGUN), _REPLAN_GROUPS)

    def _rest(self, begun: list[WaitingGroup], fresh: list[WaitingGroup], token_s: float) -> Rest:
        states = [self._state_of(group) for group in (*begun, *fresh)]
        return Rest(
            begun=states[: len(begun)],
            fresh=states[len(begun) :],
            current=sorted(range(len(fresh)), key=lambda index: self._key(fresh[index])),
            members=max(group.stop - group.start for group in fresh),
            num_to_first=max(self._per_update - self._num_closed, 0),
            per_update=self._per_update,
            parts=self.history.lengths.member_parts,
            longest=max(self.history.lengths.longest, *(state.expected.tokens for state in states)),
            token_s=token_s,
            update_s=self.history.trainer_update_s,
        )

    def _follow(self, plan: Plan, begun: list[WaitingGroup], fresh: list[WaitingGroup], capacity: float) -> None:
        first, rest = (limit if limit < capacity else math.inf for limit in plan.width[:2])  # the engines may grow
        self._width = Width(first, rest, plan.width.num_first and self._num_closed + plan.width.num_first)
        if not self._reorder:
            return
        ranked = begun + [fresh[index] for index in plan.order]
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
        tokens = self._closed_tokens[-int(state.trainer_backlog_groups) :] if state.trainer_backlog_groups > 0 else []
        group_s = self.history.trainer_update_s / self._per_update
        return sum(tokens) * (self.history.trainer_token_s or 0.0) + len(tokens) * group_s

    def _state_of(self, group: WaitingGroup) -> GroupState:
        admitted = ((r.member, self._flights.tokens(r.request_id)) for r in group.requests[group.start : group.next])
        return GroupState(
            order=group.order,
            expected=self._expected(group.requests[group.start]),
            waiting=[r.member for r in (*(group.returned or ()), *group.requests[group.next : group.stop])],
            running=[(member, tokens) for member, tokens in admitted if tokens is not None],
            num_done_tokens=sum(self._seen[group].lengths) if group in self._seen else 0,
        )

    # --- lengths

    def _see(self, request: Request, num_tokens: int) -> None:
        group = self._groups[request.group_id]
        if group not in self._seen:
            self._seen[group] = _Seen(request.prompt_ids, self._task_of(request))
        self._seen[group].lengths.append(num_tokens)

    def _task_of(self, request: Request) -> Hashable:
        """Raises where task or prompt cannot be learned."""
        task = self._task(request)
        checks = (("task", task, "return a string"), ("prompt_ids", request.prompt_ids, "pass a tuple of ints"))
        for name, value, remedy in checks:
            try:
                hash(value)
            except TypeError:
                raise UsageError(explain(name, f"must be hashable for {request.request_id!r}", value, remedy)) from None
        return task

    def _expected(self, request: Request) -> Expected:
        expected = self._expect(request)
        if not isinstance(expected, Expected):
            rule = f"must return a common.lengths.Expected for {request.request_id!r}"
            raise UsageError(explain("expect", rule, expected, "return NOTHING_KNOWN where nothing is known"))
        return expected

    def _expect_from_history(self, request: Request) -> Expected:
        task, prompt = self._task_of(request), request.prompt_ids  # none: a prompt of its own
        return self.history.lengths.expect(prompt or request.group_id, prompt_tokens=len(prompt), task=task)
