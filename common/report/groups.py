"""Every sample of a run: `groups/round-00003.jsonl`, one JSON line per group, appended as each is materialized.

The rounds of a training are written by `common.journal`, which adds lines of its own. A line holds the whole `Group` and its
prompt text, so a `Group` survives the round trip exactly: ids, log-probs (NaN as null), rewards, versions, times, verdicts. The
reader forgives a torn last line, which a killed run may leave.
"""

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from common.disk import writing
from common.errors import DataError, explain
from common.records import FinishReason, Group, Reason, Request, Response, Sample, Times, Verdict

_INFINITIES = {"inf": math.inf, "-inf": -math.inf}  # JSON has no number for them


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


def _from_number(value: float | str | None) -> float:
    if value is None:
        return math.nan
    return _INFINITIES[value] if isinstance(value, str) else value


def group_to_json(group: Group, prompt: str) -> dict[str, Any]:
    """Plain JSON values of a group; ids must be strings or whole numbers."""
    return {
        "group": group.group_id,
        "order": group.order,
        "weight_version": group.weight_version,
        "filtered": group.filtered,
        "prompt": prompt,
        "samples": [_sample_to_json(sample) for sample in group.samples],
    }


def _sample_to_json(sample: Sample) -> dict[str, Any]:
    request, response = sample.request, sample.response
    times = response.times
    return {
        "request": request.request_id,
        "group": request.group_id,
        "order": request.order,
        "member": request.member,
        "seed": request.seed,
        "prompt_ids": request.prompt_ids,
        "answered": response.request_id,
        "token_ids": response.token_ids,
        "logprobs": [_number(value) for value in response.logprobs],
        "finish_reason": response.finish_reason,
        "versions": [response.version_start, response.version_end],
        "times_s": [times.admitted_s, times.finished_s, times.scored_s],
        "has_reward": sample.reward is not None,
        "reward": _number(sample.reward),
        "status": sample.status,
        "advantage": _number(sample.advantage),
        "text": sample.text,
        "reason": sample.reason,
        "extracted": sample.extracted,
        "parts": [[name, _number(value)] for name, value in sample.parts],
    }


def _sample_from_json(row: dict[str, Any]) -> Sample:
    request = Request(
        request_id=row["request"],
        group_id=row["group"],
        order=row["order"],
        member=row["member"],
        prompt_ids=tuple(row["prompt_ids"]),
        seed=row["seed"],
    )
    admitted, finished, scored = row["times_s"]
    response = Response(
        request_id=row["answered"],
        token_ids=tuple(row["token_ids"]),
        logprobs=tuple(_from_number(value) for value in row["logprobs"]),
        finish_reason=FinishReason(row["finish_reason"]),
        version_start=row["versions"][0],
        version_end=row["versions"][1],
        times=Times(admitted_s=admitted, finished_s=finished, scored_s=scored),
    )
    return Sample(
        request=request,
        response=response,
        reward=_from_number(row["reward"]) if row["has_reward"] else None,
        status=Verdict(row["status"]),
        advantage=_from_number(row["advantage"]),
        text=row["text"],
        reason=row["reason"],
        extracted=row.get("extracted", ""),  # older runs have neither
        parts=tuple((name, _from_number(value)) for name, value in row.get("parts", ())),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A group with its prompt text."""

    group: Group
    prompt: str


def group_from_json(row: dict[str, Any]) -> StoredGroup:
    """The inverse of `group_to_json`."""
    group = Group(
        group_id=row["group"],
        order=row["order"],
        weight_version=row["weight_version"],
        samples=tuple(_sample_from_json(sample) for sample in row["samples"]),
        filtered=None if row["filtered"] is None else Reason(row["filtered"]),
    )
    return StoredGroup(group=group, prompt=row["prompt"])


def round_path(directory: Path, round_number: int) -> Path:
    """The file of one round."""
    return directory / f"round-{round_number:05d}.jsonl"


class GroupWriter:
    """Appends groups; each line is flushed, so a kill loses at most the line being written."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._round: int | None = None
        self._file: IO[str] | None = None

    def write(self, round_number: int, group: Group, *, prompt: str) -> None:
        """Append one materialized group of this round. Raises DiskError."""
        line = json.dumps(group_to_json(group, prompt), separators=(",", ":"), allow_nan=False) + "\n"
        with writing(round_path(self._directory, round_number)):
            if round_number != self._round or self._file is None:
                self._open(round_number)
            assert self._file is not None
            self._file.write(line)
            self._file.flush()

    def _open(self, round_number: int) -> None:
        self.close()
        path = round_path(self._directory, round_number)
        is_torn = path.exists() and path.stat().st_size > 0 and _last_byte(path) != b"\n"
        self._file, self._round = path.open("a", encoding="utf-8"), round_number
        if is_torn:  # a killed run left half a line: keep it apart from what follows
            self._file.write("\n")

    def close(self) -> None:
        """Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # told when the line was written
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1)


def read_groups(path: Path) -> Iterator[StoredGroup]:
    """The groups of one round's file; a torn line (killed while writing) is skipped, any other fault is a DataError."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except ValueError:
                continue  # a torn line: the last, or the last of a run that was resumed
            if isinstance(row, dict) and "kind" in row:
                continue  # the journal's own
            try:
                yield group_from_json(row)
            except (KeyError, TypeError, ValueError) as error:
                rule = f"line {number} must hold a group ({type(error).__name__}: {error})"
                raise DataError(explain(str(path), rule, line[:60], "delete the line, or the file")) from error
