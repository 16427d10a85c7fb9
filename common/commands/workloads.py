"""`rolloutpipe workloads`: what there is."""

from typing import Any

from rich.console import Console

from common.workloads.catalog import CATALOG


def list_workloads(console: Console) -> dict[str, Any]:
    """Every workload with its schema, source, licence and checker."""
    for workload in CATALOG:
        console.print(f"[bold]{workload.name}[/bold]  {workload.about}", highlight=False, soft_wrap=True)
        for name in ("schema", "source", "licence", "checker"):
            console.print(f"  {name:8} {getattr(workload, name)}", markup=False, highlight=False, soft_wrap=True)
    return {"workloads": [workload.to_json() for workload in CATALOG]}
