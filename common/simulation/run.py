"""Rounds from start to publish in simulated time; the same scenario and seed always give the same events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.history import History
from common.lengths import Expected
from common.metrics import RoundCollector, RoundMetrics
from common.policies import AdaptiveFrontierDispatch, AdmissionPolicy
from common.queue import CompleteGroupQueue
from common.records import PipelineState, Request
from common.requests import arrange, derive_seed, group_name, group_requests
from common.round import is_free, make_policy
from common.simulation.agenda import Agenda
from common.simulation.group import SimulatedGroup
from common.simulation.lengths import Lengths, lengths_of_round, prompts_of_round
from common.simulation.models import Scenario
from common.simulation.rollout import RolloutSide
from common.simulation.trainer import TrainerSide
from common.timeline import Event, Timeline


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Figures of each round, as of a real run."""

    scenario: Scenario
    rounds: list[RoundMetrics]


def simulate(
    scenario: Scenario,
    *,
    path: Path | None = None,
    has_detail: bool = False,
    listen: Callable[[Event], None] | None = None,
    first_round: int = 0,
) -> SimulatedRun:
    """Simulate the rounds from `first_round` on. `path`: a timeline.jsonl to write; `has_detail`: events of single requests too.

    A schedule that learns from the rounds before needs all of them: leave `first_round` at 0 for it.
    """
    agenda = Agenda()
    timeline = Timeline(path, lambda: agenda.now_s)
    collector = RoundCollector()
    timeline.listen(collector.listen)
    if listen is not None:
        timeline.listen(listen)
    timeline.emit(
        "run_start",
        name=scenario.name,
        schedule=scenario.schedule,
        rounds=scenario.rounds,
        groups_per_round=scenario.groups_per_round,
        responses_per_group=scenario.responses_per_group,
        groups_per_update=scenario.groups_per_update,
        max_logprob_gap=None,
        is_simulated=True,
    )
    num_steps, history = 0, History()
    for index in range(first_round, scenario.rounds):
        num_steps = SimulatedRound(scenario, index, agenda, timeline, num_steps, has_detail, history).run()
    timeline.emit("run_end", status="finished", detail="simulated")
    timeline.close()
    timeline.check()
    return SimulatedRun(scenario, collector.rounds)


