"""Rows of a micro-batch as tensors: the one place where plain values become tensors.

Masks and positions come from lengths, never from token ids: an end-of-sequence token that is also the padding token is
trained like any other (rule 8).

Axes: B rows, L longest row (prompt and response), T longest response, N response tokens of all rows together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.batching import Row

_PADDING = 0  # any valid token id: no real token attends to it, and it has no loss

# What a rank without work in a step computes: it must take part in the gathering of weights, with weight zero.
DUMMY = Row((0,), (0,), (0.0,), 0.0, False, False)


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch."""

    input_ids: Tensor  # [B, L] int64, padded on the right
    positions: Tensor  # [N] int64: in the flattened [B * L], the token before each response token
    targets: Tensor  # [N] int64: the response tokens, row after row
    mask: Tensor  # [B, T] bool: where a response has a token
    sampler: Tensor  # [B, T] float32: the sampler's log-probs, 0 outside the mask
    advantages: Tensor  # [B] float32
    is_counted: Tensor  # [B] bool
    has_spread: Tensor  # [B] bool
    is_real: Tensor  # [B] bool: False for the dummy row

    def padded(self, values: Tensor) -> Tensor:
        """[N] values of response tokens as [B, T], 0 outside the mask; gradients flow back."""
        return values.new_zeros(self.mask.shape).masked_scatter(self.mask, values)


def to_batch(rows: Sequence[Row], device: torch.device) -> Batch:
    """Tensors of `rows`; of none, a dummy row of weight zero. Every row has at least one prompt and one response token."""
    is_real = len(rows) > 0
    rows = rows or (DUMMY,)
    longest = max(row.num_tokens for row in rows)
    width = max(len(row.response_ids) for row in rows)
    ids = [[*row.prompt_ids, *row.response_ids] + [_PADDING] * (longest - row.num_tokens) for row in rows]
    starts = [index * longest + len(row.prompt_ids) - 1 for index, row in enumerate(rows)]
    lengths = torch.tensor([len(row.response_ids) for row in rows])
    positions = [start + step for start, row in zip(starts, rows, strict=True) for step in range(len(row.response_ids))]
    targets = [token for row in rows for token in row.response_ids]
    sampler = [[*row.sampler] + [0.0] * (width - len(row.sampler)) for row in rows]
    return Batch(
        input_ids=torch.tensor(ids).to(device),
        positions=torch.tensor(positions).to(device),
        targets=torch.tensor(targets).to(device),
        mask=(torch.arange(width) < lengths[:, None]).to(device),
        sampler=torch.tensor(sampler, dtype=torch.float32).to(device),
        advantages=torch.tensor([row.advantage for row in rows], dtype=torch.float32).to(device),
        is_counted=torch.tensor([row.is_counted for row in rows]).to(device),
        has_spread=torch.tensor([row.has_spread for row in rows]).to(device),
        is_real=torch.full((len(rows),), is_real).to(device),
    )
