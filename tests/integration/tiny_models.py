"""Tiny Qwen3 models, their weights as a spool, and the log-probs that Hugging Face computes with them."""

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from common.records import Request, Response
from common.spool import SpoolWriter
from tests.random_models import random_model

VOCABULARY = 50
# The models are too small for two threads to help, and on a busy machine they wait for each other a hundred times as long.
torch.set_num_threads(1)


def tiny_model(directory: Path, *, seed: int, tied: bool, eos: list[int] | None) -> Any:
    """Random Qwen3 (4 layers, hidden 128) saved in `directory`; the spread is wide, so that two seeds differ by far."""
    model = random_model(
        "Qwen3",
        seed=seed,
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        head_dim=32,
        tie_word_embeddings=tied,
        initializer_range=0.15,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=0,
    ).eval()
    model.save_pretrained(directory)
    return model


def tiny_tokenizer(directory: Path) -> None:
    """A tokenizer for these models, saved in `directory`: a token a character."""
    characters = ["?", *string.digits, *string.ascii_lowercase, *string.punctuation]
    vocabulary = {character: index for index, character in enumerate(dict.fromkeys(characters[:VOCABULARY]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(directory)


def write_spool(model: Any, spool: Path, version: int, *, without: str = "") -> Path:
    """The model's weights as `version`; a tied head is sent once, as the embedding."""
    with SpoolWriter(spool, version) as writer:
        for name, tensor in model.state_dict().items():
            if name == without or (name == "lm_head.weight" and model.config.tie_word_embeddings):
                continue
            array = tensor.contiguous().numpy()
            writer.add(name, str(array.dtype), tuple(array.shape), array.tobytes())
    return spool


def largest_gap(model: Any, requests: list[Request], responses: list[Response], temperature: float) -> float:
    """Largest |log-prob of the engine - log-prob of Hugging Face| over all response tokens."""
    gap = 0.0
    for request, response in zip(requests, responses, strict=True):
        assert len(response.token_ids) == len(response.logprobs)
        ids = torch.tensor([[*request.prompt_ids, *response.token_ids]])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0].float() / temperature, dim=-1)
        first = len(request.prompt_ids) - 1
        for index, (token, found) in enumerate(zip(response.token_ids, response.logprobs, strict=True)):
            gap = max(gap, abs(logprobs[first + index, token].item() - found))
    return gap


def sums_model(directory: Path, steps: int) -> Path:
    """The quickstart's model and tokenizer after so few steps that it knows next to nothing."""
    from rolloutpipe_torch.warmup import SHORT_TERMS, Stage, WarmupSettings, build

    build(directory, WarmupSettings(stages=(Stage(steps, SHORT_TERMS, 0.5),)))
    return directory
