"""Commands around problems and answers, of the command line in `common.cli`: what a workload holds."""

import typer
from rich.console import Console

from common.cli_options import JsonFile
from common.commands.json_file import write_json

app = typer.Typer()
workloads = typer.Typer(invoke_without_command=True, help="The workloads, and their prompts as the model sees them.")
app.add_typer(workloads, name="workloads")


@workloads.callback()
def list_workloads(context: typer.Context, json_file: JsonFile = None) -> None:
    """List the workloads; `workloads show NAME` shows one."""
    if context.invoked_subcommand is None:
        from common.commands.workloads import list_workloads as command

        write_json(json_file, command(Console()))
