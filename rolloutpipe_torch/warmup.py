"""The quickstart's tiny model: a Qwen3 language model warmed up on worked sums.

No model hub is needed. :func:`build` makes a tokenizer, a randomly initialised
``Qwen3ForCausalLM`` and demonstrations from reasoning-gym problems, trains for about a
minute on one CPU core, and writes a complete Hugging Face model directory.

The demonstrations come in two styles. A *guess* states the answer at once. A *worked*
answer starts with ``:`` and adds two terms at a time, carrying the rest along, until one
number is left: ``3 + 5 - 2 + 7 =`` gives ``:3+5=8-2+7:8-2=6+7:6+7=13``. The guesses are
short and mostly wrong, the worked answers long and mostly right, so a model warmed up on
both leaves reinforcement learning something to find: which style earns the reward.

A worked answer to ``n`` terms is ``(n - 1) * (n + 8) / 2`` tokens and the end token, so
a few long problems among short ones give responses the long tail that rollouts have in
practice.

Shapes: ``B`` is the sequences in a batch, ``T`` the tokens of its longest sequence.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import itertools
import json
import math
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import reasoning_gym
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from common.cache import models_dir
from common.errors import ConfigError, explain

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
SYMBOLS = ("=", ":")
# A token a number: running totals, which are signed where negative, and the signed terms
# of one digit. Adding digit by digit takes a model of this size far longer to learn. With
# the symbols and the special tokens that is a vocabulary of 256, which the tied embedding
# of a model sharded over 2, 4 or 8 ranks splits evenly.
NUMBERS = (*map(str, range(-120, 120)), "-0", *(f"+{digit}" for digit in range(10)))

# reasoning-gym's chain_sum asks "State the final answer to the following arithmetic
# problem: 3 + 5 - 2 =". The model sees only the first group of this pattern.
QUESTION_PATTERN = r"problem: (.+ =)$"
# The answer is the integer that ends the response; without one, nothing is scored.
ANSWER_PATTERN = r"(-?\d+)$"

POOL = 2048  # demonstrations sorted by length at a time

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class TermRange:
    """One part of the problem mix: chain_sum problems with a range of term counts."""

    weight: float
    min_terms: int
    max_terms: int


@dataclass(frozen=True)
class Stage:
    """A run of supervised steps on one mix of problems and styles."""

    steps: int
    mix: tuple[TermRange, ...]
    guess_share: float  # of the demonstrations; the rest are worked


SHORT_TERMS = (TermRange(1.0, 2, 4),)
# Mostly short problems and a few long ones, so that response lengths have a long tail.
QUICKSTART_TERMS = (
    TermRange(0.65, 3, 4),
    TermRange(0.20, 5, 7),
    TermRange(0.15, 11, 13),
)


# For timing schedules: longer answers, mostly worked.
LONG_TERMS = (
    TermRange(0.65, 4, 7),
    TermRange(0.15, 9, 13),
    TermRange(0.20, 18, 20),
)


@dataclass(frozen=True)
class WarmupSettings:
    """Everything that decides the weights :func:`build` writes."""

    # Adding is learned soonest on short problems, then copying on long ones. Guesses come
    # last and briefly: they set how often the model guesses, not how well.
    stages: tuple[Stage, ...] = (
        Stage(300, SHORT_TERMS, 0.0),
        Stage(400, QUICKSTART_TERMS, 0.0),
        Stage(200, QUICKSTART_TERMS, 0.75),
    )
    hidden_size: int = 128
    intermediate_size: int = 384
    layers: int = 2
    heads: int = 4
    key_value_heads: int = 2
    head_dim: int = 32
    initializer_range: float = 0.08  # Qwen3's 0.02 learns slowly at this width
    max_positions: int = 512  # tokens, prompt and response together
    tokens_per_step: int = 1000  # at most, padding included
    learning_rate: float = 4e-3  # at its peak
    seed: int = 0
    threads: int = 1  # of torch; sums are ordered, and so rounded, differently by each count

    @property
    def steps(self) -> int:
        """Supervised steps in all."""
        return sum(stage.steps for stage in self.stages)


@dataclass(frozen=True)
class Demonstration:
    """A prompt and the response to learn, as text."""

    prompt: str
    response: str


def build_tokenizer(max_positions: int) -> PreTrainedTokenizerFast:
    """A tokenizer with one token a number or symbol; spaces are dropped."""
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNKNOWN, *SYMBOLS, *NUMBERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace(" ", "")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[+-]?\d+|."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=max_positions,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(settings: WarmupSettings, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A randomly initialised float32 model; ``settings.seed`` decides its weights."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.key_value_heads,
        head_dim=settings.head_dim,
        max_position_embeddings=settings.max_positions,
        tie_word_embeddings=True,
        initializer_range=settings.initializer_range,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return Qwen3ForCausalLM(config)


def make_prompt(question: str) -> str:
    """The part of a reasoning-gym question that the model sees."""
    match = re.search(QUESTION_PATTERN, question)
    if match is None:
        raise ValueError(f"not a chain_sum question: {question!r}")
    return match.group(1)


def extract_answer(response: str) -> str | None:
    """The integer that ends a response, or None where there is none."""
    match = re.search(ANSWER_PATTERN, response)
    return match.group(1) if match else None


def worked_response(expression: str) -> str:
    """``3 + 5 - 2 + 7`` worked out: ``:3+5=8-2+7:8-2=6+7:6+7=13``."""
    # The terms stay text, since "- 0" would otherwise come out as "+ 0".
    first, *terms = re.findall(r"[+-]?\d+", expression.replace(" ", ""))
    total = int(first)
    steps = []
    for i, term in enumerate(terms):
        step = f"{total}{term}="
        total += int(term)
        steps.append(step + str(total) + "".join(terms[i + 1 :]))
    return ":" + ":".join(steps)


def demonstrate(entry: dict[str, Any], worked: bool) -> Demonstration:
    """A reasoning-gym chain_sum entry with a correct response, worked or guessed."""
    prompt = make_prompt(entry["question"])
    response = worked_response(prompt.rstrip(" =")) if worked else entry["answer"]
    return Demonstration(prompt, response)


def generate_demonstrations(stage: Stage, seed: int) -> Iterator[Demonstration]:
    """An endless stream of demonstrations, the same for the same arguments."""
    draw = random.Random(seed)
    # reasoning-gym seeds problem i with seed + i, so neighbouring seeds share nearly all
    # their problems. Each part of the mix starts a whole size from the others, and all of
    # them far above the small seeds that a training run uses.
    size = 10_000_000
    datasets = [
        reasoning_gym.create_dataset(
            "chain_sum",
            min_terms=part.min_terms,
            max_terms=part.max_terms,
            min_digits=1,
            max_digits=1,
            seed=(1000 + 10 * seed + i) * size,
            size=size,
        )
        for i, part in enumerate(stage.mix)
    ]
    weights = [part.weight for part in stage.mix]
    for index in range(size):
        (dataset,) = draw.choices(datasets, weights)
        yield demonstrate(dataset[index], worked=draw.random() >= stage.guess_share)


def make_batches(
    stage: Stage, tokens_per_step: int, seed: int, tokenizer: PreTrainedTokenizerFast
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """``stage.steps`` batches (input_ids, labels), both ``[B, T]`` int64.

    ``B * T <= tokens_per_step``. Labels are -100 on prompts and padding. Sequences of like
    length share a batch, which leaves little padding; the batches of a pool are shuffled,
    so that lengths vary from step to step.
    """
    stream = generate_demonstrations(stage, seed)
    order = random.Random(seed)
    made = 0
    while made < stage.steps:
        pool = _encode(list(itertools.islice(stream, POOL)), tokenizer)
        pool.sort(key=lambda pair: len(pair[0]))
        batches: list[list[tuple[list[int], list[int]]]] = [[]]
        for pair in pool:
            # Sorted, so the newest sequence is the longest of its batch.
            if batches[-1] and len(pair[0]) * (len(batches[-1]) + 1) > tokens_per_step:
                batches.append([])
            batches[-1].append(pair)
        order.shuffle(batches)
        for batch in batches[: stage.steps - made]:
            made += 1
            yield (
                _pad([ids for ids, _ in batch], tokenizer.pad_token_id),
                _pad([labels for _, labels in batch], -100),
            )


def _encode(demonstrations: Sequence[Demonstration], tokenizer: PreTrainedTokenizerFast) -> list[tuple[list[int], list[int]]]:
    """Token ids and labels of each demonstration, of equal length."""
    # One call each, since a call costs far more than the few tokens it encodes.
    prompts = tokenizer([demo.prompt for demo in demonstrations])["input_ids"]
    responses = tokenizer([demo.response for demo in demonstrations])["input_ids"]
    eos = tokenizer.eos_token_id
    return [
        ([*prompt, *response, eos], [-100] * len(prompt) + [*response, eos])
        for prompt, response in zip(prompts, responses, strict=True)
    ]


def _pad(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])


def warm_up(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    settings: WarmupSettings,
    progress: Progress | None = None,
) -> None:
    """Train ``model`` in place on demonstrations.

    ``progress(step, steps, loss)`` is called after each step, with the mean loss of the
    step's response tokens in nats.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=(0.9, 0.98),
        weight_decay=0.0,
    )
    rise = max(1, settings.steps // 20)

    def rate(step: int) -> float:  # a linear rise, then half a cosine down to 2 %
        fall = 0.5 * (1 + math.cos(math.pi * step / settings.steps))
        return min((step + 1) / rise, 0.02 + 0.98 * fall)

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    model.train()
    batches = itertools.chain.from_iterable(
        make_batches(stage, settings.tokens_per_step, settings.seed + i, tokenizer) for i, stage in enumerate(settings.stages)
    )
    for step, (input_ids, labels) in enumerate(batches, start=1):
        # Right padding needs no attention mask: no response token comes after it.
        logits = model(input_ids, use_cache=False).logits  # [B, T, vocabulary]
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if progress is not None:
            progress(step, settings.steps, loss.item())
    model.eval()


def cache_key(settings: WarmupSettings) -> str:
    """16 hexadecimal digits that name what :func:`build` would write.

    They change with the settings, with this file and with the libraries that the weights
    come from.
    """
    parts = {
        "settings": asdict(settings),
        "code": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        "libraries": {
            name: importlib.metadata.version(name) for name in ("reasoning-gym", "tokenizers", "torch", "transformers")
        },
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def build(directory: Path, settings: WarmupSettings, progress: Progress | None = None) -> None:
    """Make and warm up a model, and write it and its tokenizer to ``directory``.

    The directory appears complete or not at all. Where it exists already, it is left as
    it is and nothing is trained.
    """
    if directory.exists():
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        tokenizer = build_tokenizer(settings.max_positions)
        model = build_model(settings, tokenizer)
        warm_up(model, tokenizer, settings, progress)
    finally:
        torch.set_num_threads(threads)
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Beside its final place, since a rename cannot cross file systems.
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as scratch:
        unfinished = Path(scratch) / "model"
        disable_progress_bar()
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        try:
            unfinished.rename(directory)
        except OSError:
            # Another process that built the same model came first.
            if not directory.exists():
                raise


# `model.recipe`: the quickstart's model, which RL teaches to work its answers out, and one that does so already.
RECIPES = {
    "quickstart": WarmupSettings(),
    "long_sums": WarmupSettings(stages=(Stage(300, SHORT_TERMS, 0.0), Stage(400, LONG_TERMS, 0.1))),
}


def find_or_build(recipe: str, options: Mapping[str, Any], report: Callable[[str], None]) -> Path:
    """The model directory of a recipe with `model.recipe_options`: from the cache, or built now.

    The cache is `ROLLOUTPIPE_CACHE`, by default `~/.cache/rolloutpipe`. Raises ConfigError for an unknown option.
    """
    settings = settings_from(recipe, options)
    directory = models_dir() / f"{recipe}-{cache_key(settings)}"
    if not directory.exists():
        start = time.monotonic()
        report(f"building the model {recipe} once: {settings.steps} supervised steps, about a minute")

        def show(step: int, steps: int, loss: float) -> None:
            if step % 300 == 0 and step < steps:
                report(f"step {step} of {steps}: loss {loss:.2f}")

        try:
            build(directory, settings, show)
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            cause = " ".join(str(error).split())[:200]
            raise ConfigError(explain("model.recipe_options", "must suit each other", dict(options), f"({cause})")) from error
        report(f"built in {time.monotonic() - start:.0f} s: {directory}")
    return directory


def settings_from(recipe: str, options: Mapping[str, Any]) -> WarmupSettings:
    """A recipe's settings with `options` replaced; only numbers can be given so."""
    known = {field.name for field in fields(WarmupSettings) if field.name != "stages"}
    for name, value in options.items():
        if name not in known:
            rule = f"must be some of {', '.join(sorted(known))}"
            raise ConfigError(explain(f"model.recipe_options.{name}", rule, value, "check the spelling"))
        kind = int if isinstance(getattr(RECIPES[recipe], name), int) else (int, float)
        if not isinstance(value, kind) or isinstance(value, bool) or not (value > 0 or name == "seed"):
            rule = f"must be {'a whole number' if kind is int else 'a number'} above 0"
            raise ConfigError(explain(f"model.recipe_options.{name}", rule, value, "remove it for the default"))
    return replace(RECIPES[recipe], **options)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Build the quickstart's warmed-up model.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    def show(step: int, steps: int, loss: float) -> None:
        if step % 50 == 0 or step == steps:
            print(f"step {step}/{steps}: loss {loss:.3f}", flush=True)

    settings = WarmupSettings(seed=arguments.seed)
    build(arguments.directory, settings, show)
    print(f"{cache_key(settings)}: {arguments.directory}")


if __name__ == "__main__":
    _main()
