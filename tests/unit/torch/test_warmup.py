"""The warmed-up model recipe: its tokenizer, its demonstrations and what it writes."""

import hashlib
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import reasoning_gym
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rolloutpipe_torch import warmup
from rolloutpipe_torch.warmup import QUICKSTART_TERMS, SHORT_TERMS, Stage, WarmupSettings

TINY = WarmupSettings(
    stages=(Stage(10, SHORT_TERMS, 0.0), Stage(10, QUICKSTART_TERMS, 0.5)),
    tokens_per_step=300,
)


@pytest.fixture(scope="module")
def tokenizer():
    return warmup.build_tokenizer(512)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    warmup.build(directory, TINY)
    return directory


def chain_sums(size: int, terms: tuple[int, int]):
    return reasoning_gym.create_dataset(
        "chain_sum",
        min_terms=terms[0],
        max_terms=terms[1],
        min_digits=1,
        max_digits=1,
        seed=7,
        size=size,
    )


def weights_hash(directory: Path) -> str:
    return hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()


def test_worked_response_adds_two_terms_at_a_time():
    assert warmup.worked_response("3 + 5 - 2 + 7") == ":3+5=8-2+7:8-2=6+7:6+7=13"
    assert warmup.worked_response("2 - 9 + 4") == ":2-9=-7+4:-7+4=-3"
    assert warmup.worked_response("2 + 9 - 0") == ":2+9=11-0:11-0=11"


def test_question_that_is_not_a_sum_is_refused():
    with pytest.raises(ValueError, match="not a chain_sum question"):
        warmup.make_prompt("How many legs do 3 cats have?")


@pytest.mark.parametrize("response", ["", ":", "3+", ":3+5="])
def test_response_that_does_not_end_in_an_integer_has_no_answer(response):
    assert warmup.extract_answer(response) is None


@pytest.mark.parametrize("worked", [True, False])
def test_demonstrations_score_one(worked):
    dataset = chain_sums(200, (2, 12))
    for entry in dataset:
        response = warmup.demonstrate(entry, worked).response
        assert response.startswith(":") == worked
        assert dataset.score_answer(warmup.extract_answer(response), entry) == 1.0


def test_demonstrations_are_within_the_vocabulary_and_round_trip(tokenizer):
    assert len(tokenizer) == 256
    stage = Stage(1, QUICKSTART_TERMS, 0.5)
    for demonstration in islice(warmup.generate_demonstrations(stage, seed=3), 500):
        for text in (demonstration.prompt, demonstration.response):
            ids = tokenizer.encode(text)
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids) == text.replace(" ", "")


def test_worked_response_grows_with_the_square_of_the_terms(tokenizer):
    for terms in (2, 3, 7, 12):
        (entry,) = chain_sums(1, (terms, terms))
        response = warmup.demonstrate(entry, worked=True).response
        assert len(tokenizer.encode(response)) == (terms - 1) * (terms + 8) // 2


def test_guess_share_sets_the_share_of_guesses():
    stream = warmup.generate_demonstrations(Stage(1, QUICKSTART_TERMS, 0.75), seed=0)
    guesses = sum(not demo.response.startswith(":") for demo in islice(stream, 1000))
    assert 700 < guesses < 800


def test_batches_hold_to_the_token_limit_and_hide_prompts(tokenizer):
    stage = Stage(8, QUICKSTART_TERMS, 0.5)
    batches = list(warmup.make_batches(stage, 400, 0, tokenizer))
    assert len(batches) == stage.steps
    for input_ids, labels in batches:
        assert input_ids.shape == labels.shape
        assert input_ids.numel() <= 400
        seen = labels != -100
        assert torch.equal(labels[seen], input_ids[seen])
        # Each sequence learns its end, and nothing of its prompt, which ends in "=".
        assert ((labels == tokenizer.eos_token_id).sum(1) == 1).all()
        assert not seen[:, :4].any()


def test_build_is_deterministic(built, tmp_path):
    warmup.build(tmp_path / "again", TINY)
    assert weights_hash(tmp_path / "again") == weights_hash(built)
    warmup.build(tmp_path / "other", replace(TINY, seed=1))
    assert weights_hash(tmp_path / "other") != weights_hash(built)


def test_build_leaves_an_existing_directory_and_no_scratch(built):
    before = weights_hash(built)
    warmup.build(built, replace(TINY, seed=1))
    assert weights_hash(built) == before
    assert [path.name for path in built.parent.iterdir()] == [built.name]


def test_failed_build_leaves_nothing(tmp_path):
    def fail(step: int, steps: int, loss: float) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        warmup.build(tmp_path / "model", TINY, fail)
    assert list(tmp_path.iterdir()) == []


def test_directory_loads_in_transformers(built):
    tokenizer = AutoTokenizer.from_pretrained(built)
    model = AutoModelForCausalLM.from_pretrained(built)
    assert model.dtype == torch.float32
    assert model.config.model_type == "qwen3"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.padding_side == "left"
    prompts = tokenizer(["3 + 5 =", "3 + 5 - 2 + 7 ="], padding=True, return_tensors="pt")
    output = model.generate(**prompts, max_new_tokens=4, do_sample=False)
    assert output.shape[0] == 2


def test_progress_is_reported_for_each_step(tokenizer):
    reports = []
    model = warmup.build_model(TINY, tokenizer)
    warmup.warm_up(model, tokenizer, TINY, lambda *report: reports.append(report))
    assert [report[:2] for report in reports] == [(step, 20) for step in range(1, 21)]
    assert reports[-1][2] < reports[0][2]


def test_cache_key_changes_with_the_settings():
    assert warmup.cache_key(TINY) == warmup.cache_key(replace(TINY))
    assert warmup.cache_key(TINY) != warmup.cache_key(replace(TINY, seed=1))
