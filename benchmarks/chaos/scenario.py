"""What a seed stands for: a configuration, and where it is struck. The same seed is always the same scenario."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DRIVER_POINTS = ("before-line", "half-line", "after-line", "accumulate", "finish", "export", "publish", "save", "generate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """kill -9 of one process of kind `target`, the `nth` time that any process reaches `point`, `delay_s` after it.

    `edit`: what is done to the oldest journal that a resume will read, after a driver's death.
    """

    number: int
    point: str
    nth: int
    target: str  # engine, rank, worker, nursery, driver, rollout-node, trainer-node
    delay_s: float = 0.0
    edit: str = ""  # tear (half of its last line is gone), change (a digit in the middle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Of one run."""

    seed: int
    settings: dict[str, Any]
    strikes: tuple[Strike, ...] = ()
    has_nodes: bool = False  # a Ray cluster with rollout and trainer on different nodes
    plant: str = ""
    is_real: bool = False  # vLLM and FSDP2 on the quickstart's model; settings are changes to configs/quickstart.yaml

    def __str__(self) -> str:
        s = self.settings
        sizes = f"{s['rounds']} rounds, R={s['groups_per_round']} K={s['responses_per_group']} U={s['groups_per_update']}"
        engines = f"{s['rollout']['replicas']}x{s['rollout']['capacity']}"
        strikes = " ".join(f"{x.target}@{x.point}:{x.nth}{'+' + x.edit if x.edit else ''}" for x in self.strikes)
        where = ", nodes" if self.has_nodes else ""
        return f"{s['schedule']} {s['group_order']} {s['filter']}, {sizes}, engines {engines}{where}; {strikes or 'no strike'}"


def make_scenario(seed: int, *, nodes: bool | None = None, kinds: Sequence[str] = ()) -> Scenario:
    """Every seventh seed has nodes, unless told. `kinds`: what is struck, in this order; else by the seed."""
    rng = random.Random(seed)
    settings = _settings(rng, seed)
    has_nodes = seed % 7 == 6 if nodes is None else nodes
    chosen = list(kinds) or _kinds(rng, has_nodes)
    if has_nodes:
        settings["cluster"] = {"rollout": {"resource": "rollout"}, "trainer": {"resource": "trainer"}}
    strikes = tuple(_strike(rng, number, kind, settings) for number, kind in enumerate(chosen))
    return Scenario(seed=seed, settings=settings, strikes=strikes, has_nodes=has_nodes)


def make_real_scenario(seed: int) -> Scenario:
    """The quickstart, shortened; each of its processes is struck, and the driver last."""
    rng = random.Random(f"real {seed}")
    settings: dict[str, Any] = {
        "name": f"chaos-real-{seed}",
        "seed": seed,
        "rounds": 4,
        "schedule": ["fgd", "adaptive", "cgp", "serial"][seed % 4],
        "groups_per_round": 16,
        "responses_per_group": 8,
        "groups_per_update": 4,
        "group_order": ["submission", "arrival"][seed % 2],
        "filter": "keep",
        "rollout": {"replicas": 1, "capacity": 32},
        "checkpoint": {"every": 1},
        "supervision": {"pause_s": 0.1},
        "limits": {"max_logprob_gap": 1e-4, "update_timeout_s": 120, "publish_timeout_s": 120},
    }
    points = {"event-response": 4 * 16 * 8, "event-group_complete": 4 * 16, "event-update": 4 * 4, "event-publish": 4 * 4}
    targets = ["vllm-actor", "vllm-core", "fsdp-rank", "driver"]
    strikes = []
    for number, target in enumerate(targets):
        point = rng.choice(list(points))
        nth = max(1, int(points[point] * rng.uniform(0.25 * number, 0.25 * number + 0.2)))
        strikes.append(Strike(number=number, point=point, nth=nth, target=target, delay_s=round(rng.uniform(0.001, 0.3), 3)))
    return Scenario(seed=seed, settings=settings, strikes=tuple(strikes), is_real=True)


