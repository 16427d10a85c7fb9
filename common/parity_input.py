"""What two trainers are compared on: a configuration, its starting model, and groups, recorded by a run or sampled now.

Everything is checked here, before a trainer starts. Rooms are imported where they are used.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from common.config import Config, load_config
from common.errors import DataError, explain
from common.parity import Update, cut, jax_config, torch_config
from common.prepare import find_model, prepare
from common.records import Group
from common.report.groups import read_groups
from common.retention import first_kept
from common.rundir import RunDir
from common.spool import model_layout

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityInput:
    """Checked, and ready to be trained on by both."""

    config: Config
    model_dir: Path
    updates: tuple[Update, ...]


def parity_input(source: Path, overrides: list[str], num_updates: int, report: Report) -> ParityInput:
    """Of a run directory or a configuration file; at most `num_updates` updates. Raises ConfigError and DataError."""
    read = from_run if source.is_dir() else from_config
    return read(source, overrides, num_updates, report)


def from_run(run_dir: Path, overrides: list[str], num_updates: int, report: Report) -> ParityInput:
    """The trainable groups of a run, in the order in which it trained them, and the model that it started from."""
    place = RunDir(run_dir)
    if not place.config.is_file():
        remedy = "give the directory that `train` printed, or a configuration file"
        raise DataError(explain("RUN_DIR", "must hold the config.yaml of a run", str(run_dir), remedy))
    config = load_config(place.config, overrides)
    rounds = (_trainable(path) for path in sorted(place.groups.glob("round-*.jsonl")))
    updates = tuple(islice(cut(rounds, config.update_groups), num_updates))
    if not _has_gradient(updates):
        rule = "must hold groups with a spread of rewards, in groups/"
        raise DataError(explain("RUN_DIR", rule, str(run_dir), "give a run that has finished a round"))
    if oldest := first_kept(place.groups):
        report(f"rounds before {oldest} are no longer in groups/ (retention.groups): the comparison begins with round {oldest}")
    check_rooms(config)
    model_dir = find_model(config, report)
    _check_tokens(updates, check_rooms(config, model_dir))
    return ParityInput(config=config, model_dir=model_dir, updates=updates)


def from_config(path: Path, overrides: list[str], num_updates: int, report: Report) -> ParityInput:
    """Groups sampled under the starting model by transformers: slow, but there may be no vLLM."""
    config = load_config(path, overrides)
    check_rooms(config)
    prepared = prepare(config, report, has_engines=False)
    check_rooms(config, prepared.model_dir)
    num_groups = num_updates * config.update_groups
    report(f"sampling {num_groups} groups of {config.responses_per_group} responses")
    groups = importlib.import_module("rolloutpipe_torch.sample").sample_groups(config, prepared, num_groups)
    updates = tuple(islice(cut(_rounds(groups, config.groups_per_round), config.update_groups), num_updates))
    if not _has_gradient(updates):
        rule = "must give groups with a spread of rewards: both trainers would have nothing to do"
        remedy = "raise responses_per_group, take easier problems, or a better model"
        raise DataError(explain("workload", rule, f"{len(groups)} such groups", remedy))
    return ParityInput(config=config, model_dir=prepared.model_dir, updates=updates)


def check_rooms(config: Config, model_dir: Path | None = None) -> int:
    """Raises ConfigError where a trainer does not fit this machine, DataError where it does not take the model.

    Returns the size of the model's vocabulary, 0 where no model is known yet.
    """
    num_tokens = 0
    for room, own in (("rolloutpipe_jax", jax_config(config)), ("rolloutpipe_torch", torch_config(config))):
        importlib.import_module(f"{room}.room").check_room(own, model_dir)
        if model_dir is not None:
            num_tokens = importlib.import_module(f"{room}.model").check_model(model_dir, model_layout(model_dir))
    return num_tokens


def _trainable(path: Path) -> list[Group]:
    return [stored.group for stored in read_groups(path) if stored.group.filtered is None]


def _rounds(groups: list[Group], size: int) -> Iterator[list[Group]]:
    for start in range(0, len(groups), size):
        yield groups[start : start + size]


def _has_gradient(updates: tuple[Update, ...]) -> bool:
    """Without it two trainers would agree on nothing but zeros."""
    return any(sample.advantage for update in updates for group in update.groups for sample in group.samples)


def _check_tokens(updates: tuple[Update, ...], num_tokens: int) -> None:
    samples = [sample for update in updates for group in update.groups for sample in group.samples]
    largest = max(max((*sample.request.prompt_ids, *sample.response.token_ids)) for sample in samples)
    if largest >= num_tokens:
        rule = f"must be of a model that has the tokens of the recorded groups (one has id {largest})"
        raise DataError(explain("model.path", rule, f"{num_tokens} tokens", "give the model that the run started from"))
