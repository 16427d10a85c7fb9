"""`rolloutpipe simulate`: the shipped policies and queue against modelled engines and trainer."""

from pathlib import Path
from typing import Any

from rich.console import Console

from common.commands.schedules import parse_schedules
from common.errors import ConfigError, explain

PRESETS = ("paper",)


def simulate_source(
    source: str, overrides: list[str], schedules: str | None, out: Path | None, console: Console
) -> dict[str, Any]:
    """`source`: a preset, a scenario file, or what `compare` wrote. Returns what `--json` holds.

    Raises ConfigError where it is none of these.
    """
    path = Path(source)
    if source in PRESETS:
        from common.commands.simulate_paper import simulate_paper

        return simulate_paper(overrides, parse_schedules(schedules), out, console)
    if path.is_dir():
        return _predict(path, overrides, schedules, out, console)
    if path.is_file():
        return _simulate_file(path, overrides, schedules, out, console)
    rule = f"must be a preset ({', '.join(PRESETS)}), a scenario file, or a directory that `compare` wrote"
    raise ConfigError(explain("SOURCE", rule, source, "check the name"))


def _simulate_file(path: Path, overrides: list[str], schedules: str | None, out: Path | None, console: Console) -> dict[str, Any]:
    """Under the schedules of `--schedules`, else under the file's `schedule` alone, else under all."""
    from common.simulation.scenario_file import load_scenario, names_schedule
    from common.simulation.schedules import simulate_scenario

    if schedules is not None and any(text.startswith("schedule=") for text in overrides):
        raise ConfigError(explain("schedule", "does not go with --schedules", schedules, "give one of the two"))
    scenario = load_scenario(path, overrides)
    is_alone = schedules is None and names_schedule(path, overrides)
    return dict(simulate_scenario(scenario, (scenario.schedule,) if is_alone else parse_schedules(schedules), out, console))


def _predict(path: Path, overrides: list[str], schedules: str | None, out: Path | None, console: Console) -> dict[str, Any]:
    given = {"key=value": overrides or None, "--schedules": schedules, "--out": out}
    for name, value in given.items():
        if value is not None:
            rule = "does not go with a directory of `compare`, whose own settings and schedules are predicted"
            raise ConfigError(explain(name, rule, str(value), "leave it out"))
    from common.simulation.calibrate import predict_compare

    return dict(predict_compare(path, console))
