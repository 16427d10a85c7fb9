"""Which rows a rank holds, and reading them from what another number of ranks wrote."""

from types import SimpleNamespace

import pytest
import torch
from crafted_files import MARK, TENSOR_FILES, bomb
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from common.errors import DataError
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


@pytest.mark.parametrize("content", TENSOR_FILES.values(), ids=TENSOR_FILES.keys())
def test_a_crafted_file_of_a_rank_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "rank-00000-of-00001.safetensors").write_bytes(content())
    with pytest.raises(DataError, match=r"^checkpoint: must hold the trainer state of this model, got .*$"):
        load_shard(tmp_path, optimizer(torch.zeros(1), torch.zeros(1)), 0, 1, 1)


def test_a_pickle_under_the_name_of_a_rank_is_not_opened(tmp_path):
    (tmp_path / "rank-00000-of-00001.safetensors").write_bytes(bomb(tmp_path))
    with pytest.raises(DataError):
        load_shard(tmp_path, optimizer(torch.zeros(1), torch.zeros(1)), 0, 1, 1)
    assert not (tmp_path / MARK).exists()


def test_a_rank_that_is_missing_or_a_link_elsewhere_is_named(tmp_path):
    whole, outside = torch.arange(4.0), tmp_path / "outside"
    outside.mkdir()
    for rank, shard in enumerate(shares(whole, 2)):
        save_shard(outside, optimizer(whole, shard), rank, 2)
    files = ["rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors"]
    (outside / files[0]).rename(tmp_path / files[0])
    target = optimizer(whole, torch.zeros(4))
    with pytest.raises(DataError, match=files[1]):
        load_shard(tmp_path, target, 0, 1, 2)
    (tmp_path / files[1]).symlink_to(outside / files[1])
    with pytest.raises(DataError, match=f"{files[1]} is no regular file"):
        load_shard(tmp_path, target, 0, 1, 2)
    with pytest.raises(DataError, match="rank-00000-of-1000000000"):  # the first of them ends it
        load_shard(tmp_path, target, 0, 1, 10**9)
