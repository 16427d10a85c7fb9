"""One rank in this process: gradients whatever the chunks, old policies, precision, failures of models."""

import json
import os
import shutil
import socket
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from common.batching import rows_of
from common.config import Config
from common.errors import ConfigError, DataError
from rolloutpipe_torch import rank as rank_module
from rolloutpipe_torch.rank import TrainerRank
from tests.gradient_lab import chunks, distance, gradient
from tests.loss_cases import KINDS


def config_of(model, **training):
    sampling = {"max_tokens": 16, "temperature": 0.8}
    keep = {"filter": "keep"} if training.get("kl", {}).get("kind") == "k1" else {}
    return Config(model={"path": str(model)}, training={"lr": 1e-3, **training}, sampling=sampling, **keep)


@contextmanager
def one_rank(model, **training):
    rank = TrainerRank(config_of(model, **training), model, 0, 1)
    rank.join(rank.listen())
    try:
        yield rank
    finally:
        rank.close()


@pytest.fixture
def rows(make_group):
    return [row for seed in (0, 1) for row in rows_of(make_group(seed))]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_do_not_depend_on_chunks_or_order(tiny_model, rows, kind):
    with one_rank(tiny_model, loss=kind, kl={"coef": 0.1}) as rank:
        whole = gradient(rank, chunks(rows, 1))
        for number in (1, 2, 8):
            # 1e-6: float32 sums in another order, a few units in the last place
            assert distance(gradient(rank, chunks(rows, number, seed=number)), whole) < 1e-6
        assert distance(gradient(rank, [[], *chunks(rows, 2), []]), whole) < 1e-6  # empty passes weigh nothing


def test_the_check_catches_a_denominator_per_chunk(tiny_model, rows, monkeypatch):
    def divided(batch, logprobs, rules):
        total, sums = original(batch, logprobs, rules)
        return total / sums["trained_tokens"].float(), sums

    original = rank_module.loss_sum
    monkeypatch.setattr(rank_module, "loss_sum", divided)
    with one_rank(tiny_model, loss="dapo") as rank:
        one, two = gradient(rank, chunks(rows, 1)), gradient(rank, chunks(rows, 2))
    assert distance(two / 2, one) > 1e-3  # the mean of means is not the mean


def test_the_check_catches_a_chunk_that_is_dropped(tiny_model, rows):
    with one_rank(tiny_model) as rank:
        whole = gradient(rank, chunks(rows, 1))
        assert distance(gradient(rank, chunks(rows, 2)[:1]), whole) > 1e-3
        assert distance(gradient(rank, chunks(rows, 8)[:-1]), whole) > 1e-3


def test_logprobs_are_those_of_transformers_at_the_temperature(tiny_model, rows):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with one_rank(tiny_model) as rank:
        found = rank.logprobs([[rows]], 0.8)[0][0]
    for row, values in zip(rows, found, strict=True):
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
        with torch.no_grad():
            scores = (model(ids).logits[0, len(row.prompt_ids) - 1 : -1] / 0.8).log_softmax(-1)
        expected = scores.gather(-1, torch.tensor(row.response_ids)[:, None])[:, 0].tolist()
        assert values == pytest.approx(expected, abs=1e-5)  # padding and batching round otherwise


def test_logits_in_chunks_give_the_same_gradient(tiny_model, rows, monkeypatch):
    with one_rank(tiny_model) as rank:
        whole = gradient(rank, [rows])
        monkeypatch.setattr("rolloutpipe_torch.model.LOGIT_BYTES", 7 * 4 * 45)  # seven tokens at a time
        assert distance(gradient(rank, [rows]), whole) < 1e-6


def test_activation_checkpointing_changes_nothing(tiny_model, rows):
    with one_rank(tiny_model) as rank:
        whole = gradient(rank, [rows])
    with one_rank(tiny_model, activation_checkpointing=True) as rank:
        assert distance(gradient(rank, [rows]), whole) < 1e-6


def test_bfloat16_is_near_and_keeps_float32_weights(tiny_model, rows):
    with one_rank(tiny_model) as rank:
        whole = gradient(rank, [rows])
    with one_rank(tiny_model, dtype="bfloat16", activation_checkpointing=True) as rank:
        near = gradient(rank, chunks(rows, 2))
        assert {shard.dtype for shard in rank._optimizer.shards.values()} == {torch.float32}
        before = rank.logprobs([[rows]], 1.0)
        rank.accumulate([[rows]])
        rank.finish_update(8, 1e-2)
        assert rank.logprobs([[rows]], 1.0) != before  # no stale gathered weights after a pass without backward
    assert 1e-6 < distance(near, whole) < 0.1


