"""The paper's 12 settings as scenarios: its trainer, and an engine and lengths fitted on LSAT-AR at R = 32 and 96 alone.

Trainer: compute from the paper's table. An update begins with its U-th group, as the paper's batch selector does.
Engine and lengths: three fitted numbers (`Model`; `paper_fit` fits them), and these assumptions, which no figure settles:

    CAP            4096 tokens. The unit: twice the tokens at half the step time is the same model.
    sigmas         0.5 between prompts and 0.3 between members, before the cap cuts them.
    step_share     half of a full engine's step is there whatever runs (weights, launches, all-reduces), half grows with the
                   requests (keys and values). Qwen3-1.7B in bfloat16 has 112 KiB of them a token; at 2,000 tokens of
                   context, on two cards of 1,555 GB/s, reading them takes 0.07 ms a request; the fit comes to 0.08 ms.

Lengths of another workload follow from its trainer compute per group relative to LSAT-AR's, tokens in proportion to compute.
ORDER_SPREAD is fitted too, on the paper's only total of `cgp`: see `docs/paper.md`.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from common.config import RequestOrder
from common.errors import ConfigError, explain
from common.simulation.lengths import LogNormalLengths
from common.simulation.models import MAX_NUMBER, MAX_ROUNDS, EngineModel, Scenario, TrainerModel, check_count, check_number
from common.simulation.paper_figures import (
    FRONTIER_WIDTH,
    GROUPS_PER_UPDATE,
    RESPONSES_PER_GROUP,
    compute_per_group_s,
    compute_s,
)

CAP = 4096
_EXPECTED_OVER = 20_000  # groups


@dataclass(frozen=True, slots=True)
class Model:
    """Engine and lengths of LSAT-AR. The first three are fitted on its totals of serial and fgd at R = 32 and R = 96."""

    capacity: int  # requests in flight
    group_s: float  # engine time of one group's K responses, while the engine is full
    cap_ratio: float  # max_tokens / the median length without a cap
    step_share: float = 0.5  # of the step of a full engine, what grows with the requests
    prompt_sigma: float = 0.5
    member_sigma: float = 0.3

    def lengths(self) -> LogNormalLengths:
        """Of LSAT-AR."""
        sigmas = {"prompt_sigma": self.prompt_sigma, "member_sigma": self.member_sigma}
        return LogNormalLengths(median=CAP / self.cap_ratio, cap=CAP, **sigmas)

    def engine(self) -> EngineModel:
        """Of all workloads."""
        full_step_s = self.group_s / RESPONSES_PER_GROUP * self.capacity / expected_length(self.lengths())
        return EngineModel(
            capacity=self.capacity,
            step_s=full_step_s * (1 - self.step_share),
            step_per_request_s=full_step_s * self.step_share / self.capacity,
        )


FITTED = Model(capacity=87, group_s=5.2, cap_ratio=0.35)
ORDER_SPREAD = 16.0  # groups


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSettings:
    """What a person can change: `simulate paper rounds=4 seed=1`."""

    rounds: int = 16  # the paper has 4; more rounds leave less of our own noise
    seed: int = 0
    order_spread: float = ORDER_SPREAD
    request_order: RequestOrder = "grouped"

    @classmethod
    def parse(cls, overrides: list[str]) -> "PaperSettings":
        """From `key=value`; raises ConfigError for an unknown key or a value that does not fit."""
        values: dict[str, object] = {}
        for text in overrides:
            key, _, value = text.partition("=")
            if key not in cls.__slots__ or not value:
                raise ConfigError(
                    explain(text, f"must be KEY=VALUE with KEY one of {', '.join(cls.__slots__)}", key, "change it")
                )
            values[key] = value if key == "request_order" else _number(key, value)
        return cls(**values)  # type: ignore[arg-type]  # checked below

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds, 1, MAX_ROUNDS)
        check_number("seed", self.seed, "must be a whole number of 0 or more", isinstance(self.seed, int) and self.seed >= 0)
        is_spread = isinstance(self.order_spread, int | float) and 0 <= self.order_spread <= MAX_NUMBER
        check_number("order_spread", self.order_spread, f"must be a number of 0 to {MAX_NUMBER:,}", is_spread)
        if self.request_order not in ("grouped", "interleaved", "shuffled"):
            rule = "must be grouped, interleaved or shuffled"
            raise ConfigError(explain("request_order", rule, self.request_order, "use grouped"))


def _number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise ConfigError(explain(key, "must be a number", value, "change it")) from None
    return int(number) if number.is_integer() else number


@lru_cache(maxsize=256)
def expected_length(lengths: LogNormalLengths) -> float:
    """Mean tokens of a response."""
    return float(lengths.draw(np.random.default_rng(0), _EXPECTED_OVER, RESPONSES_PER_GROUP).mean())


def paper_scenario(
    workload: str,
    groups_per_round: int,
    schedule: str,
    settings: PaperSettings | None = None,
    model: Model = FITTED,
) -> Scenario:
    """One of the paper's settings under one schedule."""
    settings = settings or PaperSettings()
    factor = compute_per_group_s(workload) / compute_per_group_s("lsat_ar")
    base = model.lengths()
    lengths = replace(base, median=base.median * factor, cap=round(base.cap * factor))
    tokens = groups_per_round * RESPONSES_PER_GROUP * expected_length(lengths)
    return Scenario(
        name=f"{workload}-{groups_per_round}",
        schedule=schedule,
        rounds=settings.rounds,
        groups_per_round=groups_per_round,
        responses_per_group=RESPONSES_PER_GROUP,
        groups_per_update=GROUPS_PER_UPDATE,
        frontier_width=FRONTIER_WIDTH,
        request_order=settings.request_order,
        order_spread=settings.order_spread if settings.request_order == "grouped" else 0.0,
        engine=model.engine(),
        lengths=lengths,
        trainer=TrainerModel(token_s=compute_s(workload, groups_per_round) / tokens, starts_at="last"),
        seed=settings.seed,
    )
