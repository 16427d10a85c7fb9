"""Scenarios from YAML files: the fields of `models.Scenario`, with sections `engine`, `lengths`, `verifier` and `trainer`.

The file's schema is built from the dataclasses, so a field stands in one place. Lengths are log-normal, or those that a run
recorded in its `groups/`:

    lengths: {from_run: runs/quickstart}
"""

from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import create_model

from common.config import Section
from common.config_errors import read_yaml, validate, with_overrides
from common.errors import ConfigError, DataError, explain
from common.records import FinishReason
from common.report.groups import read_groups
from common.simulation.lengths import EmpiricalLengths, LengthModel, LogNormalLengths
from common.simulation.models import EngineModel, Scenario, TrainerModel, VerifierModel

_FROM_RUN = "lengths.from_run"


def _section(model: type, **changed: Any) -> type[Section]:
    """The schema of a dataclass; `changed` adds fields, or gives them as (type, default)."""
    hints = get_type_hints(model)
    found: dict[str, Any] = {}
    for spec in fields(model):
        default = spec.default if spec.default is not MISSING else None
        found[spec.name] = (hints[spec.name], default)
    return create_model(model.__name__, __base__=Section, **{**found, **changed})


_PARTS = {"engine": EngineModel, "verifier": VerifierModel, "trainer": TrainerModel}
_SCHEMAS = {
    **{name: _section(model) for name, model in _PARTS.items()},
    "lengths": _section(LogNormalLengths, from_run=(str | None, None)),
}
_FILE = _section(Scenario, **{name: (schema, schema()) for name, schema in _SCHEMAS.items()})


def load_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in `path` with each `a.b=value` set. Raises ConfigError and DataError in one line.

    `lengths.from_run=RUN_DIR` as an override replaces whatever lengths the file has.
    """
    data = read_yaml(path)
    if any(text.startswith(f"{_FROM_RUN}=") for text in overrides):
        data.pop("lengths", None)
    file = validate(_FILE, with_overrides(data, list(overrides)))
    values = {name: getattr(file, name) for name in type(file).model_fields}
    for name, model in _PARTS.items():
        values[name] = model(**values[name].model_dump())
    values["lengths"] = _lengths(values["lengths"])
    if values["seed"] < 0:
        raise ConfigError(explain("seed", "must be 0 or more", values["seed"], "choose another"))
    return Scenario(**values)


def names_schedule(path: Path, overrides: Sequence[str] = ()) -> bool:
    """Whether the file or an override sets `schedule`."""
    return "schedule" in with_overrides(read_yaml(path), list(overrides))


def _lengths(section: Section) -> LengthModel:
    values = section.model_dump()
    run_dir = values.pop("from_run")
    if "from_run" not in section.model_fields_set:
        return LogNormalLengths(**values)
    if not run_dir:
        rule = "must be a run directory with recorded groups/"
        raise ConfigError(explain(_FROM_RUN, rule, run_dir, "give the directory that `train` printed, or leave it out"))
    if others := sorted(section.model_fields_set - {"from_run"}):
        rule = "must stand alone: recorded lengths have no parameters"
        raise ConfigError(explain(_FROM_RUN, rule, run_dir, f"remove it, or remove {', '.join(others)}"))
    return recorded_lengths(Path(run_dir))


def recorded_lengths(run_dir: Path) -> EmpiricalLengths:
    """Response lengths of all groups that a run has written. Raises DataError where there are none."""
    paths = sorted((run_dir / "groups").glob("round-*.jsonl"))
    samples = [[sample.response for sample in stored.group.samples] for path in paths for stored in read_groups(path)]
    if not samples:
        rule = "must be a run directory with recorded groups/"
        raise DataError(explain(_FROM_RUN, rule, str(run_dir), "give the directory that `train` printed"))
    groups = [[len(response.token_ids) for response in group] for group in samples]
    cut = [len(one.token_ids) for group in samples for one in group if one.finish_reason is FinishReason.LENGTH]
    return EmpiricalLengths(groups, cap=max(cut, default=None))


def describe(scenario: Scenario) -> dict[str, Any]:
    """Plain values of every field, as a scenario file has them; recorded lengths in words."""
    values = {spec.name: getattr(scenario, spec.name) for spec in fields(scenario)}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, EmpiricalLengths):
        return f"{value.num_groups} recorded groups"
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
