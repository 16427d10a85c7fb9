"""A second simulator, token by token and as plain as can be: no heap, no fluid, and nothing shared with `common.simulation`.

Each replica goes from step to step. A step computes the prompts that are new on the replica and then one token for each of
its running requests. Policies are searches over plain lists. It is slow, and its only use is to be compared with.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from common.simulation.models import Scenario

Member = tuple[int, int]  # group order, member


@dataclass
class _Replica:
    """Requests and how many tokens each has."""

    tokens: dict[Member, int] = field(default_factory=dict)  # oldest first
    new: list[Member] = field(default_factory=list)  # no prompt computed yet
    queue: list[Member] = field(default_factory=list)  # wait for memory
    had: dict[Member, int] = field(default_factory=dict)  # of those put back
    step_ends: float | None = None
    num_in_flight: int = 0


@dataclass
class Reference:
    """`run` fills: seconds at which each request entered and ended, and each group was complete; the trainer's moments."""

    scenario: Scenario
    arrivals: list[Member]  # in order
    lengths: np.ndarray
    verify_s: np.ndarray
    entered: dict[Member, float] = field(default_factory=dict)
    ended: dict[Member, float] = field(default_factory=dict)
    complete: dict[int, float] = field(default_factory=dict)  # group order -> seconds
    accumulated: list[tuple[int, float, float]] = field(default_factory=list)  # group order, start, end
    stepped: list[float] = field(default_factory=list)
    most_memory: int = 0
    num_put_back: int = 0
    ended_at: dict[int, list[float]] = field(default_factory=dict)  # replica -> moments at which a request ended there

    @property
    def has_ties(self) -> bool:
        """Requests of two replicas ended together: which of them frees its slot first is nobody's to say."""
        moments = sorted((moment, index) for index, ends in self.ended_at.items() for moment in ends)
        pairs = pairwise(moments)
        return any(one[1] != other[1] and other[0] - one[0] < 1e-6 for one, other in pairs)

    def run(self) -> "Reference":
        """The whole round."""
        engine = self.scenario.engine
        self._replicas = [_Replica() for _ in range(engine.replicas)]
        self._homes: dict[int, int] = {}
        self._waiting = list(self.arrivals)
        self._admit(0.0)
        self._begin_steps(0.0)
        while any(replica.step_ends is not None for replica in self._replicas):
            index = min(
                (index for index, replica in enumerate(self._replicas) if replica.step_ends is not None),
                key=lambda index: (self._replicas[index].step_ends, index),
            )
            self._end_step(index)
        for order in range(self.scenario.groups_per_round):
            members = range(self.scenario.responses_per_group)
            self.complete[order] = max(self.ended[order, m] + self.verify_s[order, m] for m in members)
        self._train()
        return self

    # Admission, by searching.

    def _admit(self, now: float) -> None:
        capacity = self.scenario.engine.capacity
        while self._waiting and sum(r.num_in_flight for r in self._replicas) < capacity * len(self._replicas):
            member = self._choose()
            if member is None:
                return
            self._waiting.remove(member)
            self.entered[member] = now
            rooms = [capacity - replica.num_in_flight for replica in self._replicas]
            home = self._homes.setdefault(member[0], rooms.index(max(rooms)))
            index = home if rooms[home] > 0 else rooms.index(max(rooms))
            replica = self._replicas[index]
            replica.num_in_flight += 1
            if replica.queue or not self._has_room(replica, self.scenario.prompt_tokens):
                replica.queue.append(member)
            else:
                self._enter(replica, member)

    def _choose(self) -> Member | None:
        if self.scenario.schedule in ("serial", "cgp"):
            return self._waiting[0]
        if self.scenario.schedule == "fgd-strict":
            served = {order for order in range(self.scenario.groups_per_round) if self._is_served(order)}
            still = [order for order in range(self.scenario.groups_per_round) if order not in served]
            frontier = still[: self.scenario.width]
            allowed = [member for member in self._waiting if member[0] in frontier]
        else:
            allowed = self._waiting
        # Of the lowest group, whichever of its members came first.
        return min(allowed, key=lambda member: (member[0], self.arrivals.index(member)), default=None)

    def _is_served(self, order: int) -> bool:
        return all((order, member) in self.ended for member in range(self.scenario.responses_per_group))

    # Steps.

    def _memory(self, replica: _Replica) -> int:
        return sum(self.scenario.prompt_tokens + count for count in replica.tokens.values())

    def _has_room(self, replica: _Replica, tokens: int) -> bool:
        limit = self.scenario.engine.kv_tokens
        return limit is None or not replica.tokens or self._memory(replica) + tokens <= limit

    def _enter(self, replica: _Replica, member: Member) -> None:
        replica.tokens[member] = replica.had.pop(member, 0)
        replica.new.append(member)

    def _begin_steps(self, now: float) -> None:
        for replica in self._replicas:
            if replica.tokens and replica.step_ends is None:
                self._begin_step(replica, now)

    def _begin_step(self, replica: _Replica, now: float) -> None:
        engine, limit = self.scenario.engine, self.scenario.engine.kv_tokens
        # A step adds a token to each, so the youngest goes where that would not fit.
        while limit is not None and len(replica.tokens) > 1 and self._memory(replica) + len(replica.tokens) > limit:
            member = list(replica.tokens)[-1]
            replica.had[member] = replica.tokens.pop(member)
            if member in replica.new:
                replica.new.remove(member)
            replica.queue.insert(0, member)
            self.num_put_back += 1
        prefill = sum(self.scenario.prompt_tokens + replica.tokens[member] for member in replica.new)
        replica.new = []
        seconds = prefill * engine.prefill_s_per_token + engine.step_s + engine.step_per_request_s * len(replica.tokens)
        replica.step_ends = now + seconds

    def _end_step(self, index: int) -> None:
        replica = self._replicas[index]
        now = replica.step_ends
        assert now is not None
        replica.step_ends = None
        running = [member for member in replica.tokens if member not in replica.new]
        for member in running:
            replica.tokens[member] += 1
        if len(replica.tokens) > 1:
            self.most_memory = max(self.most_memory, self._memory(replica))
        done = [member for member in running if replica.tokens[member] == self.lengths[member]]
        for member in done:
            del replica.tokens[member]
        while done and replica.queue:
            member = replica.queue[0]
            if not self._has_room(replica, self.scenario.prompt_tokens + replica.had.get(member, 0)):
                break
            self._enter(replica, replica.queue.pop(0))
        for member in done:
            self.ended[member] = now
            self.ended_at.setdefault(index, []).append(now)
            replica.num_in_flight -= 1
            self._admit(now)
        self._begin_steps(now)

    # The trainer, after the fact: when each group was there is known by now.

    def _train(self) -> None:
        scenario, model = self.scenario, self.scenario.trainer
        orders = sorted(self.complete, key=lambda order: (self.complete[order], order))
        ready = dict(self.complete)
        if scenario.group_order == "submission":
            orders = sorted(orders)
        if scenario.schedule == "serial":
            ready = dict.fromkeys(ready, max(ready.values()))
        now = 0.0
        for first in range(0, len(orders), scenario.groups_per_update):
            update = orders[first : first + scenario.groups_per_update]
            for order in update:
                there = max(ready[one] for one in update) if model.starts_at == "last" else ready[order]
                start = max(now, there)
                now = start + model.group_s + model.token_s * int(self.lengths[order].sum())
                self.accumulated.append((order, start, now))
            now += model.update_s
            self.stepped.append(now)
