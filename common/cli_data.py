"""Commands around problems and answers, of the command line in `common.cli`: what a workload holds, verdicts on a file."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from common.cli_options import JsonFile, Overrides
from common.commands.json_file import write_json

app = typer.Typer()
workloads = typer.Typer(invoke_without_command=True, help="The workloads, and their prompts as the model sees them.")
app.add_typer(workloads, name="workloads")


@workloads.callback()
def list_workloads(
    context: typer.Context,
    generated: Annotated[bool, typer.Option("--generated", help="Also list the data sets of reasoning-gym.")] = False,
    json_file: JsonFile = None,
) -> None:
    """List the workloads; `workloads show NAME` shows one."""
    if context.invoked_subcommand is None:
        from common.commands.workloads import list_workloads as command

        write_json(json_file, command(Console(), has_generated=generated))


@workloads.command()
def show(
    source: Annotated[str, typer.Argument(metavar="NAME|CONFIG", help="Such as gsm8k, or a run's YAML file.")],
    overrides: Overrides = None,
    rows: Annotated[int, typer.Option("--rows", metavar="N", help="Problems to show.")] = 3,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="DIR", help="Whose tokenizer and chat template to use.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Show problems as the model sees them, and what was left out: workloads show gsm8k path=test.jsonl --model DIR."""
    from common.commands.workloads import show_workload

    write_json(json_file, show_workload(source, overrides or [], rows, model, Console()))


@app.command()
def score(
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON lines of workload, gold, response; - for stdin.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="key=value", help="Such as rewards.weights.format=0.2")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, help="By default one a core.", show_default=False)
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="S", help="Seconds of one verdict.", show_default=False)
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Score responses: the same lines come out with reward, status, extracted answer and reason. Settings: rewards.KEY=VALUE."""
    from common.commands.score import score as command
    from common.commands.score import settings

    result, is_clean = command(file, settings(overrides or [], workers, timeout))
    write_json(json_file, result)
    if not is_clean:
        raise typer.Exit(1)


@app.command(name="eval")
def evaluate(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="YAML file of a training; its section `eval` says what is asked.")
    ],
    overrides: Overrides = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="PATH", help="Model, run, checkpoint or Orbax directory; else CONFIG's model."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="New directory for samples and eval.json.", show_default=False)
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Ask a model problems and score its answers: accuracy with its interval, pass@k, lengths, by category."""
    from common.commands.eval import evaluate as command
    from common.config import load_config

    write_json(json_file, command(load_config(config, overrides or []), checkpoint, out, Console()))
