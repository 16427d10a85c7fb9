"""Reads a run directory, also of a run that still goes on or was killed, and says in one line what is wrong with it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from common.errors import DataError, explain
from common.event_fields import whole_event
from common.json_lines import read_lines
from common.timeline import Event

TIMELINE = "timeline.jsonl"


def run_events(run_dir: Path, make: Callable[[Any], Event] = whole_event) -> Iterator[Event]:
    """The events of a run, each as `make` makes it of a line. Raises DataError where no event is left.

    Lines that are none, or of which `make` raises TypeError or ValueError, are left out, and how many is told.
    """
    path = run_dir / TIMELINE
    if not run_dir.is_dir():
        raise DataError(explain("RUN_DIR", "must be a run directory", str(run_dir), "give the directory that `train` printed"))
    if not path.is_file():
        rule = f"must hold {TIMELINE}, which every run writes"
        raise DataError(explain("RUN_DIR", rule, str(run_dir), "give the directory that `train` printed"))
    if not any(True for _ in _read(path, make)):
        rule = f"must hold a {TIMELINE} with at least one whole event"
        raise DataError(explain("RUN_DIR", rule, str(run_dir), "the run ended before its first event: see its logs/"))
    return _read(path, make)


def _read(path: Path, make: Callable[[Any], Event]) -> Iterator[Event]:
    """Raises DataError where the file cannot be read at all."""
    try:
        yield from read_lines(path, make)
    except OSError as error:
        rule = f"its {TIMELINE} must be readable ({error.strerror})"
        raise DataError(explain("RUN_DIR", rule, str(path.parent), "give another run")) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What a run was and how it ended."""

    directory: Path
    name: str
    schedule: str
    status: str  # finished, failed, stopped; "interrupted" where the timeline just ends
    detail: str
    config: dict[str, Any]  # as in config.yaml; empty where that is missing
    end_s: float  # of the last event
    num_planned_rounds: int | None
    is_simulated: bool = False


def read_config(run_dir: Path) -> dict[str, Any]:
    """The run's resolved configuration; empty where the run left none."""
    try:
        config = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        rule = f"its config.yaml must be readable YAML ({' '.join(str(error).split())})"
        raise DataError(explain("RUN_DIR", rule, str(run_dir), "restore the file, or delete it")) from error
    return config if isinstance(config, dict) else {}


def run_info(run_dir: Path, events: list[Event]) -> RunInfo:
    """What the run was, from its first and last events and its configuration."""
    config = read_config(run_dir)
    start: Event = next((event for event in events if event["kind"] == "run_start"), {})
    end: Event = next((event for event in reversed(events) if event["kind"] == "run_end"), {})
    return RunInfo(
        directory=run_dir,
        name=str(start.get("name") or config.get("name") or run_dir.name),
        schedule=str(start.get("schedule") or config.get("schedule") or "unknown"),
        status=str(end.get("status") or "interrupted"),
        detail=str(end.get("detail") or ""),
        config=config,
        end_s=events[-1]["t"],
        num_planned_rounds=start.get("rounds") or config.get("rounds"),
        is_simulated=bool(start.get("is_simulated")),
    )


def nested(config: dict[str, Any], path: str, default: Any = None) -> Any:
    """`config["a"]["b"]` for "a.b"; the default where a part is missing or null."""
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return default if value is None else value


def plain(value: Any) -> str:
    """A setting as a person writes it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
