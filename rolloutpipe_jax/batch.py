"""Sequences of a micro-batch as arrays of a few fixed sizes: the one place where plain values become arrays.

XLA compiles a program for each size of its arguments, so micro-batches are packed into the smallest of a handful of sizes,
the rungs of a ladder. Several sequences lie in one row as segments 1, 2, ...; 0 is padding. All that is scored stands in a
layout of its own, response tokens only, at the front of the row.

Masks and positions come from lengths, never from token ids (rule 8).

Axes: F devices that share rows, B rows of each, R = F * B rows, L tokens of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from common.batching import Row

Values = Any  # NumPy on the host, jax.Array on the devices
# Each rung costs the time to compile it. Below the shortest row a program's fixed costs outweigh what a shorter one saves.
_HALVINGS = 3
_SHORTEST = 128


class Rung(NamedTuple):
    """A size of a micro-batch on each of the devices that share rows."""

    rows: int
    length: int  # tokens

    @property
    def num_tokens(self) -> int:
        """Padding included."""
        return self.rows * self.length


class Batch(NamedTuple):
    """One micro-batch; a pytree. The first three are laid out as the model reads, [R, L], the rest as responses, [R, L]."""

    input_ids: Values  # int32
    positions: Values  # int32, within the segment
    segments: Values  # int32
    places: Values  # int32: of the token before each response token, in its row of `input_ids`
    targets: Values  # int32: the response tokens
    owners: Values  # int32: which sequence of the row a response token belongs to
    mask: Values  # bool: where there is a response token
    trained: Values  # bool: and it has a loss
    sampler: Values  # float32: the sampler's log-probs, 0 outside the mask
    advantages: Values  # float32: of the token's sequence
    shares: Values  # float32: 1 / response tokens of the token's sequence


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a sequence's response tokens stand in the layout of responses."""

    row: int
    start: int
    num_tokens: int


def ladder(longest: int, budget: int, multiple: int, num_sequences: int) -> tuple[Rung, ...]:
    """The sizes of a run, smallest first: one row, halved up to three times; then 2, 3, 4, 6, 8, 12 ... rows.

    `longest` is the length of the longest sequence in tokens, of which a device gets `num_sequences` at a time, or as many as
    `budget` tokens hold. Rows are a multiple of `multiple`.
    """
    length = _round_up(longest, multiple)
    most = max(1, min(budget // length, num_sequences))
    halves = (_round_up(-(-length // 2**power), multiple) for power in range(1, _HALVINGS + 1))
    lengths = {length, *(half for half in halves if half >= _SHORTEST)}
    steps = (count << power for power in range(most.bit_length()) for count in (2, 3))
    counts = {most, *(count for count in steps if count < most)} - {1}
    return (*(Rung(1, each) for each in sorted(lengths)), *(Rung(count, max(lengths)) for count in sorted(counts)))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def planned_length(length: int, longest: int) -> int:
    """What a sequence of `length` tokens counts for in the plan: its share of a row of `longest` full of its like.

    With it, the planner's padded tokens are those of packed rows, so a planned micro-batch always fits the top rung.
    """
    return -(-longest // (longest // length))


def pick(sizes: Sequence[Rung], runs: Sequence[Sequence[Row]]) -> tuple[Rung, list[list[list[Row]]]]:
    """The smallest rung that holds each of `runs`, one a device, and the rows that they are packed into."""
    for rung in sizes:
        packed = [_pack(run, rung.length) for run in runs]
        if all(rows is not None and len(rows) <= rung.rows for rows in packed):
            return rung, [rows for rows in packed if rows is not None]
    raise AssertionError(f"a micro-batch of {[len(run) for run in runs]} sequences fits no rung of {sizes}")


def cut(rung: Rung, runs: Sequence[Sequence[Row]]) -> list[list[list[list[Row]]]]:
    """As many batches of this one size as `runs`, one a device, need: the packed rows of each device, by batch."""
    packed = [_pack(run, rung.length) or [] for run in runs]
    starts = range(0, max(map(len, packed)), rung.rows)
    return [[rows[start : start + rung.rows] for rows in packed] for start in starts]


def _pack(run: Sequence[Row], length: int) -> list[list[Row]] | None:
    """Longest first, each into the first row that has room (first fit decreasing); None where one is too long."""
    rows: list[list[Row]] = []
    room: list[int] = []
    for sequence in sorted(run, key=lambda row: -row.num_tokens):
        if sequence.num_tokens > length:
            return None
        place = next((index for index, free in enumerate(room) if free >= sequence.num_tokens), len(rows))
        if place == len(rows):
            rows.append([])
            room.append(length)
        rows[place].append(sequence)
        room[place] -= sequence.num_tokens
    return rows


def to_batch(rung: Rung, packed: Sequence[Sequence[Sequence[Row]]]) -> tuple[Batch, dict[int, Spot]]:
    """Arrays of the rows of each device, and where each sequence went, by `id`."""
    size = (len(packed) * rung.rows, rung.length)
    batch = Batch(
        *(np.zeros(size, np.int32) for _ in range(6)),
        *(np.zeros(size, bool) for _ in range(2)),
        *(np.zeros(size, np.float32) for _ in range(3)),
    )
    spots: dict[int, Spot] = {}
    for device, rows in enumerate(packed):
        for index, row in enumerate(rows, start=device * rung.rows):
            _fill(batch, index, row, spots)
    return batch, spots


def _fill(batch: Batch, index: int, row: Sequence[Row], spots: dict[int, Spot]) -> None:
    start = scored = 0
    for owner, sequence in enumerate(row):
        prompt, response = len(sequence.prompt_ids), len(sequence.response_ids)
        here, there = slice(start, start + prompt + response), slice(scored, scored + response)
        batch.input_ids[index, here] = (*sequence.prompt_ids, *sequence.response_ids)
        batch.positions[index, here] = np.arange(prompt + response)
        batch.segments[index, here] = owner + 1
        batch.places[index, there] = np.arange(start + prompt - 1, here.stop - 1)
        batch.targets[index, there] = sequence.response_ids
        batch.owners[index, there] = owner
        batch.mask[index, there] = True
        batch.trained[index, there] = sequence.is_counted and sequence.has_spread
        batch.sampler[index, there] = sequence.sampler
        batch.advantages[index, there] = sequence.advantage
        batch.shares[index, there] = 1.0 / response
        spots[id(sequence)] = Spot(index, scored, response)
        start, scored = here.stop, there.stop