class SimulatedRound:
    """One round; `run` returns the optimizer steps since the start of training."""

    def __init__(
        self,
        scenario: Scenario,
        index: int,
        agenda: Agenda,
        timeline: Timeline,
        num_steps: int,
        has_detail: bool,
        history: History,
    ) -> None:
        self._scenario, self._index, self._agenda, self._timeline = scenario, index, agenda, timeline
        self._queue = CompleteGroupQueue(
            groups_per_round=scenario.groups_per_round,
            groups_per_update=scenario.groups_per_update,
            weight_version=index,
            order=scenario.group_order,
        )
        rng = np.random.default_rng([abs(scenario.seed), index])
        self._lengths = _draw_lengths(scenario, index, rng)
        self._history = history
        self._policy = self._make_policy()
        self._trainer = TrainerSide(
            scenario.trainer,
            index=index,
            groups_per_update=scenario.groups_per_update,
            queue=self._queue,
            agenda=agenda,
            timeline=timeline,
            is_open=scenario.schedule != "serial",
            num_steps=num_steps,
            on_busy=self._set_training,
            on_end=self._publish,
        )
        self._rollout = self._make_rollout(rng, has_detail)
        self._is_training = self._is_sampling = False

    def run(self) -> int:
        """Until the weights are published."""
        scenario, timeline = self._scenario, self._timeline
        timeline.emit(
            "round_start",
            round=self._index,
            version=self._index,
            num_groups=scenario.groups_per_round,
            schedule=scenario.schedule,
        )
        self._is_sampling = True
        self._rollout.start(self._requests())
        self._agenda.run()
        return self._trainer.num_steps

    def _make_policy(self) -> AdmissionPolicy:
        scenario = self._scenario
        if scenario.schedule != "adaptive":
            return make_policy(scenario.schedule, scenario.width)
        free = is_free(scenario.group_order, scenario.groups_per_update, scenario.groups_per_round)
        return AdaptiveFrontierDispatch(
            scenario.groups_per_update,
            history=self._history,
            expect=None if scenario.predictor_error is None else self._oracle(scenario.predictor_error),
            reorder=free,
            in_order=not free,
        )

    def _oracle(self, error: float) -> Callable[[Request], Expected]:
        """Predicts each group's mean length off by a log-normal factor, and knows how much that is worth."""
        logs = np.log(np.maximum(self._lengths, 1)).mean(axis=1)
        rng = np.random.default_rng([abs(self._scenario.seed), self._index, 1])
        seen = logs + rng.normal(0.0, error, len(logs))
        trust = logs.var() / (logs.var() + error**2) if error else 1.0
        posterior, sigma = logs.mean() + trust * (seen - logs.mean()), float(np.sqrt((1 - trust) * logs.var()))
        expected = [Expected(tokens=float(np.exp(one)), error=sigma) for one in posterior]
        return lambda request: expected[request.order]

    def _make_rollout(self, rng: np.random.Generator, has_detail: bool) -> RolloutSide:
        scenario = self._scenario
        num_members = scenario.responses_per_group
        return RolloutSide(
            scenario.engine,
            index=self._index,
            policy=self._policy,
            queue=self._queue,
            groups=[
                SimulatedGroup(group_name(self._index, order), order, self._index, num_members)
                for order in range(scenario.groups_per_round)
            ],
            lengths=self._lengths,
            cap=getattr(scenario.lengths, "cap", None),
            verify_s=_draw_verify_s(scenario, rng),
            agenda=self._agenda,
            timeline=self._timeline,
            observe=self._state,
            on_group=self._trainer.wake,
            on_end=self._sampled,
            has_detail=has_detail,
        )

    def _requests(self) -> list[Request]:
        """In order of arrival."""
        scenario, index = self._scenario, self._index
        prompts = prompts_of_round(scenario.lengths, index, scenario.groups_per_round, scenario.prompt_tokens)
        groups = [
            group_requests(index, order, prompt, scenario.responses_per_group, scenario.seed)
            for order, prompt in enumerate(prompts)
        ]
        order_seed = derive_seed(scenario.seed, index, 0, -1)
        requests = arrange(groups, scenario.request_order, order_seed)
        return spread(requests, scenario.order_spread * scenario.responses_per_group, order_seed)

    def _state(self) -> PipelineState:
        queue, compute_s = self._queue.snapshot(), self._trainer.compute_s
        return PipelineState(
            now_s=self._agenda.now_s,
            trainer_backlog_groups=queue.num_waiting,
            trainer_groups_per_s=queue.num_taken / compute_s if compute_s > 0 else 0.0,
            engine_tokens_per_s=self._rollout.tokens_per_s,
            engine_running=self._rollout.num_in_flight,
            engine_capacity=self._scenario.capacity,
            trainer_tokens_per_s=self._trainer.tokens_per_s,
            trainer_update_s=self._trainer.mean_update_s,
        )

    def _sampled(self) -> None:
        self._is_sampling = False
        self._share_machine()
        if not self._trainer.is_open:
            self._trainer.open()

    def _set_training(self, is_training: bool) -> None:
        self._is_training = is_training
        self._share_machine()

    def _share_machine(self) -> None:
        if self._scenario.contention == 1:
            return
        both = self._is_sampling and self._is_training
        speed = 1 / self._scenario.contention if both else 1.0
        self._trainer.set_speed(speed)
        self._rollout.set_speed(speed)

    def _publish(self) -> None:
        start = self._agenda.now_s
        self._agenda.after(self._scenario.publish_s, lambda: self._published(start))

    def _published(self, start: float) -> None:
        if self._scenario.publish_s:
            self._timeline.emit("publish", round=self._index, start=round(start, 6), phase="transfer", version=self._index + 1)
        num_groups = self._scenario.groups_per_round
        num_requests = num_groups * self._scenario.responses_per_group
        books = {"groups": num_groups, "refilled": 0, "trained": num_groups, "filtered": 0, "dropped": 0}
        books |= {"requests": num_requests, "finished": num_requests, "failed": 0, "cancelled": 0}
        self._timeline.emit("round_end", round=self._index, books=books)


def spread(requests: Sequence[Request], by: float, seed: int) -> list[Request]:
    """Requests out of order by at most `by` places: each arrives at its place plus a uniform share of `by`."""
    if not by:
        return list(requests)
    places = np.arange(len(requests)) + np.random.default_rng(seed).uniform(0.0, by, len(requests))
    return [requests[index] for index in np.argsort(places, kind="stable")]


def lengths_of(scenario: Scenario, index: int = 0) -> Lengths:
    """The lengths that round `index` of this scenario has."""
    rng = np.random.default_rng([abs(scenario.seed), index])
    return _draw_lengths(scenario, index, rng)


def verify_s_of(scenario: Scenario, index: int = 0) -> NDArray[np.float64]:
    """The verifier's seconds that round `index` of this scenario has, (R, K)."""
    rng = np.random.default_rng([abs(scenario.seed), index])
    _draw_lengths(scenario, index, rng)
    return _draw_verify_s(scenario, rng)


def _draw_lengths(scenario: Scenario, index: int, rng: np.random.Generator) -> Lengths:
    return lengths_of_round(scenario.lengths, index, rng, (scenario.groups_per_round, scenario.responses_per_group))


def _draw_verify_s(scenario: Scenario, rng: np.random.Generator) -> NDArray[np.float64]:
    shape = (scenario.groups_per_round, scenario.responses_per_group)
    return scenario.verifier.seconds * np.exp(rng.normal(0.0, 1.0, shape) * scenario.verifier.sigma)
