"""The regimes of `schedule_grid.py`: a designed set, even in every factor.

For each pair of capacity and work ratio there are six regimes. The other factors are dealt out to the six by a seeded shuffle,
so each of their levels comes up equally often in each pair; of many seeds the one was taken whose other pairs are most even too.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from common.config import RequestOrder
from common.simulation.bound import rollout_bound
from common.simulation.lengths import LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel, VerifierModel
from common.simulation.run import lengths_of

STEP_S = 0.02  # of an empty engine
PREDICTOR_ERROR = 0.5  # sigma of the log of the lengths that adaptive is told
WARM_UP, MEASURED = 3, 3  # rounds
GROUPS_SIMULATED = 512  # in one round of each of a regime's seeds, about
GROUP_SHARE, UPDATE_SHARE = 0.1, 0.05  # of the training time; the rest goes by tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """How lengths spread."""

    name: str
    prompt_sigma: float
    member_sigma: float
    loop_share: float = 0.0

    def lengths(self, median: float, cap: int) -> LogNormalLengths:
        """The model."""
        sigmas = {"prompt_sigma": self.prompt_sigma, "member_sigma": self.member_sigma}
        return LogNormalLengths(median=median, cap=cap, loop_share=self.loop_share, **sigmas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Levels of all factors, and what all regimes share."""

    name: str
    capacities: tuple[int, ...]  # requests on one replica
    ratios: tuple[float, ...]  # all training over all sampling, each alone and at its best
    tails: tuple[Tail, ...]
    groups: tuple[int, ...]  # R
    verifiers: tuple[float, ...]  # median, in medians of the time of a response in a full engine
    replicas: tuple[int, ...]
    saturations: tuple[float, ...]  # step time of a full engine over that of an empty one
    updates: tuple[int, ...]  # U; 0: one update a round
    members: int  # K
    median: float  # tokens
    cap: int  # tokens
    design_seed: int
    first_seed: int  # of the scenarios


MAIN = Grid(
    name="main",
    capacities=(16, 64, 256),
    ratios=(0.15, 0.5, 1.0, 2.0),
    tails=(
        Tail(name="light", prompt_sigma=0.3, member_sigma=0.2),
        Tail(name="heavy", prompt_sigma=0.7, member_sigma=0.5),
        Tail(name="loops", prompt_sigma=0.5, member_sigma=0.3, loop_share=0.02),
    ),
    groups=(32, 128, 512),
    verifiers=(0.002, 0.3),
    replicas=(1, 4),
    saturations=(1.2, 5.0),
    updates=(2, 2, 0),
    members=8,
    median=256.0,
    cap=4096,
    design_seed=506,
    first_seed=0,
)

SECOND = Grid(
    name="second",
    capacities=(24, 96, 192),
    ratios=(0.25, 0.7, 1.4),
    tails=(
        Tail(name="light", prompt_sigma=0.2, member_sigma=0.4),
        Tail(name="heavy", prompt_sigma=0.9, member_sigma=0.4),
        Tail(name="loops", prompt_sigma=0.4, member_sigma=0.4, loop_share=0.05),
    ),
    groups=(48, 200),
    verifiers=(0.01, 0.6),
    replicas=(2, 3),
    saturations=(1.5, 3.5),
    updates=(1, 4, 0),
    members=6,
    median=400.0,
    cap=4000,
    design_seed=678,
    first_seed=100,
)

