"""From a recorded comparison of schedules: measure the parts, then predict the schedules.

The `serial` part gives engine, lengths, trainer, verifier and publish, each without the other beside it. One number more comes
from `cgp`: the contention factor, how many times as long rollout and training take while the other runs too. Every other schedule
of the comparison is predicted, from the same lengths, requests and seeds, and set beside what was measured.
"""

import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from common.config import Config
from common.errors import DataError, explain
from common.figures import number, percent, seconds
from common.metrics import RoundMetrics
from common.report.rundir import TIMELINE
from common.simulation.contention import MIN_BESIDE, contention_of
from common.simulation.fit import fit_engine, fit_trainer, fit_verifier
from common.simulation.lengths import RecordedLengths
from common.simulation.models import SCHEDULES, EngineModel, Scenario, TrainerModel, VerifierModel
from common.simulation.recording import Recording, read_recording
from common.simulation.run import simulate

FIELD = "COMPARE_DIR"
_FITTED_ON = ("serial", "cgp")
_SAME = ("groups_per_round", "responses_per_group", "groups_per_update", "seed", "rollout")  # in all parts
_FIGURES = ("r2t_end_s", "first_dispatch_s", "waiting_ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The parts of a recorded run in numbers."""

    recording: Recording
    engine: EngineModel
    engine_explained: float  # share of the variance of the seconds of a response
    trainer: TrainerModel
    trainer_explained: float  # share of the variance of the seconds of an accumulation
    verifier: VerifierModel
    prompt_tokens: int
    publish_s: float

    def scenario(self, config: Config, contention: float = 1.0) -> Scenario:
        """The recorded rounds again, under the schedule and orders of `config`."""
        rounds = self.recording.rounds
        return Scenario(
            name=config.name,
            schedule=config.schedule,
            rounds=len(rounds),
            groups_per_round=config.groups_per_round,
            responses_per_group=config.responses_per_group,
            groups_per_update=config.update_groups,
            frontier_width=config.frontier_width,
            request_order=config.request_order,
            group_order=config.group_order,
            prompt_tokens=self.prompt_tokens,
            engine=self.engine,
            lengths=RecordedLengths([one.lengths for one in rounds], [one.prompts for one in rounds]),
            verifier=self.verifier,
            trainer=self.trainer,
            publish_s=self.publish_s,
            contention=contention,
            seed=config.seed,
        )

    def to_json(self) -> dict[str, Any]:
        """The numbers, without the recording."""
        rounds = self.recording.rounds
        return {
            "rounds": [one.index for one in rounds],
            "engine": asdict(self.engine),
            "engine_explained": self.engine_explained,
            "trainer": asdict(self.trainer),
            "trainer_explained": self.trainer_explained,
            "verifier": asdict(self.verifier),
            "prompt_tokens": self.prompt_tokens,
            "publish_s": self.publish_s,
            "length_mean": statistics.fmean(float(one.lengths.mean()) for one in rounds),
        }


def calibrate(recording: Recording, field: str) -> Calibration:
    """Raises DataError, with `field` as its subject, where too little was recorded."""
    rounds = recording.rounds
    engine, engine_explained = fit_engine(rounds, recording.config.rollout, field)
    trainer, trainer_explained = fit_trainer(rounds, field)
    # The engine model takes whole prompts of one length: the cost of a token makes up for the rounding.
    mean = statistics.fmean(one.prompt_tokens for one in rounds)
    prompt_tokens = max(1, round(mean))
    return Calibration(
        recording=recording,
        engine=replace(engine, prefill_s_per_token=engine.prefill_s_per_token * mean / prompt_tokens),
        engine_explained=engine_explained,
        trainer=trainer,
        trainer_explained=trainer_explained,
        verifier=fit_verifier(rounds),
        prompt_tokens=prompt_tokens,
        publish_s=statistics.fmean(one.metrics.publish_s for one in rounds),
    )


def fit_contention(calibration: Calibration, recording: Recording) -> float:
    """From the overlap of rollout and training in `recording`. Raises DataError where there is too little of it."""
    contention = contention_of(recording.rounds, calibration.engine, calibration.trainer)
    if contention is None:
        name, least = recording.directory.name, f"{MIN_BESIDE} responses and {MIN_BESIDE} accumulations"
        rule = f"needs {least} of its {name} part that ran beside each other, for the contention factor"
        raise DataError(explain(FIELD, rule, f"{len(recording.rounds)} rounds", "record more rounds, or larger ones"))
    return contention


def _pairs(calibration: Calibration, recording: Recording, contention: float) -> list[tuple[RoundMetrics, RoundMetrics]]:
    """Measured and predicted figures of each round that is whole in `recording` and in what was calibrated on; at least one."""
    predicted = simulate(calibration.scenario(recording.config, contention)).rounds
    by_round = {one.index: guess for one, guess in zip(calibration.recording.rounds, predicted, strict=True)}
    pairs = [(one.metrics, by_round[one.index]) for one in recording.rounds if one.index in by_round]
    if not pairs:
        rule = f"needs a whole round that its parts serial and {recording.directory.name} share"
        raise DataError(explain(FIELD, rule, [one.index for one in recording.rounds], "run both to the end, with filter=keep"))
    return pairs


def predict_compare(directory: Path, console: Console) -> dict[str, Any]:
    """Measured beside predicted, as printed: `calibration`, `schedules`, and `largest_error` of those not fitted on.

    `directory` is what `compare` wrote. Raises DataError that says which part of it is missing.
    """
    recordings = _read_parts(directory)
    calibration = calibrate(recordings["serial"], FIELD)
    contention = fit_contention(calibration, recordings["cgp"])
    rows = [_row(name, calibration, recording, contention) for name, recording in recordings.items()]
    errors = [abs(row["error"]) for row in rows if not row["is_fitted"]]
    for line in calibration_lines(calibration, contention):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(prediction_table(rows))
    return {
        "calibration": {**calibration.to_json(), "contention": contention},
        "schedules": rows,
        "largest_error": max(errors, default=None),
    }


def _read_parts(directory: Path) -> dict[str, Recording]:
    """By name of the part, those that the fit needs first."""
    found = {path.parent.name for path in directory.glob(f"*/{TIMELINE}")}
    for name in _FITTED_ON:
        if name not in found:
            rule = f"needs a {name} part ({name}/{TIMELINE}), on which the models are fitted"
            raise DataError(explain(FIELD, rule, str(directory), "run `compare` with --schedules serial,cgp,fgd"))
    names = [*_FITTED_ON, *sorted(found - set(_FITTED_ON), key=_rank)]
    recordings = {name: read_recording(directory / name, FIELD) for name in names}
    base = recordings["serial"].config
    for name, recording in recordings.items():
        for setting in _SAME:
            if getattr(recording.config, setting) != getattr(base, setting):
                rule = f"must have the same {setting} in its parts serial and {name}"
                raise DataError(explain(FIELD, rule, str(directory), "give the directory of one `compare`"))
    return recordings


def _rank(name: str) -> tuple[int, str]:
    """Schedules in their usual order, then directories of other names."""
    return (SCHEDULES.index(name) if name in SCHEDULES else len(SCHEDULES), name)


def _row(name: str, calibration: Calibration, recording: Recording, contention: float) -> dict[str, Any]:
    pairs = _pairs(calibration, recording, contention)
    row: dict[str, Any] = {"name": name, "schedule": recording.config.schedule, "is_fitted": name in _FITTED_ON}
    for figure in _FIGURES:
        for place, kind in enumerate(("measured", "predicted")):
            row[f"{kind}_{figure}"] = statistics.median(getattr(pair[place], figure) for pair in pairs)
    row["error"] = row["predicted_r2t_end_s"] / row["measured_r2t_end_s"] - 1
    row["rounds"] = [
        {"round": measured.round, "measured_r2t_end_s": measured.r2t_end_s, "predicted_r2t_end_s": predicted.r2t_end_s}
        for measured, predicted in pairs
    ]
    return row


def calibration_lines(calibration: Calibration, contention: float) -> list[str]:
    """The fitted numbers in words."""
    engine, trainer, verifier = calibration.engine, calibration.trainer, calibration.verifier
    return [
        f"engine: a step takes {1000 * engine.step_s:.3g} ms and {1000 * engine.step_per_request_s:.3g} ms for each running "
        f"request, a prompt {1000 * engine.prefill_s_per_token * calibration.prompt_tokens:.3g} ms "
        f"({percent(calibration.engine_explained)} of the variance of {_num_responses(calibration)} responses)",
        f"trainer: {1e6 * trainer.token_s:.3g} us a token, {1000 * trainer.group_s:.3g} ms a group, "
        f"{1000 * trainer.update_s:.3g} ms an update ({percent(calibration.trainer_explained)} of the variance)",
        f"verifier: {1000 * verifier.seconds:.3g} ms; publish: {calibration.publish_s:.3g} s",
        f"contention: rollout and training take {contention:.2f} times as long while both run",
    ]


def _num_responses(calibration: Calibration) -> str:
    return number(sum(one.lengths.size for one in calibration.recording.rounds))


def prediction_table(rows: list[dict[str, Any]]) -> Table:
    """Medians side by side."""
    title = "rollout to train end, medians of the rounds"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
    for heading in ("schedule", "", "measured", "predicted", "error", "first dispatch\nmeasured", "\npredicted"):
        table.add_column(heading, justify="left" if heading in ("schedule", "") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["name"],
            "fitted" if row["is_fitted"] else "predicted",
            seconds(row["measured_r2t_end_s"]),
            seconds(row["predicted_r2t_end_s"]),
            f"{100 * row['error']:+.1f} %",
            seconds(row["measured_first_dispatch_s"]),
            seconds(row["predicted_first_dispatch_s"]),
        )
    return table
