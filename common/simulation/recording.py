"""What a recorded run tells a simulation: lengths, prompts, and how long each part took.

Only whole rounds count: ended, with all R groups of K members sampled and trained. A simulated round trains every group, so a
round with filtered, dropped or refilled groups would be compared with something else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.config import Config, load_config
from common.errors import DataError, explain
from common.metrics import RoundMetrics, collect_rounds
from common.report.groups import read_groups, round_path
from common.retention import first_kept
from common.rundir import RunDir
from common.simulation.event_check import check_whole_round, checked_events
from common.simulation.lengths import Lengths, Prompt
from common.timeline import Event, group_number

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The responses of one replica in one round, N of them; each array is (N,)."""

    start_s: Floats  # when the replica got the request
    end_s: Floats  # when its last token was out
    tokens: Lengths  # of the response
    prompt_tokens: Lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRound:
    """One whole round."""

    index: int
    lengths: Lengths  # (R, K), by group order and member
    prompts: list[Prompt]  # R of them
    prompt_tokens: float  # mean over the groups
    served: list[Served]  # by replica
    sampling: Floats  # (2,) start of the round, and end of its rollout
    training: Floats  # (M, 2) start and end of each of the trainer's computations
    accumulations: Floats  # (R, 2) of those, the accumulation of each group
    group_tokens: Lengths  # (R,) of that group
    between_s: float  # of the trainer, first accumulation to last update, neither accumulating nor waiting: steps and calls
    verify_s: Floats
    metrics: RoundMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorded run; `rounds` are its whole ones, at least one."""

    directory: Path
    config: Config
    rounds: list[RecordedRound]


def read_recording(directory: Path, field: str) -> Recording:
    """Of a run directory; `field` is what an error calls it. Raises DataError and says what is missing."""
    events = checked_events(directory, field)
    run_dir = RunDir(directory)
    for path in (run_dir.config, run_dir.groups):
        if not path.exists():
            rule = f"needs {path.name} in {directory.name or directory}, which every run writes"
            raise DataError(explain(field, rule, str(directory), "give a directory that `train` or `compare` wrote"))
    config = load_config(run_dir.config)
    kept = first_kept(run_dir.groups)  # rounds before it were removed (`retention.groups`)
    metrics = [one for one in collect_rounds(events) if one.round >= kept and _is_whole(one, config)]
    rounds = [_round(run_dir, config, one, _events_of(events, one.round), field) for one in metrics]
    if not rounds:
        rule = f"needs at least one round of {directory.name or directory} that ended with all its groups trained"
        raise DataError(explain(field, rule, str(directory), "run it to the end, with filter=keep"))
    return Recording(directory=directory, config=config, rounds=rounds)


def _is_whole(metrics: RoundMetrics, config: Config) -> bool:
    others = ("filtered", "dropped", "refilled")
    return (
        metrics.is_finished
        and metrics.r2t_end_s is not None
        and metrics.groups_trained == config.groups_per_round
        and not any(metrics.books.get(name, 0) for name in others)
    )


def _events_of(events: Sequence[Event], index: int) -> list[Event]:
    """Those of the round's last try; a resumed run repeats one."""
    start = max(place for place, event in enumerate(events) if event["kind"] == "round_start" and event["round"] == index)
    return [event for event in events[start:] if event.get("round") == index]


def _round(run_dir: RunDir, config: Config, metrics: RoundMetrics, events: list[Event], field: str) -> RecordedRound:
    lengths, prompts = _sampled(run_dir, metrics.round, (config.groups_per_round, config.responses_per_group), field)
    prompt_lengths = np.array([len(prompt) for prompt in prompts], np.int64)
    check_whole_round(events, metrics.round, config.groups_per_round, field)
    complete = {event["group"]: event["tokens"] for event in events if event["kind"] == "group_complete"}
    accumulated = [event for event in events if event["kind"] == "compute" and event["phase"] == "accumulate"]
    return RecordedRound(
        index=metrics.round,
        lengths=lengths,
        prompts=prompts,
        prompt_tokens=float(prompt_lengths.mean()),
        served=_served([event for event in events if event["kind"] == "response"], prompt_lengths),
        sampling=np.array([_time(events, "round_start"), _time(events, "rollout_done")]),
        training=_intervals(event for event in events if event["kind"] == "compute"),
        accumulations=_intervals(accumulated),
        group_tokens=np.array([complete[event["group"]] for event in accumulated], np.int64),
        between_s=_between(events, _intervals(accumulated)),
        verify_s=np.diff(_intervals(event for event in events if event["kind"] == "verify"))[:, 0],
        metrics=metrics,
    )


def _sampled(run_dir: RunDir, index: int, shape: tuple[int, int], field: str) -> tuple[Lengths, list[Prompt]]:
    """Response lengths (R, K) and the R prompts of a round, from `groups/`."""
    path = round_path(run_dir.groups, index)
    lengths = np.zeros(shape, np.int64)
    prompts: list[Prompt] = [()] * shape[0]
    for stored in read_groups(path) if path.exists() else ():
        samples = stored.group.samples
        if stored.group.order < shape[0] and len(samples) == shape[1]:
            prompts[stored.group.order] = samples[0].request.prompt_ids
            lengths[stored.group.order] = [len(sample.response.token_ids) for sample in samples]
    if num_missing := int((lengths.max(axis=1) == 0).sum()):
        rule = f"needs every group of round {index} in groups/{path.name} ({num_missing} of {shape[0]} are missing)"
        raise DataError(explain(field, rule, str(run_dir.path), "give a directory whose groups/ is whole"))
    return lengths, prompts


def _served(responses: list[Event], prompts: Lengths) -> list[Served]:
    by_replica: dict[object, list[Event]] = {}
    for event in responses:
        by_replica.setdefault(event["replica"], []).append(event)
    return [
        Served(
            start_s=np.array([event["start"] for event in some]),
            end_s=np.array([event["t"] for event in some]),
            tokens=np.array([event["tokens"] for event in some], np.int64),
            prompt_tokens=np.array([prompts[group_number(event["group"])] for event in some], np.int64),
        )
        for some in by_replica.values()
    ]


def _between(events: list[Event], accumulated: Floats) -> float:
    """Seconds from the first accumulation to the last update that are neither accumulation nor wait."""
    start, end = accumulated.min(), max(event["t"] for event in events if event["kind"] == "update")
    waits = np.clip(_intervals(event for event in events if event["kind"] == "wait"), start, end)
    return float(max(0.0, end - start - np.diff(waits).sum() - np.diff(accumulated).sum()))


def _time(events: list[Event], kind: str) -> float:
    return float(next(event["t"] for event in events if event["kind"] == kind))


def _intervals(events: Iterable[Event]) -> Floats:
    """Start and end of each, (N, 2)."""
    return np.array([(event["start"], event["t"]) for event in events], np.float64).reshape(-1, 2)
