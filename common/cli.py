"""The command line: `rolloutpipe`, also `python -m common.cli`.

Exit codes: 0 success, 1 a failed run or check, 2 bad input (one line on stderr: field, rule, value, remedy),
130 interrupted. Commands live in `common.commands` and are imported when called.
"""

import faulthandler
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

from common.errors import InputError, RolloutPipeError

try:
    import typer
    from rich.console import Console

    from common.cli_data import app as data_app
    from common.cli_options import JsonFile, Overrides
    from common.commands.json_file import write_json
except ModuleNotFoundError as error:
    sys.exit(f"rolloutpipe: the command line needs the package {error.name}; install rolloutpipe[run]")

_RECORDING = ("train", "compare", "eval")  # commands whose run directory is there while they run

_KEPT = {"score": "what was scored is on stdout"}

# Typer has brought its own click along since 0.20, so the classes are reached through what it exports.
_UsageError: type[Any] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="rolloutpipe",
    help="On-policy reinforcement learning of language models, with complete-group pipelining.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
    """Run a training: engines sample, a verifier scores, ranks train each group as it completes."""
    from common.commands import train as command

    console = Console()
    config, overrides = _config_or_override(config, overrides)
    settings, run_dir = command.resolve(config, overrides, resume)
    if dry_run:
        from common.commands.dry_run import dry_run as show

        write_json(json_file, show(settings, run_dir.path, console, lambda line: _say(console, line)))
        return
    if resume is not None and (done := command.finished_result(settings, run_dir)) is not None:
        console.print(f"nothing to do: all {settings.rounds} rounds are done; more: rounds=N", highlight=False)
        write_json(json_file, done)
        return
    result = command.train(settings, run_dir, console, resume=resume is not None)
    write_json(json_file, result.to_json())


@app.command()
def compare(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file.")],
    overrides: Overrides = None,
    schedules: Annotated[
        str, typer.Option("--schedules", help="Comma-separated; ratios are against the first.")
    ] = "serial,cgp,fgd,adaptive",
    json_file: JsonFile = None,
) -> None:
    """Run the same prompts from the same weights under each schedule, side by side."""
    from common.commands import compare as command
    from common.commands.schedules import parse_schedules
    from common.config import load_config

    names = parse_schedules(schedules)
    write_json(json_file, command.compare(load_config(config, overrides or []), names, Console()))


