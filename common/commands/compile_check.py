"""`rolloutpipe compile-check`: would the train step fit on this TPU, answered by the TPU's compiler on a machine without one."""

from importlib.util import find_spec
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from common.config import Loss
from common.errors import ConfigError, explain

_NEEDS = {"jax": "jax", "flax": "jax", "optax": "jax", "libtpu": "tpu"}  # package -> the extra that brings it


def make_setup(
    *, topology: str, model: str, mesh: str | None, seq_len: int, rows: int, attention: str, dtype: str, remat: bool, loss: str
) -> Any:
    """The `rolloutpipe_jax.memory.Setup` of the words typed. Raises ConfigError and DataError."""
    from rolloutpipe_jax.memory import Setup
    from rolloutpipe_jax.shape import named_shape
    from rolloutpipe_jax.topology import parse_mesh, parse_topology

    where = parse_topology(topology)
    fsdp, tp = parse_mesh(mesh, where.num_chips)
    return Setup(
        topology=where,
        fsdp=fsdp,
        tp=tp,
        model=model,
        shape=named_shape(model),
        seq_len=_count("--seq-len", seq_len),
        rows=_count("--rows", rows),
        attention=_choice("--attention", attention, ("splash", "xla")),  # type: ignore[arg-type]
        dtype=_choice("--dtype", dtype, ("bfloat16", "float32")),  # type: ignore[arg-type]
        remat=remat,
        loss=_choice("--loss", loss, get_args(Loss)),  # type: ignore[arg-type]
    )


def check(setup: Any, console: Console) -> dict[str, Any]:
    """Compile and print. Raises ConfigError where a package is missing, RunError where the compiler fails."""
    check_packages()
    from rolloutpipe_jax.compile_check import footprint
    from rolloutpipe_jax.memory import GIB, advise

    with console.status(f"compiling the train step of {setup.model} for {setup.topology.name}; a minute or two"):
        found = footprint(setup)
    fits, peak_gib = found.fits(setup), found.peak / GIB
    result = {
        "topology": setup.topology.name,
        "mesh": {"fsdp": setup.fsdp, "tp": setup.tp},
        "model": setup.model,
        "params": setup.shape.num_params,
        "seq_len": setup.seq_len,
        "rows": setup.rows,
        "attention": setup.attention,
        "dtype": setup.dtype,
        "remat": setup.remat,
        "loss": setup.loss,
        "gib_per_chip": peak_gib,
        "hbm_gib": setup.topology.hbm_gib,
        "fits": fits,
        "compile_s": found.accumulate.compile_s + found.step.compile_s,
        "parts": {name: size / GIB for name, size in found.parts().items()},
        "gib_while_accumulating": found.while_accumulating / GIB,
        "gib_while_stepping": found.while_stepping / GIB,
        "tokens": setup.tokens,
        "flops": setup.flops,
        "advice": [] if fits else [each.to_json() for each in advise(setup, peak_gib)],
    }
    console.print(_table(result))
    _print_verdict(result, console)
    return result


def check_packages() -> None:
    """Raises ConfigError for the first that is missing, and names the extra that brings it."""
    for package, extra in _NEEDS.items():
        if find_spec(package) is None:
            remedy = f"pip install 'rolloutpipe[{extra}]'"
            raise ConfigError(explain("compile-check", "needs a package that is not installed", package, remedy))


def _table(result: dict[str, Any]) -> Table:
    mesh = result["mesh"]
    title = f"{result['model']} on {result['topology']}, mesh fsdp={mesh['fsdp']},tp={mesh['tp']}: one chip"
    table = Table(title=title, title_justify="left")
    table.add_column("part")
    for when in ("GiB while accumulating", "while stepping"):
        table.add_column(when, justify="right")
    both = ("parameters", "gradient_sums", "moments", "programs")
    for name, size in result["parts"].items():
        in_step = name in both or name == "step_temporaries"
        cells = (size if name != "step_temporaries" else None, size if in_step else None)
        table.add_row(_WORDS[name], *("" if cell is None else f"{cell:.3f}" for cell in cells))
    table.add_section()
    table.add_row("sum", f"{result['gib_while_accumulating']:.3f}", f"{result['gib_while_stepping']:.3f}")
    table.add_row("usable", *[f"{result['hbm_gib']:.2f}"] * 2)
    return table


_WORDS = {
    "parameters": "parameters (float32)",
    "gradient_sums": "gradient sums (float32)",
    "moments": "optimizer moments (float32)",
    "programs": "programs",
    "batch": "batch",
    "accumulate_temporaries": "activations, gradients and other temporaries",
    "step_temporaries": "temporaries of the optimizer step",
}


def _print_verdict(result: dict[str, Any], console: Console) -> None:
    remat = "remat" if result["remat"] else "no remat"
    lines = [
        f"computed in {result['dtype']}, {result['attention']} attention, {remat}, loss {result['loss']}; "
        f"compiled in {result['compile_s']:.0f} s",
        f"{result['tokens']:,} tokens a micro-batch ({result['mesh']['fsdp']} x {result['rows']} rows of {result['seq_len']}); "
        f"{result['flops']:.3e} FLOPs for it by the rule 6 x {result['params']:,} parameters x tokens, which leaves out "
        "attention scores and what remat computes again (the compiler's own count sees a scanned layer once and cannot be used)",
        f"{'fits' if result['fits'] else 'does not fit'}: {result['gib_per_chip']:.2f} GiB of {result['hbm_gib']:.2f} GiB a chip",
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False)
    if not result["fits"]:
        console.print("what to change (estimates from this result; check them with the command):", markup=False, highlight=False)
    for each in result["advice"]:
        state = "fits" if each["fits"] else "not enough alone"
        console.print(
            f"- {each['what']}: about {each['estimated_gib']:.1f} of {each['hbm_gib']:.2f} GiB, {state}", highlight=False
        )
        console.print(f"  rolloutpipe {each['command']}", markup=False, highlight=False, soft_wrap=True)
    if not result["fits"] and not result["advice"]:
        console.print(
            "- nothing that this command can change is enough: use chips with more memory", markup=False, highlight=False
        )


def _count(field: str, value: int) -> int:
    if value < 1:
        raise ConfigError(explain(field, "must be 1 or more", value, "use a whole number, such as 1"))
    return value


def _choice(field: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ConfigError(explain(field, f"must be one of {', '.join(choices)}", value, f"use {choices[0]}"))
    return value
