"""The parts of a pipeline in numbers. Frozen; every number is checked where it enters.

Times are seconds, lengths are tokens. A step of a replica decodes one token of each running request:

    step time = step_s + step_per_request_s * running requests
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from common.config import GroupOrder, RequestOrder
from common.errors import ConfigError, explain
from common.simulation.lengths import MAX_SIGMA, LengthModel, LogNormalLengths

# What a scenario may ask for: beyond these the answer takes days or the memory of the machine, and is most likely a slip.
MAX_ROUNDS = 10_000
MAX_REQUESTS = 10_000_000  # of a round
MAX_REPLICAS = 100_000
MAX_CAPACITY = 1_000_000
MAX_PROMPT_TOKENS = 10_000_000
MAX_NUMBER = 1_000_000_000  # of seconds, and of what else is measured
SCHEDULES = ("serial", "cgp", "fgd", "fgd-strict", "adaptive")


def check_number(field_: str, value: Any, rule: str, ok: bool) -> None:
    """Raises ConfigError unless `value` is a finite number and `ok`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not ok or not math.isfinite(value):
        raise ConfigError(explain(field_, rule, value, "change it"))


def check_count(field_: str, value: Any, least: int, most: int) -> None:
    """Raises ConfigError unless `value` is a whole number from `least` to `most`."""
    is_within = isinstance(value, int) and least <= value <= most
    check_number(field_, value, f"must be a whole number of {least:,} to {most:,}", is_within)


def _check_positive(prefix: str, owner: object, *names: str) -> None:
    rule = f"must be a number above 0 and at most {MAX_NUMBER:,}"
    for name in names:
        value = getattr(owner, name)
        check_number(prefix + name, value, rule, isinstance(value, int | float) and 0 < value <= MAX_NUMBER)


def _check_not_negative(prefix: str, owner: object, *names: str, most: int = MAX_NUMBER) -> None:
    for name in names:
        value = getattr(owner, name)
        rule = f"must be a number of 0 to {most:,}"
        check_number(prefix + name, value, rule, isinstance(value, int | float) and 0 <= value <= most)


def _check_choice(field_: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(explain(field_, f"must be one of {', '.join(choices)}", value, "choose one"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """N equal replicas with continuous batching."""

    replicas: int = 1
    capacity: int = 64  # requests in flight on one replica
    step_s: float = 0.02  # of a step, whatever runs
    step_per_request_s: float = 0.0  # of a step, for each running request
    prefill_s_per_token: float = 0.0  # the replica computes a prompt, and decodes nothing meanwhile
    kv_tokens: int | None = None  # tokens of key-value memory of one replica; None: no limit

    def __post_init__(self) -> None:
        check_count("engine.replicas", self.replicas, 1, MAX_REPLICAS)
        check_count("engine.capacity", self.capacity, 1, MAX_CAPACITY)
        _check_positive("engine.", self, "step_s")
        _check_not_negative("engine.", self, "step_per_request_s", "prefill_s_per_token")
        if self.kv_tokens is not None:
            _check_positive("engine.", self, "kv_tokens")

    def tokens_per_s(self, running: int) -> float:
        """Of one replica, all requests together, without prefill."""
        return running / (self.step_s + self.step_per_request_s * running)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierModel:
    """Scores each response on its own, as many at once as come."""

    seconds: float = 0.0  # median
    sigma: float = 0.0  # of the logarithm

    def __post_init__(self) -> None:
        _check_not_negative("verifier.", self, "seconds")
        _check_not_negative("verifier.", self, "sigma", most=MAX_SIGMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerModel:
    """Accumulates whole groups one after the other, and steps once an update."""

    token_s: float = 0.0  # for each response token
    group_s: float = 0.0  # for each group
    update_s: float = 0.0  # for each optimizer step
    starts_at: str = "first"  # an update begins with its `first` complete group, or with its `last` (the paper's: the U-th)

    def __post_init__(self) -> None:
        _check_not_negative("trainer.", self, "token_s", "group_s", "update_s")
        if self.starts_at not in ("first", "last"):
            raise ConfigError(explain("trainer.starts_at", "must be first or last", self.starts_at, "use first"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One pipeline, for one or more rounds."""

    name: str = "scenario"
    schedule: str = "fgd"
    rounds: int = 1
    groups_per_round: int = 32  # R
    responses_per_group: int = 8  # K
    groups_per_update: int = 2  # U
    frontier_width: int | None = None  # F_w; None: U
    request_order: RequestOrder = "grouped"
    order_spread: float = 0.0  # groups by which requests arrive out of order, at most
    group_order: GroupOrder = "arrival"
    prompt_tokens: int = 0
    engine: EngineModel = EngineModel()
    lengths: LengthModel = field(default_factory=LogNormalLengths)
    verifier: VerifierModel = VerifierModel()
    trainer: TrainerModel = TrainerModel()
    publish_s: float = 0.0
    contention: float = 1.0  # how many times as long rollout and training take while the other runs too
    predictor_error: float | None = None  # sigma of the log of predicted lengths; None: what the policy learns itself
    seed: int = 0

    def __post_init__(self) -> None:
        _check_choice("schedule", self.schedule, SCHEDULES)
        _check_choice("request_order", self.request_order, get_args(RequestOrder))
        _check_choice("group_order", self.group_order, get_args(GroupOrder))
        check_count("rounds", self.rounds, 1, MAX_ROUNDS)
        for name in ("groups_per_round", "responses_per_group", "groups_per_update"):
            check_count(name, getattr(self, name), 1, MAX_REQUESTS)
        check_count("prompt_tokens", self.prompt_tokens, 0, MAX_PROMPT_TOKENS)
        _check_not_negative("", self, "publish_s", "order_spread")
        if self.frontier_width is not None:
            check_count("frontier_width", self.frontier_width, 1, MAX_REQUESTS)
        if self.groups_per_round * self.responses_per_group > MAX_REQUESTS:
            rule = f"times responses_per_group ({self.responses_per_group}) must be at most {MAX_REQUESTS:,} requests"
            raise ConfigError(explain("groups_per_round", rule, self.groups_per_round, "lower one of them"))
        if self.groups_per_update > self.groups_per_round:
            rule = f"must be at most groups_per_round ({self.groups_per_round})"
            raise ConfigError(explain("groups_per_update", rule, self.groups_per_update, "lower it"))
        is_factor = isinstance(self.contention, int | float) and 1 <= self.contention <= MAX_NUMBER
        check_number("contention", self.contention, f"must be a number of 1 to {MAX_NUMBER:,}", is_factor)
        if self.predictor_error is not None:
            _check_not_negative("", self, "predictor_error", most=MAX_SIGMA)

    @property
    def capacity(self) -> int:
        """Requests in flight over all replicas."""
        return self.engine.replicas * self.engine.capacity

    @property
    def width(self) -> int:
        """F_w as a number."""
        return self.frontier_width or self.groups_per_update