def _kinds(rng: random.Random, has_nodes: bool) -> list[str]:
    kinds = ["engine", "rank", "driver", "worker"]
    chosen = [rng.choice(kinds) for _ in range(rng.randint(3, 5))]
    if has_nodes:
        chosen[0], chosen[-1] = "rollout-node", rng.choice(["rollout-node", "trainer-node", "driver"])
    while chosen.count("driver") > 2:  # each costs a start
        chosen[chosen.index("driver")] = "engine"
    return chosen


def _settings(rng: random.Random, seed: int) -> dict[str, Any]:
    groups = rng.randint(5, 9)
    order = rng.choice(["arrival", "submission"])
    return {
        "name": f"chaos-{seed}",
        "seed": seed,
        "rounds": rng.randint(4, 6),
        "schedule": rng.choice(["serial", "cgp", "fgd", "adaptive"]),
        "groups_per_round": groups,
        "responses_per_group": rng.randint(2, 5),
        "groups_per_update": rng.choice([1, 2, 3, "round"]),
        "request_order": rng.choice(["grouped", "interleaved", "shuffled"]),
        "group_order": order,
        # Which problem refills a group hangs on the order of arrival, so it has no place in a run that is to be repeated.
        "filter": rng.choice(["keep", "drop", "refill"] if order == "arrival" else ["keep", "drop"]),
        "rollout": {"replicas": rng.randint(1, 2), "capacity": rng.randint(4, 8)},
        "training": {"ranks": 2, "micro_batch_tokens": 200},
        "sampling": {"max_tokens": 40},
        "rewards": {"function": "chaos.reward:score", "workers": 2},
        "checkpoint": {"every": rng.choice([1, 2, None])},
        "limits": {"group_timeout_s": 60, "update_timeout_s": 20, "publish_timeout_s": 20, "start_timeout_s": 60},
        "supervision": {"max_restarts": 10, "pause_s": 0.1, "silent_s": 10, "no_engine_s": 60},
    }


def _strike(rng: random.Random, number: int, target: str, settings: dict[str, Any]) -> Strike:
    points = {
        "engine": ("generate", "publish", "accumulate", "export", "before-line"),
        "rank": ("accumulate", "finish", "export", "save", "generate", "publish"),
        "worker": ("generate", "before-line"),
        "driver": DRIVER_POINTS,
    }.get(target, ("generate", "accumulate", "before-line"))
    point = rng.choice(points)
    if point == "save" and settings["checkpoint"]["every"] is None:
        point = "finish"
    nth = rng.randint(1, max(1, int(0.8 * _total(point, settings))))
    delay_s = rng.choice([0.0, rng.uniform(0.001, 0.4)]) if point != "half-line" else 0.0
    if target in ("worker", "rollout-node", "trainer-node"):
        delay_s = max(delay_s, 0.001)  # by the harness
    if target == "worker" and rng.random() < 0.3:
        target = "nursery"
    edit = rng.choice(["", "", "tear", "change"]) if target == "driver" else ""
    return Strike(number=number, point=point, nth=nth, target=target, delay_s=round(delay_s, 3), edit=edit)


def _total(point: str, settings: dict[str, Any]) -> int:
    """How often a point is reached in an undisturbed run, roughly."""
    rounds, groups = settings["rounds"], settings["groups_per_round"]
    updates = groups if settings["groups_per_update"] == 1 else max(1, groups // 3)
    return {
        "generate": rounds * groups * settings["responses_per_group"],
        "accumulate": 2 * rounds * max(1, groups // 2),
        "finish": 2 * rounds * max(1, updates // 2),
        "export": 2 * (rounds + 1),
        "publish": rounds * settings["rollout"]["replicas"],
        "save": 2 * max(1, rounds // (settings["checkpoint"]["every"] or rounds)),
    }.get(point, rounds * groups)
