"""A small event-driven run that emits exactly the events of `common.timeline`, for tests and screenshots of reports.

Seeded and without real time: engines with a fixed number of slots decode log-normal response lengths, a verifier adds a
delay, the trainer takes complete groups. It models nothing beyond that; the shipped policies are tested elsewhere.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.records import FinishReason, Group, Reason, Request, Response, Sample, Times, Verdict
from common.timeline import Event, Timeline


@dataclass
class Plan:
    """Settings of the synthetic run."""

    schedule: str = "fgd"
    rounds: int = 3
    groups: int = 16
    members: int = 4
    update_groups: int = 2
    replicas: int = 2
    capacity: int = 8
    tokens_per_s: float = 40.0  # of one slot
    mean_length: float = 5.0  # of the natural logarithm of the length
    max_tokens: int = 600
    accumulate_s: float = 1.6
    step_s: float = 0.5
    filtered_share: float = 0.1
    retry_share: float = 0.01
    dropped: tuple[tuple[int, int], ...] = ()  # (round, group order): fails after its first response
    seed: int = 0
    kill_at_s: float | None = None  # the run ends here, without a further event
    on_group: Callable[[int, Group], None] | None = None


@dataclass
class _Books:
    trained: int = 0
    filtered: int = 0
    dropped: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refilled: int = 0


@dataclass
class _GroupState:
    samples: list[tuple[Request, Response, float, float]] = field(default_factory=list)
    tokens: int = 0
    is_dropped: bool = False


_START = (("start Ray", 2.1), ("start engines", 6.4), ("start trainer", 3.2), ("publish version 0", 0.8))


class _Killed(Exception):
    pass


class Simulation:
    """One run over a virtual clock."""

    def __init__(self, plan: Plan, timeline_path: Path | None, listeners: tuple[Callable[[Event], None], ...] = ()) -> None:
        self.plan, self.now = plan, 0.0
        self.random = random.Random(plan.seed)
        self.timeline = Timeline(timeline_path, clock=lambda: self.now)
        for listener in listeners:
            self.timeline.listen(listener)
        self.optimizer_step = 0

    def emit(self, kind: str, **fields: Any) -> None:
        if self.plan.kill_at_s is not None and self.now > self.plan.kill_at_s:
            raise _Killed
        self.timeline.emit(kind, **fields)

    def run(self) -> None:
        """The whole run."""
        plan = self.plan
        with self.timeline:
            try:
                self.emit(
                    "run_start",
                    name="synthetic",
                    schedule=plan.schedule,
                    rounds=plan.rounds,
                    groups_per_round=plan.groups,
                    responses_per_group=plan.members,
                    groups_per_update=plan.update_groups,
                    max_logprob_gap=0.05,
                )
                for name, seconds in (
                    ("start Ray", 2.1),
                    ("start engines", 6.4),
                    ("start trainer", 3.2),
                    ("publish version 0", 0.8),
                ):
                    self.emit("phase", name=name)
                    self.now += seconds
                for number in range(plan.rounds):
                    _Round(self, number).run()
                self.emit("run_end", status="finished")
            except _Killed:
                pass


class _Round:
    """One round: three chains of events (slots, trainer, verifier) over one heap."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.sim, self.plan, self.number = simulation, simulation.plan, number
        self.random = random.Random(f"{self.plan.seed}/{number}")
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.num_scheduled = 0
        self.waiting = self._requests()
        self.states = {order: _GroupState() for order in range(self.plan.groups)}
        self.free = [self.plan.capacity] * self.plan.replicas
        self.ready: list[int] = []  # complete groups, in arrival order
        self.books = _Books()
        self.left = self.plan.groups  # groups not yet reported
        self.update, self.in_update = 0, 0
        self.wait_from: float | None = simulation.now
        self.is_rollout_done = False

    def _requests(self) -> list[Request]:
        """In the order of admission: interleaved arrival, which fgd puts in group order."""
        plan = self.plan
        pairs = [(member, order) for member in range(plan.members) for order in range(plan.groups)]
        if plan.schedule.startswith("fgd"):
            pairs.sort(key=lambda pair: (pair[1], pair[0]))
        prefix = f"r{self.number}/g"
        return [
            Request(request_id=f"{prefix}{order}/m{member}", group_id=f"{prefix}{order}", order=order, member=member)
            for member, order in pairs
        ]

    def at(self, delay: float, action: Callable[[], None]) -> None:
        self.num_scheduled += 1
        heapq.heappush(self.heap, (self.sim.now + delay, self.num_scheduled, action))

    def emit(self, kind: str, **fields: Any) -> None:
        fields = {name: round(value, 6) if isinstance(value, float) else value for name, value in fields.items()}
        self.sim.emit(kind, round=self.number, **fields)

    def run(self) -> None:
        self.emit("round_start", version=self.number, num_groups=self.plan.groups)
        self.admit()
        while self.heap:
            self.sim.now, _, action = heapq.heappop(self.heap)
            action()
        self.publish()
        books = {"groups": self.plan.groups, "requests": self.plan.groups * self.plan.members, **vars(self.books)}
        self.emit("round_end", books=books)

    def admit(self) -> None:
        while self.waiting and any(self.free):
            request = self.waiting.pop(0)
            if self.states[request.order].is_dropped:
                self.books.cancelled += 1
                continue
            replica = max(range(self.plan.replicas), key=lambda index: self.free[index])
            self.free[replica] -= 1
            self.emit(
                "dispatch", request=request.request_id, group=request.group_id, member=request.member, replica=f"engine-{replica}"
            )
            hard = 0.6 if request.order % 7 == 3 else 0.0  # some prompts think longer
            drawn = int(self.random.lognormvariate(self.plan.mean_length + hard, 0.5))
            tokens = min(self.plan.max_tokens, max(4, drawn))
            self.at(tokens / self.plan.tokens_per_s, self._respond(request, replica, tokens, self.sim.now))

    def _respond(self, request: Request, replica: int, tokens: int, start: float) -> Callable[[], None]:
        def action() -> None:
            self.free[replica] += 1
            state = self.states[request.order]
            is_lost = not state.is_dropped and self.random.random() < self.plan.retry_share
            if is_lost:
                self.emit("retry", request=request.request_id, group=request.group_id, reason="the engine lost it")
                self.waiting.insert(0, request)
            elif state.is_dropped:
                self.books.cancelled += 1
            else:
                self._answered(request, replica, tokens, start)
            self.admit()

        return action

    def _answered(self, request: Request, replica: int, tokens: int, start: float) -> None:
        reason = FinishReason.LENGTH if tokens >= self.plan.max_tokens else FinishReason.STOP
        self.emit(
            "response",
            start=start,
            request=request.request_id,
            group=request.group_id,
            member=request.member,
            replica=f"engine-{replica}",
            tokens=tokens,
            finish_reason=reason,
            version=self.number,
        )
        if (self.number, request.order) in self.plan.dropped:
            self._drop(request)
            return
        self.books.finished += 1
        response = Response(
            request_id=request.request_id,
            token_ids=tuple(self.random.randrange(1000) for _ in range(min(tokens, 40))),
            logprobs=tuple(-self.random.expovariate(2.0) for _ in range(min(tokens, 40))),
            finish_reason=reason,
            version_start=self.number,
            version_end=self.number,
            times=Times(admitted_s=start, finished_s=self.sim.now),
        )
        delay = 0.02 + self.random.expovariate(12.0)
        self.at(delay, lambda: self._score(request, response, tokens, delay))

    def _drop(self, request: Request) -> None:
        state = self.states[request.order]
        state.is_dropped = True
        self.books.dropped += 1
        self.books.failed += 1
        detail = f"{request.request_id} failed beyond its 2 retries"
        self.emit("group_drop", group=request.group_id, reason=Reason.FAILED, detail=detail)
        self._report()

    def _score(self, request: Request, response: Response, tokens: int, took: float) -> None:
        state = self.states[request.order]
        if state.is_dropped:
            return
        chance = min(0.92, 0.25 + 0.06 * self.number + (-0.12 if request.order % 7 == 3 else 0.0))
        reward = float(self.random.random() < chance)
        status = Verdict.OK if reward else (Verdict.WRONG if self.random.random() < 0.8 else Verdict.NO_ANSWER)
        self.emit(
            "verify", start=self.sim.now - took, group=request.group_id, member=request.member, status=status, reward=reward
        )
        state.samples.append((request, response, reward, self.sim.now))
        state.tokens += tokens
        if len(state.samples) == self.plan.members:
            self._complete(request.order, state)

    def _complete(self, order: int, state: _GroupState) -> None:
        rewards = [reward for _, _, reward, _ in state.samples]
        mean = sum(rewards) / len(rewards)
        std = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
        filtered = Reason.FILTERED if std == 0 and self.random.random() < self.plan.filtered_share * 5 else None
        group_id = f"r{self.number}/g{order}"
        self.emit(
            "group_complete",
            group=group_id,
            order=order,
            reward_mean=mean,
            reward_std=std,
            tokens=state.tokens,
            filtered=filtered,
        )
        if self.plan.on_group:
            self.plan.on_group(self.number, self._group(order, state, mean, std, filtered))
        if filtered:
            self.books.filtered += 1
        else:
            self.ready.append(order)
        self._report()

    def _group(self, order: int, state: _GroupState, mean: float, std: float, filtered: Reason | None) -> Group:
        samples = tuple(
            Sample(
                request=request,
                response=response,
                reward=reward,
                status=Verdict.OK if reward else Verdict.WRONG,
                advantage=(reward - mean) / (std + 1e-6),
                text=f"Let me add the numbers one by one.\nThe sum is {17 + order}.\n<answer>{17 + order}</answer>",
                reason="exact match" if reward else f"expected {18 + order}, found {17 + order}",
            )
            for request, response, reward, _ in sorted(state.samples, key=lambda item: item[0].member)
        )
        group_id = f"r{self.number}/g{order}"
        return Group(group_id=group_id, order=order, weight_version=self.number, samples=samples, filtered=filtered)

    def _report(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.emit("rollout_done")
            self.is_rollout_done = True
        self.train()

    def train(self) -> None:
        """Start the next accumulate, if the trainer is free and something is there for it."""
        is_open = self.plan.schedule != "serial" or self.is_rollout_done
        if self.wait_from is None or not is_open:
            return
        if self.ready:
            self._end_wait()
            order, start = self.ready.pop(0), self.sim.now
            self.at(self.plan.accumulate_s * self.random.uniform(0.8, 1.2), lambda: self._accumulated(order, start))
        elif self.is_rollout_done and self.in_update:
            self._end_wait()
            self._step()

    def _end_wait(self) -> None:
        if self.wait_from is not None and self.sim.now > self.wait_from:
            self.emit("wait", start=self.wait_from, on="group")
        self.wait_from = None

    def _accumulated(self, order: int, start: float) -> None:
        self.emit("compute", start=start, phase="accumulate", update=self.update, group=f"r{self.number}/g{order}")
        self.books.trained += 1
        self.in_update += 1
        if self.in_update == self.plan.update_groups:
            self._step()
        else:
            self.wait_from = self.sim.now
            self.train()

    def _step(self) -> None:
        start = self.sim.now
        self.at(self.plan.step_s, lambda: self._stepped(start))

    def _stepped(self, start: float) -> None:
        self.emit("compute", start=start, phase="finish", update=self.update, group=None)
        self.sim.optimizer_step += 1
        gap = 0.012 + 0.01 * self.random.random() + 0.004 * self.update
        self.emit(
            "update",
            update=self.update,
            optimizer_step=self.sim.optimizer_step,
            loss=0.02 * self.random.gauss(0, 1),
            grad_norm=0.4 + 0.2 * self.random.random(),
            metrics={"logprob_gap_max": gap, "logprob_gap_mean": gap / 9, "lr": 1e-6, "denominator": 1.0},
        )
        self.update, self.in_update = self.update + 1, 0
        self.wait_from = self.sim.now
        self.train()

    def publish(self) -> None:
        for phase, seconds in (("export", 0.5), ("check", 0.2), ("transfer", 0.9), ("probe", 0.2)):
            start = self.sim.now
            self.sim.now += seconds
            self.emit("publish", start=start, phase=phase, version=self.number + 1)


def simulate(plan: Plan, timeline_path: Path | None = None) -> list[Event]:
    """Run the plan; returns its events."""
    events: list[Event] = []
    Simulation(plan, timeline_path, (events.append,)).run()
    return events


def write_run(directory: Path, plan: Plan) -> Path:
    """A run directory as a real run leaves it: configuration, timeline and groups."""
    from common.report.groups import GroupWriter

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(
        f"name: synthetic\nschedule: {plan.schedule}\nrounds: {plan.rounds}\ngroups_per_round: {plan.groups}\n"
        f"responses_per_group: {plan.members}\ngroups_per_update: {plan.update_groups}\nseed: {plan.seed}\n"
        "model:\n  path: models/tiny\nworkload:\n  name: reasoning_gym:chain_sum\nlimits:\n  max_logprob_gap: 0.05\n"
        f"sampling:\n  max_tokens: {plan.max_tokens}\nrollout:\n  replicas: {plan.replicas}\n  capacity: {plan.capacity}\n"
    )
    with GroupWriter(directory / "groups") as writer:
        plan.on_group = lambda number, group: writer.write(number, group, prompt=f"What is {group.order} + 17?")
        simulate(plan, directory / "timeline.jsonl")
    return directory
