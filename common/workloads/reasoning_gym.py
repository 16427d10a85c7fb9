"""Generated problems with their own scorers, from the reasoning-gym library.

    name: reasoning_gym:chain_sum        options: {min_terms: 2, max_terms: 4}
    name: reasoning_gym:mix              options: {datasets: [{name: chain_sum, weight: 0.7, max_terms: 4},
                                                              {name: chain_sum, weight: 0.3, min_terms: 8, max_terms: 14}]}

The library's own composite refuses a name used twice, hence the small mixture here. Its data sets seed item `i` with `seed + i`:
seeds 0 and 1 would share all problems but one. So the seeds handed to it are spread: train on seed 0, test on seed 1.
"""

import dataclasses
import difflib
import json
from collections.abc import Iterator
from random import Random
from typing import Any

from common.config_workload import WorkloadConfig
from common.errors import ConfigError, explain
from common.workloads.plain import encode
from common.workloads.rows import Row

PREFIX = "reasoning_gym:"
NAME = "reasoning_gym"
MIX = "mix"


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """One data set of the workload."""

    name: str
    weight: float
    options: dict[str, Any]
    data_set: Any


def generate_rows(config: WorkloadConfig) -> Iterator[Row]:
    """`config.size` rows, the same for the same seed. Raises ConfigError for an unknown name and bad parameters."""
    name = config.name.removeprefix(PREFIX)
    if name == MIX:
        parts = [_mixed_part(config, index, spec) for index, spec in enumerate(_mix_specs(config.options))]
    else:
        parts = [_Part(name, 1.0, *_create("workload.name", "workload.options", name, config.options, config, 0))]
    chooser = Random(f"{config.seed}:mix")
    next_index = [0] * len(parts)
    for choice in chooser.choices(range(len(parts)), weights=[part.weight for part in parts], k=config.size):
        yield _row(parts[choice], next_index[choice])
        next_index[choice] += 1


def data_set_names() -> list[str]:
    """All that can stand after `reasoning_gym:`, the mix aside."""
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - {"composite"})


def _mix_specs(options: dict[str, Any]) -> list[Any]:
    specs = options.get("datasets")
    if set(options) != {"datasets"} or not isinstance(specs, list) or not specs:
        rule = f"must be {{datasets: [...]}} for {PREFIX}{MIX}"
        raise ConfigError(explain("workload.options", rule, options, "list {name, weight, ...} of each data set there"))
    return specs


def _mixed_part(config: WorkloadConfig, index: int, spec: Any) -> _Part:
    field = f"workload.options.datasets.{index}"
    if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
        raise ConfigError(explain(field, "must be {name, weight, ...}", spec, "add its name"))
    weight = spec.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
        raise ConfigError(explain(f"{field}.weight", "must be a number above 0", weight, "raise it, or remove the data set"))
    options = {key: value for key, value in spec.items() if key not in {"name", "weight"}}
    return _Part(spec["name"], float(weight), *_create(f"{field}.name", field, spec["name"], options, config, index))


def _create(
    name_field: str, field: str, name: str, given: dict[str, Any], config: WorkloadConfig, index: int
) -> tuple[dict[str, Any], Any]:
    """All keyword arguments of the data set, and the data set. `name_field` and `field`: where name and options were typed."""
    _check_options(field, name, given, _settings_class(name, name_field))
    from reasoning_gym.factory import create_dataset

    options = {**given, "seed": Random(f"{config.seed}:{index}").randrange(2**31), "size": config.size}
    try:
        data_set = create_dataset(name, **options)
        data_set[0]  # some settings fail only here
    except Exception as error:  # the library asserts, raises and divides; each time the settings are at fault
        cause = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(explain(field, f"must suit {name}", given, f"change them ({cause})")) from error
    return options, data_set


def _check_options(field: str, name: str, options: dict[str, Any], settings: type) -> None:
    known = {setting.name for setting in dataclasses.fields(settings)} - {"seed", "size"}
    for key, value in options.items():
        if key in {"seed", "size"}:
            raise ConfigError(explain(f"{field}.{key}", "is set for the whole workload", value, f"use workload.{key}"))
        if key not in known:
            near = _nearest(key, known) or f"known here: {', '.join(sorted(known))}"
            raise ConfigError(explain(f"{field}.{key}", f"is no setting of {name}", value, near))


def _settings_class(name: str, field: str) -> type:
    from reasoning_gym.factory import DATASETS

    if name == "composite" or name not in DATASETS:
        near = f"use {PREFIX}{MIX}" if name == "composite" else _nearest(name, DATASETS)
        remedy = near or "`rolloutpipe workloads --generated` lists the names"
        raise ConfigError(explain(field, "must be a reasoning-gym data set", name, remedy))
    return DATASETS[name][1]


def _nearest(word: str, words: Any) -> str | None:
    near = difflib.get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else None


def _row(part: _Part, index: int) -> Row:
    entry = part.data_set[index]
    # Through JSON once, so that text and number subclasses become what a journal would give back.
    plain = json.loads(json.dumps(encode(entry)))
    task = {"workload": NAME, "dataset": part.name, "options": part.options, "entry": plain}
    gold = entry["answer"]
    return Row(
        place=f"{part.name}[{index}]",
        question=entry["question"],
        gold=None if gold is None else str(gold),
        task=task,
        category=part.name,
    )
