"""`rolloutpipe parity`: the torch and the JAX trainer on the same groups from the same weights, side by side.

Tolerances and what they apply to. Measured in float32 on a CPU: 50 updates of recorded quickstart groups, all losses.

| quantity | bound | largest measured |
| --- | --- | --- |
| gradients of the first update, relative L2 | `--grad-tolerance` | 7.3e-6; of few groups 1.7e-5, see below |
| gradients of later updates | LATER times that | 1.7e-4, see below |
| parameters after any update, relative L2 | `--param-tolerance` | 1.1e-5; 6e-7 to 1.1e-5 after 10 updates |
| losses, in mean absolute advantages | LOSS_TOLERANCE | 8e-6 |

At the first update the weights are the same and all that differs is rounding. The largest, 1.7e-5, was in a `q_norm` that
has 0.3 % of the gradient; there torch was 1.1e-5 and JAX 7e-6 from float64.
From the second update on, the weights differ too, and a gradient is relative to its own size: a nearly converged group leaves
a sum of terms that cancel, at a norm of 0.02 where the first update's is 2.7, and the rounding of the terms stays.
"""

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from rich import box
from rich.console import Console
from rich.table import Table

from common.config import Config, Loss
from common.config_errors import validate
from common.errors import ConfigError, DataError, explain
from common.parity import Comparison, Difference, both, compare, longest_sequence, set_up_jax
from common.parity_input import ParityInput

LATER = 20.0
SAME_MODEL = 0.5  # nats; bfloat16 engines are up to 0.26 off
LOSS_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """Largest differences that pass."""

    gradients: float = 3e-5  # relative L2 of a tensor, at the first update
    params: float = 5e-5  # relative L2 of a tensor, after any update

    def __post_init__(self) -> None:
        for option, value in (("--grad-tolerance", self.gradients), ("--param-tolerance", self.params)):
            if not 0 < value < math.inf:
                raise ConfigError(explain(option, "must be a finite number above 0", value, "for example 1e-5"))

    def faults(self, row: Comparison) -> list[str]:
        """What of an update is outside; a norm or loss that is not a number is, too."""
        limits = (
            ("gradients", row.gradients.rel_l2, self.gradients * (1.0 if row.update == 1 else LATER)),
            ("parameters", row.params.rel_l2, self.params),
            ("losses", row.loss_gap, LOSS_TOLERANCE),
        )
        return [f"{what} differ by {value:.1e}, above {limit:.1e}" for what, value, limit in limits if not value <= limit]


def parse_losses(text: str) -> list[str]:
    """`grpo,dapo`, or `all`. Raises ConfigError for an unknown or repeated name."""
    known = list(get_args(Loss))
    if text.strip() == "all":
        return known
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            rule = f"must be all, or some of {','.join(known)}"
            raise ConfigError(explain("--losses", rule, name, "separate them with commas"))
    if not names or len(set(names)) != len(names):
        raise ConfigError(explain("--losses", "must name each loss once", text, "for example grpo,dapo"))
    return names


def parse_updates(value: int) -> int:
    """Raises ConfigError below 1."""
    if value < 1:
        raise ConfigError(explain("--updates", "must be 1 or more", value, "for example 10"))
    return value


def parity(given: ParityInput, losses: list[str], tolerances: Tolerances, console: Console) -> dict[str, Any]:
    """Compare each variant, show it, and return what `--json` writes."""
    set_up_jax(given.config)
    rows: list[dict[str, Any]] = []
    is_ok = True
    for name, config in variants(given.config, losses):
        found = asyncio.run(_compare(given, config))
        console.print(variant_table(name, found))
        for row in found:
            faults = tolerances.faults(row)
            is_ok &= not faults
            rows.append(_row(name, row, not faults))
            for fault in faults:
                console.print(f"{name}, update {row.update}: {fault}", markup=False, highlight=False, soft_wrap=True)
    console.print(verdict_line(rows, is_ok, tolerances), markup=False, highlight=False, soft_wrap=True)
    return {
        "ok": is_ok,
        "grad_tolerance": tolerances.gradients,
        "later_grad_tolerance": tolerances.gradients * LATER,
        "param_tolerance": tolerances.params,
        "loss_tolerance": LOSS_TOLERANCE,
        "updates": rows,
    }