ORDERS: tuple[RequestOrder, ...] = ("grouped", "interleaved", "shuffled")
GRIDS = {"main": MAIN, "second": SECOND}


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """One point of a grid."""

    number: int  # from 1
    grid: Grid
    capacity: int
    ratio: float
    tail: Tail
    num_groups: int
    verifier: float
    replicas: int
    order: RequestOrder
    saturation: float
    update: int

    @property
    def bottleneck(self) -> str:
        """By the work ratio."""
        return "rollout" if self.ratio < 1 else "training" if self.ratio > 1 else "neither"

    @property
    def per_update(self) -> int:
        """U as a number."""
        return self.update or self.num_groups

    @property
    def slots(self) -> int:
        """Requests in flight over all replicas."""
        return self.capacity * self.replicas

    @property
    def waves(self) -> float:
        """Requests of a round over slots; at 1 and below all of them enter at once."""
        return self.num_groups * self.grid.members / self.slots

    @property
    def seeds(self) -> range:
        """More of them where a round is small: one late response then decides more, and costs less to repeat."""
        num_seeds = min(max(GROUPS_SIMULATED // self.num_groups, 2), 8)
        return range(self.grid.first_seed, self.grid.first_seed + num_seeds)

    @property
    def widths(self) -> list[int]:
        """Every width of fgd-strict that is tried: powers of two up to R, U, and what just fills the engines."""
        powers = [1 << power for power in range(self.num_groups.bit_length()) if 1 << power <= self.num_groups]
        filling = min(-(-self.slots // self.grid.members), self.num_groups)
        return sorted({*powers, self.num_groups, self.per_update, filling})

    @property
    def label(self) -> str:
        """All factors in a few characters."""
        update = f"U{self.update}" if self.update else "U=R"
        verifier = "slow" if self.verifier == max(self.grid.verifiers) else "fast"
        where = f"{self.capacity}x{self.replicas} b{self.saturation:g}"
        return f"{self.ratio:g} {where} R{self.num_groups} {update} {self.tail.name} {verifier} {self.order}"

    def scenario(self, seed: int, schedule: str, *, width: int | None = None, starts_at: str = "first") -> Scenario:
        """What to simulate, with all its warm-up and measured rounds."""
        plain = self._without_training(seed)
        trainer = replace(self._trainer(plain), starts_at=starts_at)
        return replace(plain, schedule=schedule, frontier_width=width, trainer=trainer)

    def _without_training(self, seed: int) -> Scenario:
        grid = self.grid
        full_step_s = STEP_S * self.saturation
        return Scenario(
            name=f"{grid.name}-{self.number}",
            rounds=WARM_UP + MEASURED,
            groups_per_round=self.num_groups,
            responses_per_group=grid.members,
            groups_per_update=self.per_update,
            request_order=self.order,
            engine=EngineModel(
                replicas=self.replicas,
                capacity=self.capacity,
                step_s=STEP_S,
                step_per_request_s=(full_step_s - STEP_S) / self.capacity,
            ),
            lengths=self.tail.lengths(grid.median, grid.cap),
            verifier=VerifierModel(seconds=self.verifier * grid.median * full_step_s, sigma=0.3),
            predictor_error=PREDICTOR_ERROR,
            seed=1000 * self.number + seed,
        )

    def _trainer(self, plain: Scenario) -> TrainerModel:
        """So that all training of the measured rounds takes `ratio` times all sampling at its best."""
        rounds = [lengths_of(plain, index) for index in range(WARM_UP, WARM_UP + MEASURED)]
        sampling_s = sum(rollout_bound(plain, lengths) for lengths in rounds)
        all_s = self.ratio * sampling_s
        num_groups = MEASURED * self.num_groups
        num_updates = MEASURED * -(-self.num_groups // self.per_update)
        return TrainerModel(
            token_s=all_s * (1 - GROUP_SHARE - UPDATE_SHARE) / sum(int(lengths.sum()) for lengths in rounds),
            group_s=all_s * GROUP_SHARE / num_groups,
            update_s=all_s * UPDATE_SHARE / num_updates,
        )


def design(grid: Grid) -> list[Regime]:
    """All regimes of a grid, in a fixed order."""
    draw = random.Random(grid.design_seed)
    rows: list[dict[str, Any]] = []
    for capacity in grid.capacities:
        for ratio in grid.ratios:
            columns = {name: deal(levels, draw) for name, levels in _factors(grid).items()}
            dealt = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            rows += [{"capacity": capacity, "ratio": ratio, **row} for row in dealt]
    return [Regime(number=number, grid=grid, **row) for number, row in enumerate(rows, start=1)]


def deal(levels: Iterable[Any], draw: random.Random) -> list[Any]:
    """The levels in turn, six in all, shuffled."""
    levels = list(levels)
    dealt = levels * (6 // len(levels))
    draw.shuffle(dealt)
    return dealt


def _factors(grid: Grid) -> dict[str, tuple[Any, ...]]:
    return {
        "tail": grid.tails,
        "num_groups": grid.groups,
        "verifier": grid.verifiers,
        "replicas": grid.replicas,
        "order": ORDERS,
        "saturation": grid.saturations,
        "update": grid.updates,
    }
