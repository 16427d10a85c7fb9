"""A budget of devices divided between rollout and training: each division is simulated with the shipped policy.

What is assumed of other numbers of devices than those measured, and nothing else:

    rollout     a replica is as fast as measured; there are as many as the devices make up (`devices_per_replica`)
    training    the rate grows with (devices / measured devices) ** scaling_exponent, in whole multiples of `devices_multiple`
    apart       neither side slows the other down
    devices     one counts as one: a further rollout device is like those that rollout was measured on, and the same for training
"""

import statistics
from dataclasses import asdict, dataclass
from typing import Any, Self

from pydantic import Field, model_validator

from common.config import GroupOrder, RequestOrder, Section
from common.errors import ConfigError, explain
from common.metrics import RoundMetrics
from common.simulation.lengths import LengthModel, LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel, VerifierModel
from common.simulation.run import simulate


class RolloutRates(Section):
    """The engines as measured: exactly one of `tokens_per_s` and `step_s`."""

    devices: int = Field(ge=1, le=1_000_000)  # measured with
    devices_per_replica: int = Field(1, ge=1)  # tensor parallel
    capacity: int = Field(64, ge=1)  # requests in flight on one replica
    tokens_per_s: float | None = Field(None, gt=0)  # of all replicas, each full; a step then takes as long with fewer running
    step_s: float | None = Field(None, gt=0)  # of a step, whatever runs
    step_per_request_s: float = Field(0.0, ge=0)  # of a step, for each running request
    prefill_s_per_token: float = Field(0.0, ge=0)

    @property
    def replicas(self) -> int:
        """Measured with."""
        return self.devices // self.devices_per_replica

    def model(self, replicas: int) -> EngineModel:
        """So many replicas like those measured."""
        step_s = self.step_s or self.capacity * self.replicas / (self.tokens_per_s or 1.0)
        return EngineModel(
            replicas=replicas,
            capacity=self.capacity,
            step_s=step_s,
            step_per_request_s=self.step_per_request_s,
            prefill_s_per_token=self.prefill_s_per_token,
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.tokens_per_s is None) == (self.step_s is None):
            given = {"tokens_per_s": self.tokens_per_s, "step_s": self.step_s}
            rule = "exactly one of tokens_per_s and step_s must be set"
            raise ConfigError(explain("rollout", rule, given, "give the rate of all full engines together"))
        if self.tokens_per_s is not None and self.step_per_request_s:
            rule = "goes with rollout.step_s: a rate says nothing of how a step grows"
            raise ConfigError(explain("rollout.step_per_request_s", rule, self.step_per_request_s, "remove it, or give step_s"))
        if self.devices % self.devices_per_replica:
            rule = f"must divide rollout.devices ({self.devices})"
            raise ConfigError(explain("rollout.devices_per_replica", rule, self.devices_per_replica, "use a divisor of it"))
        return self


class TrainingRates(Section):
    """The trainer as measured: exactly one of `tokens_per_s` and `token_s`; seconds per group and update come on top."""

    devices: int = Field(ge=1, le=1_000_000)  # measured with
    devices_multiple: int = Field(1, ge=1)  # tensor parallel: devices beyond a multiple lie idle
    tokens_per_s: float | None = Field(None, gt=0)  # response tokens
    token_s: float | None = Field(None, ge=0)
    group_s: float = Field(0.0, ge=0)
    update_s: float = Field(0.0, ge=0)
    scaling_exponent: float = Field(1.0, gt=0, le=1)  # 1: twice the devices are twice as fast

    def model(self, devices: int) -> TrainerModel:
        """The trainer on so many devices."""
        share = (self.devices / devices) ** self.scaling_exponent
        token_s = self.token_s if self.tokens_per_s is None else 1 / self.tokens_per_s
        return TrainerModel(token_s=(token_s or 0.0) * share, group_s=self.group_s * share, update_s=self.update_s * share)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.tokens_per_s is None) == (self.token_s is None):
            given = {"tokens_per_s": self.tokens_per_s, "token_s": self.token_s}
            rule = "exactly one of tokens_per_s and token_s must be set"
            raise ConfigError(explain("training", rule, given, "give the rate of all its devices together"))
        if self.token_s == self.group_s == self.update_s == 0:
            raise ConfigError(explain("training", "must take some time", 0.0, "set training.tokens_per_s"))
        return self