def variants(config: Config, losses: list[str]) -> Iterator[tuple[str, Config]]:
    """Each loss alone and, where the configuration has a KL penalty or an importance cap, with all that it has."""
    training = config.training
    extras = [f"kl {training.kl.kind}"] if training.kl is not None else []
    extras += [f"cap {training.importance_cap:g}"] if training.importance_cap is not None else []
    for loss in losses:
        yield loss, _with_training(config, loss=loss, kl=None, importance_cap=None)
        if extras:
            yield " + ".join([loss, *extras]), _with_training(config, loss=loss)


def _with_training(config: Config, **training: Any) -> Config:
    data = config.model_dump(mode="json")
    return validate(Config, {**data, "training": {**data["training"], **training}})


async def _compare(given: ParityInput, config: Config) -> list[Comparison]:
    rows: list[Comparison] = []
    with both(config, given.model_dir, longest_sequence(given.updates)) as (torch_side, jax_side):
        async for row in compare(torch_side, jax_side, given.updates):
            if not rows:
                check_model(given, row.sampler_gap)
            rows.append(row)
    return rows


def check_model(given: ParityInput, gap: float) -> None:
    """Groups of version 0 came from the model that both trainers start from, or this is another model's run."""
    version = given.updates[0].groups[0].weight_version
    if version == 0 and not gap <= SAME_MODEL:
        rule = f"must be the model that the groups were sampled from (its log-probs differ from theirs by {gap:.1f} nats)"
        raise DataError(explain("model", rule, str(given.model_dir), "give the run's own model, or leave model out"))


def variant_table(name: str, rows: list[Comparison]) -> Table:
    """Update by update."""
    table = Table(box=box.SIMPLE_HEAD, title=f"{name}: torch and JAX", title_justify="left", padding=(0, 1, 0, 0))
    for heading in ("update", "loss\ntorch", "\nJAX", "norm\ntorch", "\nJAX"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("gradients,\nlargest", "parameters,\nlargest"):
        table.add_column(heading)  # a long name goes to a second line where the terminal is narrow
    for row in rows:
        losses = (f"{loss:.5f}" for loss in row.losses)
        norms = (f"{norm:.4f}" for norm in row.grad_norms)
        table.add_row(str(row.update), *losses, *norms, _cell(row.gradients), _cell(row.params))
    return table


def _cell(found: Difference) -> str:
    return f"{found.rel_l2:.1e} {short_name(found.name)}".rstrip()


def short_name(name: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` -> `3.q_proj`: as much as tells tensors apart."""
    parts = name.removeprefix("model.").removesuffix(".weight").removeprefix("layers.").split(".")
    return ".".join(part for part in parts if part not in ("self_attn", "mlp"))


def _row(name: str, row: Comparison, is_ok: bool) -> dict[str, Any]:
    return {
        "loss": name,
        "update": row.update,
        "ok": is_ok,
        "loss_torch": row.losses[0],
        "loss_jax": row.losses[1],
        "loss_gap": row.loss_gap,
        "grad_norm_torch": row.grad_norms[0],
        "grad_norm_jax": row.grad_norms[1],
        "grad_rel_l2_max": row.gradients.rel_l2,
        "grad_worst_tensor": row.gradients.name,
        "param_rel_l2_max": row.params.rel_l2,
        "param_worst_tensor": row.params.name,
    }


def verdict_line(rows: list[dict[str, Any]], is_ok: bool, tolerances: Tolerances) -> str:
    """The largest differences of all variants beside their bounds."""
    first = max(row["grad_rel_l2_max"] for row in rows if row["update"] == 1)
    later = max((row["grad_rel_l2_max"] for row in rows if row["update"] > 1), default=0.0)
    params, losses = (max(row[key] for row in rows) for key in ("param_rel_l2_max", "loss_gap"))
    return (
        f"{'ok' if is_ok else 'DIFFERENT'}: gradients {first:.1e} at the first update (at most {tolerances.gradients:g}), "
        f"{later:.1e} later (at most {tolerances.gradients * LATER:g}); parameters {params:.1e} (at most {tolerances.params:g}); "
        f"losses {losses:.1e} mean advantages (at most {LOSS_TOLERANCE:g})"
    )
