"""Scenarios small enough to reason about, simulated with all their events kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.metrics import RoundMetrics
from common.simulation.lengths import Lengths
from common.simulation.models import EngineModel, Scenario, TrainerModel, VerifierModel
from common.simulation.run import simulate
from common.timeline import Event

MAX_EVENTS = 200_000  # a scenario of these tests with more is taken to hang


@dataclass(frozen=True, slots=True)
class FixedLengths:
    """The same lengths in every round; `rows` is R x K."""

    rows: tuple[tuple[int, ...], ...]

    def draw(self, rng: np.random.Generator, num_groups: int, num_members: int) -> Lengths:
        """As `LengthModel.draw`."""
        lengths = np.array(self.rows, dtype=np.int64)
        assert lengths.shape == (num_groups, num_members)
        return lengths


@dataclass(frozen=True, slots=True)
class Lab:
    """A simulated run."""

    scenario: Scenario
    rounds: list[RoundMetrics]
    events: list[Event]

    def of(self, kind: str, index: int = 0) -> list[Event]:
        """Events of one kind in one round."""
        return [event for event in self.events if event["kind"] == kind and event.get("round") == index]

    def moments(self, kind: str, index: int = 0) -> dict[str, float]:
        """When each request (or else group) had its event of this kind."""
        return {event.get("request") or event["group"]: event["t"] for event in self.of(kind, index)}


def fixed(*rows: tuple[int, ...], **settings: Any) -> Scenario:
    """A scenario with these lengths; one second a step, K and R as the rows say, U=1, `cgp`."""
    base: dict[str, Any] = {
        "schedule": "cgp",
        "groups_per_round": len(rows),
        "responses_per_group": len(rows[0]),
        "groups_per_update": 1,
        "engine": EngineModel(capacity=len(rows) * len(rows[0]), step_s=1.0),
        "lengths": FixedLengths(rows),
    }
    return Scenario(**{**base, **settings})


def run(scenario: Scenario, listen: Callable[[Event], None] | None = None) -> Lab:
    """Simulate with the events of single requests; fails where it does not end."""
    events: list[Event] = []

    def keep(event: Event) -> None:
        events.append(event)
        assert len(events) < MAX_EVENTS, "the simulation does not end"
        if listen is not None:
            listen(event)

    rounds = simulate(scenario, has_detail=True, listen=keep).rounds
    return Lab(scenario, rounds, events)


def varied(seed: int, max_tokens: int = 60, **settings: Any) -> Scenario:
    """A random scenario: R up to 12, K up to 4, 1 to 3 replicas, verifier, trainer, prefill; `settings` fix parts of it."""
    rng = np.random.default_rng(seed)
    num_groups, num_members = int(rng.integers(1, 13)), int(rng.integers(1, 5))
    lengths = FixedLengths(tuple(map(tuple, rng.integers(1, max_tokens, (num_groups, num_members)).tolist())))
    base: dict[str, Any] = {
        "schedule": str(rng.choice(["serial", "cgp", "fgd", "fgd-strict"])),
        "groups_per_round": num_groups,
        "responses_per_group": num_members,
        "groups_per_update": int(rng.integers(1, num_groups + 1)),
        "frontier_width": int(rng.integers(1, 4)),
        "request_order": str(rng.choice(["grouped", "interleaved", "shuffled"])),
        "group_order": str(rng.choice(["arrival", "submission"])),
        "prompt_tokens": int(rng.integers(0, 20)),
        "engine": EngineModel(
            replicas=int(rng.integers(1, 4)),
            capacity=int(rng.integers(1, 7)),
            step_s=float(rng.uniform(0.5, 2)),
            step_per_request_s=float(rng.uniform(0, 0.5)),
            prefill_s_per_token=float(rng.choice([0.0, 0.03])),
        ),
        "lengths": lengths,
        "verifier": VerifierModel(seconds=float(rng.choice([0.0, 7.3])), sigma=float(rng.choice([0.0, 0.8]))),
        "trainer": TrainerModel(
            token_s=float(rng.uniform(0, 0.6)),
            group_s=float(rng.uniform(0, 9)),
            update_s=float(rng.uniform(0, 9)),
            starts_at=str(rng.choice(["first", "last"])),
        ),
        "seed": seed,
    }
    return Scenario(**{**base, **settings})
