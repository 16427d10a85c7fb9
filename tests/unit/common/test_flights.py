"""Requests in flight: their progress and the step time learned from them, against an engine of known speed."""

import random

import pytest

from common._flights import Flights
from common.history import StepTime
from common.records import PipelineState, Request

CAPACITY, STEP_S, FULL_STEP_S = 10, 0.02, 0.03


def state(now_s: float, capacity: int = CAPACITY) -> PipelineState:
    return PipelineState(
        now_s=now_s,
        trainer_backlog_groups=0,
        trainer_groups_per_s=0.0,
        engine_tokens_per_s=0.0,
        engine_running=0,
        engine_capacity=capacity,
    )


class Engine:
    """All running requests decode one token a step, and a step takes the longer the more run."""

    def __init__(self, flights: Flights) -> None:
        self.flights = flights
        self.now_s = 0.0
        self.left: dict[str, float] = {}
        self.tokens: dict[str, int] = {}

    def add(self, name: str, tokens: int) -> None:
        self.flights.observe(state(self.now_s))
        self.flights.admit([Request(request_id=name, group_id=name, order=0)])
        self.left[name] = self.tokens[name] = tokens

    def decode(self, steps: float) -> None:
        self.now_s += steps * (STEP_S + FULL_STEP_S * len(self.left) / CAPACITY)
        self.left = {name: left - steps for name, left in self.left.items()}

    def run_until_one_ends(self) -> None:
        name = min(self.left, key=self.left.__getitem__)
        self.decode(self.left[name])
        del self.left[name]
        self.flights.finish(name, self.tokens[name])
        self.flights.observe(state(self.now_s))
        self.flights.admit([])


def test_it_learns_the_engines_step_time_and_knows_how_far_each_request_is() -> None:
    rng, step_time = random.Random(0), StepTime()
    engine = Engine(Flights(step_time))
    for number in range(600):
        target = 1 + number // 20 % CAPACITY  # runs that are now few and now many
        while len(engine.left) >= target:
            engine.run_until_one_ends()
        engine.add(str(number), round(rng.lognormvariate(4.0, 0.7)) + 1)
    assert step_time.line() == pytest.approx((STEP_S, FULL_STEP_S), rel=0.05)
    engine.decode(0.5 * min(engine.left.values()))
    engine.flights.observe(state(engine.now_s))
    for name, left in engine.left.items():
        assert engine.flights.tokens(name) == pytest.approx(engine.tokens[name] - left, rel=0.05, abs=1.0)


def test_who_is_not_in_flight_has_no_progress() -> None:
    flights = Flights(StepTime())
    assert flights.tokens("a") is None
    flights.admit([Request(request_id="a", group_id="a", order=0)])
    assert flights.tokens("a") == 0.0
    flights.forget("a")
    assert flights.tokens("a") is None


def test_time_without_engines_and_time_without_requests_is_no_step() -> None:
    step_time = StepTime()
    step_time.learn(0.1, 0.5)
    flights = Flights(step_time)
    flights.observe(state(0.0))
    flights.observe(state(50.0))  # nothing runs
    flights.admit([Request(request_id="a", group_id="a", order=0)])
    flights.observe(state(51.0, capacity=0))
    assert flights.tokens("a") == pytest.approx(10.0)
    flights.observe(state(90.0))  # the engines were gone until now
    assert flights.tokens("a") == pytest.approx(10.0)
    flights.observe(state(91.0))
    assert flights.tokens("a") == pytest.approx(20.0)


def test_one_admitted_before_the_first_observation_teaches_no_speed() -> None:
    """Nobody knows when it began."""
    flights = Flights(step_time := StepTime())
    flights.admit([Request(request_id="a", group_id="a", order=0)])
    flights.observe(state(1000.0))
    flights.observe(state(1001.0))
    flights.finish("a", 10)
    flights.observe(state(1001.0))
    assert step_time.line() is None


@pytest.mark.parametrize("line", [(0.0, 0.0), (0.0, 1.0)])
def test_an_engine_that_takes_no_time_breaks_nothing(line: tuple[float, float]) -> None:
    step_time = StepTime()
    step_time.line = lambda: line  # type: ignore[method-assign]
    flights = Flights(step_time)
    flights.observe(state(0.0))
    flights.admit([Request(request_id="a", group_id="a", order=0)])
    flights.observe(state(2.0))
    tokens = flights.tokens("a")
    assert tokens is not None
    assert tokens >= 0


class RecordsOccupancy(StepTime):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def learn(self, step_s: float, occupancy: float) -> None:
        self.seen.append(occupancy)
        super().learn(step_s, occupancy)


def occupancies() -> list[float]:
    """Of two that run together, at first while the step time is unknown: a tenth is busy with the one, two with both."""
    flights = Flights(step_time := RecordsOccupancy())
    flights.observe(state(0.0))
    flights.admit([Request(request_id="early", group_id=0, order=0)])
    flights.observe(state(4.0))
    flights.admit([Request(request_id="late", group_id=0, order=0)])
    flights.observe(state(8.0))
    flights.finish("early", 400)  # 0.02 s a token: steps that were counted as seconds become 50 times as many
    flights.observe(state(8.0))
    flights.admit([])
    flights.observe(state(12.0))
    flights.finish("late", 400)
    flights.observe(state(12.0))
    return step_time.seen


def test_what_was_counted_before_the_step_time_was_known_is_counted_alike() -> None:
    assert occupancies() == pytest.approx([0.15, 0.15])


def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a flight are counted anew and its occupancy is not."""

    def rescale(self: Flights, scale: float) -> None:
        self._steps, self._area = self._steps * scale, self._area * scale
        for flight in self._flights.values():
            flight.steps *= scale

    monkeypatch.setattr(Flights, "_rescale", rescale)
    assert occupancies()[1] != pytest.approx(0.15, rel=0.01)