def test_old_logprobs_come_from_the_kept_weights_after_a_step(tiny_model, rows):
    with one_rank(tiny_model, importance_cap=2.0, keep_round_weights=True) as rank:
        before = rank.logprobs([[rows]], 0.8)[0][0]
        rank.keep_round_weights()
        rank.accumulate([[rows]])
        rank.finish_update(8, 1e-2)
        after = rank.logprobs([[rows]], 0.8)[0][0]
        batch = rank_module.to_batch(rows, torch.device("cpu"))
        (old,) = rank._old_logprobs([batch])
        assert [old[index, : len(row.response_ids)].tolist() for index, row in enumerate(rows)] == before
        assert rank.logprobs([[rows]], 0.8)[0][0] == after != before


def test_reference_stays_while_the_policy_moves(tiny_model, rows):
    with one_rank(tiny_model, kl={"coef": 0.5}) as rank:
        start = rank.logprobs([[rows]], 0.8)
        assert rank.logprobs([[rows]], 0.8, "reference") == start
        rank.accumulate([[rows]])
        rank.finish_update(8, 1e-2)
        assert rank.logprobs([[rows]], 0.8, "reference") == start != rank.logprobs([[rows]], 0.8)


def test_gradient_that_is_not_finite_steps_nothing(tiny_model, rows):
    with one_rank(tiny_model) as rank:
        before = rank.logprobs([[rows]], 1.0)
        bad = [
            rows[0],
            *(rank_module.Row(r.prompt_ids, r.response_ids, (-1e9,) * len(r.sampler), -1.0, True, True) for r in rows[1:]),
        ]
        rank.accumulate([[bad]])
        norm, _ = rank.finish_update(8, 1e-2)
        assert not np.isfinite(norm)
        assert rank.logprobs([[rows]], 1.0) == before


def broken(model, tmp_path, change):
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    change(copy)
    return copy


def cut_file(directory):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def drop_tensor(directory):
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def unknown_type(directory):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "no_such"}))


def wrong_width(directory):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))


@pytest.mark.parametrize("change", [cut_file, drop_tensor, unknown_type, wrong_width, shutil.rmtree])
def test_a_broken_model_directory_is_one_line_of_data_error(tiny_model, tmp_path, change):
    model = broken(tiny_model, tmp_path, change)
    with pytest.raises(DataError, match=r"^model\.path: must hold .*") as caught:
        rank_module.load_policy(model)
    assert "\n" not in str(caught.value)


def test_the_padding_token_is_trained_as_any_other(tiny_model, tmp_path, rows):
    """Rule 8: masks go by length. The library would leave that row of the embedding without the gradient of its look-ups."""
    padded = tmp_path / "padded"
    shutil.copytree(tiny_model, padded)
    file = padded / "config.json"
    token = rows[0].prompt_ids[0]
    file.write_text(json.dumps({**json.loads(file.read_text()), "pad_token_id": token}))
    found = []
    for model in (tiny_model, padded):
        with one_rank(model) as rank:
            found.append(gradient(rank, chunks(rows, 1)))
    assert distance(found[1], found[0]) == 0.0


def outside_addresses():
    """Of this machine, where it has any, and the wildcard."""
    found = [each.address for addresses in psutil.net_if_addrs().values() for each in addresses if each.family == socket.AF_INET]
    return ["0.0.0.0", *(address for address in found if not address.startswith("127."))]


def test_it_listens_on_loopback_alone_unless_the_configuration_names_a_cluster(tiny_model, monkeypatch):
    opened = []
    monkeypatch.setattr(rank_module.socket, "create_server", lambda place: opened.append(place) or pytest.fail(f"opened {place}"))
    rank = TrainerRank(config_of(tiny_model), tiny_model, 0, 1)
    for address in outside_addresses():
        rule = rf"^cluster\.address: must be the address of a cluster for a process to listen on {address}, got 'local'; say auto"
        with pytest.raises(ConfigError, match=rule):
            rank.listen(address)
        with pytest.raises(ConfigError, match=rule):
            rank.join(1, address, address)
    assert opened == []


def test_gloo_and_nccl_are_told_the_interface_and_do_not_choose_one(tiny_model, monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "eth7")
    with one_rank(tiny_model):
        assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
