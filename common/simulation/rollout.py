"""The producing side of a simulated round: the shipped policy and placement, replicas, verifier, whole groups.

Events as `common.rollout_side` and `common.assembly` write them; those of single requests only where `has_detail`.
"""

from collections.abc import Callable, Sequence

import numpy as np

from common.placement import Placement
from common.plan_log import PlanLog
from common.policies import AdmissionPolicy
from common.queue import CompleteGroupQueue
from common.records import FinishReason, PipelineState, Request, Verdict
from common.simulation.agenda import Agenda
from common.simulation.engine import Job, Replica
from common.simulation.group import SimulatedGroup
from common.simulation.lengths import Lengths
from common.simulation.models import EngineModel
from common.timeline import Timeline


class RolloutSide:
    """`start` submits and admits; `on_group` after each complete group, `on_end` after the last."""

    def __init__(
        self,
        engine: EngineModel,
        *,
        index: int,
        policy: AdmissionPolicy,
        queue: CompleteGroupQueue,
        groups: Sequence[SimulatedGroup],
        lengths: Lengths,
        cap: int | None,
        verify_s: np.ndarray,
        agenda: Agenda,
        timeline: Timeline,
        observe: Callable[[], PipelineState],
        on_group: Callable[[], None],
        on_end: Callable[[], None],
        has_detail: bool = True,
    ) -> None:
        self._index, self._policy, self._queue = index, policy, queue
        self._groups, self._lengths, self._cap, self._verify_s = groups, lengths, cap, verify_s
        self._agenda, self._timeline, self._observe = agenda, timeline, observe
        self._on_group, self._on_end = on_group, on_end
        self._has_detail = has_detail
        self._plans = PlanLog(policy, timeline, index)
        self._capacity = engine.replicas * engine.capacity
        self._placement = Placement([engine.capacity] * engine.replicas)
        self.replicas = [Replica(engine, agenda, self._done, index) for index in range(engine.replicas)]
        self._admitted_s: dict[Request, float] = {}
        self._started_s = agenda.now_s
        self._num_open = len(groups)
        self.num_in_flight = 0
        self.num_tokens = 0

    @property
    def tokens_per_s(self) -> float:
        """Tokens of finished responses a second, since the round began; 0.0 while unknown."""
        elapsed_s = self._agenda.now_s - self._started_s
        return self.num_tokens / elapsed_s if elapsed_s > 0 else 0.0

    def start(self, requests: Sequence[Request]) -> None:
        """All requests of the round, in the order in which they arrive."""
        self._policy.submit(requests)
        self._admit(None)

    def set_speed(self, speed: float) -> None:
        """Of all replicas; below 1 while training takes the machine."""
        for replica in self.replicas:
            replica.advance()
            replica.speed = speed
            replica.plan()

    def _admit(self, acting: Replica | None) -> None:
        """Start what the policy admits. The `acting` replica plans on its own."""
        self._policy.observe(self._observe())
        touched: dict[Replica, None] = {}
        admitted = self._policy.admit(self._capacity - self.num_in_flight)
        self._plans.note()
        for request in admitted:
            replica = self.replicas[self._placement.place(request.group_id)]
            self._placement.take(replica.index)
            self.num_in_flight += 1
            self._admitted_s[request] = self._agenda.now_s
            if self._has_detail:
                self._emit("dispatch", request, replica)
            replica.add(Job(request, int(self._lengths[request.order, request.member])))
            touched[replica] = None
        for replica in touched:
            if replica is not acting:
                replica.plan()

    def _done(self, replica: Replica, job: Job) -> None:
        request = job.request
        started_s = self._admitted_s.pop(request)
        self._placement.give(replica.index)
        self.num_in_flight -= 1
        self.num_tokens += job.tokens
        self._policy.finish(request.request_id, job.tokens)
        if self._has_detail:
            reason = FinishReason.LENGTH if job.tokens == self._cap else FinishReason.STOP
            version = self._groups[request.order].weight_version
            fields = {"tokens": job.tokens, "finish_reason": reason, "version": version}
            self._emit("response", request, replica, start=round(started_s, 6), **fields)
        self._admit(replica)
        self._verify(job)

    def _verify(self, job: Job) -> None:
        finished_s = self._agenda.now_s
        seconds = float(self._verify_s[job.request.order, job.request.member])
        if seconds > 0:
            self._agenda.after(seconds, lambda: self._scored(job, finished_s))
        else:
            self._scored(job, finished_s)

    def _scored(self, job: Job, finished_s: float) -> None:
        request, group = job.request, self._groups[job.request.order]
        if self._has_detail:
            ids = {"group": group.group_id, "member": request.member}
            seconds = round(self._agenda.now_s - finished_s, 6)  # a modelled verifier is never busy
            verdict = {"status": Verdict.OK, "reward": None, "seconds": seconds}
            self._timeline.emit("verify", round=self._index, start=round(finished_s, 6), **ids, **verdict)
        group.num_missing -= 1
        group.num_tokens += job.tokens
        if not group.num_missing:
            self._complete(group)

    def _complete(self, group: SimulatedGroup) -> None:
        self._timeline.emit(
            "group_complete",
            round=self._index,
            group=group.group_id,
            order=group.order,
            reward_mean=None,
            reward_std=None,
            tokens=group.num_tokens,
            filtered=None,
        )
        self._queue.put(group)
        self._num_open -= 1
        if not self._num_open:
            self._timeline.emit("rollout_done", round=self._index)
            self._on_end()
        self._on_group()

    def _emit(self, kind: str, request: Request, replica: Replica, **fields: object) -> None:
        ids = {"request": request.request_id, "group": request.group_id, "member": request.member}
        self._timeline.emit(kind, round=self._index, replica=f"engine-{replica.index}", **ids, **fields)