@app.command()
def simulate(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="`paper`, a scenario file, or a directory of compare.")],
    overrides: Overrides = None,
    schedules: Annotated[str | None, typer.Option("--schedules", help="Comma-separated; by default all.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Timelines, for `report`.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Run the shipped policies and queue against modelled engines and trainer."""
    from common.commands.simulate import simulate_source

    write_json(json_file, simulate_source(source, overrides or [], schedules, out, Console()))


@app.command()
def parity(
    source: Annotated[Path, typer.Argument(metavar="CONFIG|RUN_DIR", help="Sample groups for it, or take its recorded ones.")],
    overrides: Overrides = None,
    updates: Annotated[int, typer.Option("--updates", metavar="N", help="At most so many optimizer steps.")] = 10,
    losses: Annotated[str, typer.Option("--losses", help="`all`, or comma-separated.")] = "all",
    grad_tolerance: Annotated[float, typer.Option(help="Of gradients at the first update; later 20 times as much.")] = 3e-5,
    param_tolerance: Annotated[float, typer.Option(help="Of parameters after any update.")] = 5e-5,
    json_file: JsonFile = None,
) -> None:
    """Train the torch and the JAX trainer on the same groups from the same weights, and compare each update."""
    from common.commands import parity as command
    from common.parity_input import parity_input

    console = Console()
    names, num_updates = command.parse_losses(losses), command.parse_updates(updates)
    tolerances = command.Tolerances(gradients=grad_tolerance, params=param_tolerance)
    given = parity_input(
        source, overrides or [], num_updates, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
    )
    result = command.parity(given, names, tolerances, console)
    write_json(json_file, result)
    if not result["ok"]:
        raise typer.Exit(1)


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Of train, or of compare.")],
    json_file: JsonFile = None,
) -> None:
    """Write report.html and trace.json of a run, also of one that still runs or was killed."""
    from common.commands.report import report as command

    write_json(json_file, command(run_dir, Console()))


@app.command()
def plan(
    source: Annotated[Path, typer.Argument(metavar="RUN_DIR|CONFIG", help="Rates of a run, or a file like configs/plan.yaml.")],
    overrides: Overrides = None,
    devices: Annotated[int | None, typer.Option("--devices", metavar="N", help="To divide.", show_default=False)] = None,
    json_file: JsonFile = None,
) -> None:
    """How many devices to give to rollout and how many to training, for the shortest round."""
    from common.commands.plan import plan as command

    write_json(json_file, command(source, overrides or [], devices, Console()))


@app.command(name="compile-check")
def compile_check(
    topology: Annotated[str, typer.Option("--topology", metavar="SLICE", help="Such as v5e:2x4, v6e:2x4 or v5p:2x2x1.")],
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Such as qwen3-1.7b, or a directory with config.json.")],
    seq_len: Annotated[int, typer.Option("--seq-len", help="Tokens of a packed row.")] = 4096,
    mesh: Annotated[
        str | None, typer.Option("--mesh", metavar="fsdp=N,tp=M", help="By default all chips on fsdp.", show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option("--rows", help="Rows of a micro-batch on each place of fsdp.")] = 1,
    attention: Annotated[str, typer.Option("--attention", help="splash or xla.")] = "splash",
    dtype: Annotated[str, typer.Option("--dtype", help="Of the computation: bfloat16 or float32.")] = "bfloat16",
    loss: Annotated[str, typer.Option("--loss", help="As training.loss.")] = "grpo",
    no_remat: Annotated[
        bool, typer.Option("--no-remat", help="Keep the products with weights of all layers, not only what lies between layers.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Compile the JAX train step for a TPU that is not there: memory a chip, and whether it fits."""
    from common.commands import compile_check as command

    setup = command.make_setup(
        topology=topology,
        model=model,
        mesh=mesh,
        seq_len=seq_len,
        rows=rows,
        attention=attention,
        dtype=dtype,
        remat=not no_remat,
        loss=loss,
    )
    result = command.check(setup, Console())
    write_json(json_file, result)
    if not result["fits"]:
        raise typer.Exit(1)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Hugging Face or Orbax directory, or a checkpoint of a run.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="New directory, of the other kind.")],
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32 or bfloat16; else as stored.")] = None,
    like: Annotated[
        Path | None, typer.Option("--like", metavar="HF_DIR", help="Whose config and tokenizer go with a checkpoint.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Convert weights between a Hugging Face directory and an Orbax directory, in the direction that SOURCE asks for."""
    from common.commands.convert import convert as command

    write_json(json_file, command(source, target, Console(), dtype=dtype, like=like))


@app.command()
def doctor(json_file: JsonFile = None) -> None:
    """What is installed, what will run here, and what is missing."""
    from common.commands.doctor import doctor as command

    result = command(Console())
    write_json(json_file, result)
    if not result["ok"]:
        raise typer.Exit(1)


app.add_typer(data_app)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _config_or_override(config: Path | None, overrides: list[str] | None) -> tuple[Path | None, list[str]]:
    """With --resume the first word may be a setting already."""
    if config is not None and "=" in str(config) and not config.exists():
        return None, [str(config), *(overrides or [])]
    return config, overrides or []


def main() -> NoReturn:
    """Run the command line, and leave no process behind."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as after `&` in a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # it ends a run as Ctrl-C does
    with suppress(RuntimeError, ValueError):  # where stderr is no file
        faulthandler.register(signal.SIGUSR1, all_threads=False)  # ends nothing; `common.stacks` says why not all threads
    try:
        code = run(sys.argv[1:])
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut this short
        _end_children()
    if code == 130:
        with suppress(OSError, AttributeError):  # whoever read it may be gone already, or it was closed by the shell
            sys.stdout.flush()
        os._exit(code)  # exit handlers would look for the processes that were just ended, and complain
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code; every expected failure is one line on stderr."""
    # Libraries must not write across the live display.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        code = int(app(arguments or ["--help"], standalone_mode=False) or 0)
        return _interrupted(arguments) if code == 130 else code  # Typer's answer to Ctrl-C; before 0.20 it raised Abort
    except _UsageError as error:
        return _fail(2, error.format_message())
    except InputError as error:
        return _fail(2, str(error))
    except (RolloutPipeError, OSError) as error:
        return _fail(1, str(error))
    except ModuleNotFoundError as error:
        return _fail(2, f"the package {error.name} is needed for this; `rolloutpipe doctor` says what to install")
    except ImportError as error:
        return _fail(2, f"a package that is needed for this is installed and cannot be imported ({error}); install it again")
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(arguments)


def _interrupted(arguments: list[str]) -> int:
    command = arguments[0] if arguments else ""
    kept = "what was recorded is in the run directory" if command in _RECORDING else _KEPT.get(command, "nothing was kept")
    return _fail(130, f"interrupted; {kept}")


def _fail(code: int, message: str) -> int:
    print(f"rolloutpipe: {' '.join(message.split())}", file=sys.stderr)
    return code


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