class LengthRates(Section):
    """As `common.simulation.lengths.LogNormalLengths`."""

    median: float = Field(gt=0)
    prompt_sigma: float = Field(0.5, ge=0)
    member_sigma: float = Field(0.3, ge=0)
    cap: int = Field(4096, ge=1)
    loop_share: float = Field(0.0, ge=0, le=1)


class SplitConfig(Section):
    """What `plan` needs to know, from a file or from a run; `key=value` overrides both."""

    name: str = "plan"
    devices: int = Field(2, le=10_000)  # the budget
    schedule: str = "fgd"
    rounds: int = Field(4, ge=1, le=1000)  # simulated for each split; figures are their medians
    groups_per_round: int = Field(32, ge=1, le=1_000_000)
    responses_per_group: int = Field(8, ge=1, le=100_000)
    groups_per_update: int = Field(2, ge=1)
    frontier_width: int | None = Field(None, ge=1)
    request_order: RequestOrder = "grouped"
    group_order: GroupOrder = "arrival"
    prompt_tokens: int = Field(0, ge=0)
    verifier_s: float = Field(0.0, ge=0)
    seed: int = 0
    rollout: RolloutRates
    training: TrainingRates
    lengths: LengthRates | None = None  # None: those recorded in the run

    @model_validator(mode="after")
    def _check(self) -> Self:
        least = self.rollout.devices_per_replica + self.training.devices_multiple
        if self.devices < least:
            rule = f"must be at least {least}: rollout and training need devices of their own"
            raise ConfigError(explain("devices", rule, self.devices, "raise it (--devices)"))
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One division of the budget, and the medians of its simulated rounds."""

    rollout_devices: int
    training_devices: int
    idle_devices: int  # left over by devices_per_replica and devices_multiple
    r2t_end_s: float
    first_dispatch_s: float
    waiting_ratio: float
    rollout_s: float
    trainer_compute_s: float

    @property
    def bottleneck(self) -> str:
        """The side that takes longer, were it alone."""
        return "rollout" if self.rollout_s > self.trainer_compute_s else "training"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "bottleneck": self.bottleneck}


def splits(config: SplitConfig, recorded: LengthModel | None = None) -> list[Split]:
    """Every division with at least one replica and one trainer. Raises ConfigError where no lengths are given."""
    lengths = recorded if config.lengths is None else LogNormalLengths(**config.lengths.model_dump())
    if lengths is None:
        raise ConfigError(explain("lengths", "must be set", None, "give lengths.median, in tokens"))
    per_replica, multiple = config.rollout.devices_per_replica, config.training.devices_multiple
    most = (config.devices - multiple) // per_replica
    return [_split(config, lengths, replicas) for replicas in range(1, most + 1)]


def best(found: list[Split]) -> Split:
    """The shortest round; of equal ones the one that keeps fewer devices busy for rollout."""
    return min(found, key=lambda split: (split.r2t_end_s, split.rollout_devices))


def _split(config: SplitConfig, lengths: LengthModel, replicas: int) -> Split:
    rollout_devices = replicas * config.rollout.devices_per_replica
    left = config.devices - rollout_devices
    training_devices = left - left % config.training.devices_multiple
    rounds = simulate(_scenario(config, lengths, config.rollout.model(replicas), config.training.model(training_devices))).rounds
    return Split(
        rollout_devices=rollout_devices,
        training_devices=training_devices,
        idle_devices=left - training_devices,
        r2t_end_s=_median(rounds, "r2t_end_s"),
        first_dispatch_s=_median(rounds, "first_dispatch_s"),
        waiting_ratio=_median(rounds, "waiting_ratio"),
        rollout_s=_median(rounds, "rollout_s"),
        trainer_compute_s=_median(rounds, "trainer_compute_s"),
    )


def _scenario(config: SplitConfig, lengths: LengthModel, engine: EngineModel, trainer: TrainerModel) -> Scenario:
    same = ("name", "schedule", "rounds", "groups_per_round", "responses_per_group", "groups_per_update", "frontier_width")
    settings = {name: getattr(config, name) for name in (*same, "request_order", "group_order", "prompt_tokens", "seed")}
    verifier = VerifierModel(seconds=config.verifier_s)
    return Scenario(**settings, engine=engine, lengths=lengths, verifier=verifier, trainer=trainer)


def _median(rounds: list[RoundMetrics], figure: str) -> float:
    return statistics.median(getattr(one, figure) for one in rounds)
