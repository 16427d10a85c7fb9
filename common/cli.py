"""The command line: `rolloutpipe`, also `python -m common.cli`.

Exit codes: 0 success, 1 a failed run or check, 2 bad input (one line on stderr: field, rule, value, remedy),
130 interrupted. Commands live in `common.commands` and are imported when called.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import click
import typer
from rich.console import Console

from common.errors import InputError, RolloutPipeError

app = typer.Typer(
    name="rolloutpipe",
    help="On-policy reinforcement learning of language models, with complete-group pipelining.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value ...]", help="Settings that replace the file's.")]


@app.command()
def train(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="YAML file; with --resume the run's own is used.")
    ] = None,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, print the derived plan, start nothing.")] = False,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="RUN_DIR", help="Go on from the newest checkpoint.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Run a training."""
    from common.commands import train as command

    console = Console()
    config, overrides = _config_or_override(config, overrides)
    settings, run_dir = command.resolve(config, overrides, resume)
    if dry_run:
        from common.commands.plan import plan_rows, plan_table
        from common.prepare import prepare

        prepared = prepare(settings, lambda line: console.print(line, highlight=False))
        console.print(plan_table(settings, prepared))
        _write_json(json_file, dict(plan_rows(settings, prepared)))
        return
    result = command.train(settings, run_dir, console, resume=resume is not None)
    _write_json(json_file, result.to_json())


@app.command()
def compare(
    config: Annotated[Path, typer.Argument(metavar="CONFIG")],
    overrides: Overrides = None,
    schedules: Annotated[
        str, typer.Option("--schedules", help="Comma-separated; ratios are against the first.")
    ] = "serial,cgp,fgd",
    json_file: JsonFile = None,
) -> None:
    """Run the same prompts from the same weights under each schedule, side by side."""
    from common.commands import compare as command
    from common.config import load_config

    names = command.parse_schedules(schedules)
    _write_json(json_file, command.compare(load_config(config, overrides or []), names, Console()))


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR")],
    json_file: JsonFile = None,
) -> None:
    """Write report.html and trace.json of a run, also of one that still runs or was killed."""
    from common.commands.report import report as command

    _write_json(json_file, command(run_dir, Console()))


@app.command()
def doctor(json_file: JsonFile = None) -> None:
    """What is installed, what will run here, and what is missing."""
    from common.commands.doctor import doctor as command

    result = command(Console())
    _write_json(json_file, result)
    if not result["ok"]:
        raise typer.Exit(1)


def _config_or_override(config: Path | None, overrides: list[str] | None) -> tuple[Path | None, list[str]]:
    """With --resume the first word may be a setting already."""
    if config is not None and "=" in str(config) and not config.exists():
        return None, [str(config), *(overrides or [])]
    return config, overrides or []


def _write_json(path: Path | None, data: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main() -> NoReturn:
    """Run the command line; every expected failure is one line on stderr."""
    code = 0
    try:
        code = app(standalone_mode=False) or 0
    except (InputError, click.ClickException) as error:
        _tell(error.format_message() if isinstance(error, click.ClickException) else str(error))
        code = 2
    except RolloutPipeError as error:
        _tell(str(error))
        code = 1
    except (KeyboardInterrupt, click.Abort):
        _tell("interrupted; what was recorded is in the run directory")
        code = 130
    finally:
        _end_children()
    if code == 130:
        sys.stdout.flush()
        os._exit(code)  # exit handlers would look for the processes that were just ended, and complain
    sys.exit(code)


def _tell(message: str) -> None:
    print(f"rolloutpipe: {' '.join(message.split())}", file=sys.stderr)


def _end_children() -> None:
    """No process that this command started outlives it."""
    import psutil

    children = psutil.Process().children(recursive=True)
    for child in children:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(children, timeout=2)


if __name__ == "__main__":
    main()
