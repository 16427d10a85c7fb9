"""Which rows a rank holds, and reading them from what another number of ranks wrote."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rolloutpipe_torch.checkpoint import load_shard, rows, save_shard
from rolloutpipe_torch.optimizer import MOMENTS


def shares(whole, num_ranks):
    """The rows of each rank, as FSDP2 cuts them: torch.chunk, then nothing."""
    parts = list(torch.chunk(whole, num_ranks))
    return parts + [whole[:0]] * (num_ranks - len(parts))


def optimizer(whole, shard):
    """What the checkpoint sees of an optimizer that holds `shard` of one tensor."""
    moments = {moment: shard * factor for factor, moment in enumerate(MOMENTS, start=2)}
    return SimpleNamespace(
        params={"w": nn.Parameter(whole)}, shards={"w": nn.Parameter(shard.clone())}, moment=lambda _, kind: moments[kind]
    )


@given(st.integers(1, 50), st.integers(1, 9))
def test_rows_are_those_of_torch_chunk(size, num_ranks):
    whole = torch.arange(size)
    for rank, share in enumerate(shares(whole, num_ranks)):
        first, behind = rows(size, rank, num_ranks)
        assert whole[first:behind].equal(share)


@pytest.mark.parametrize("saved", [1, 2, 3, 5])
@pytest.mark.parametrize("loading", [1, 2, 4])
@pytest.mark.parametrize("size", [2, 7])
def test_any_number_of_ranks_reads_what_any_other_wrote(tmp_path, saved, loading, size):
    whole = torch.arange(1.0, 1 + size * 3).reshape(size, 3)
    for rank, shard in enumerate(shares(whole, saved)):
        save_shard(tmp_path, optimizer(whole, shard), rank, saved)
    for rank, shard in enumerate(shares(whole, loading)):
        target = optimizer(whole, torch.zeros_like(shard))
        load_shard(tmp_path, target, rank, loading, saved)
        assert target.shards["w"].equal(shard)
        for factor, moment in enumerate(MOMENTS, start=2):
            assert target.moment("w", moment).equal(shard * factor)
