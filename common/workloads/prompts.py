"""From a question to the tokens that the model sees.

    question -> question_pattern -> prompt_template -> system prompt, shots and chat template (if asked for) -> token ids

A raw prompt gets a BOS token where the tokenizer itself puts one in front (Llama does, Qwen does not) and never an EOS at its
end. A chat template writes its own special tokens, so none are added to it.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.config_workload import WorkloadConfig
from common.errors import ConfigError, DataError, explain
from common.workloads.rows import Row
from common.workloads.source import SCHEMA_OF

# Where tokenizers keep their tokens.
_VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")


def build_prompts(config: WorkloadConfig, tokenizer: Any, rows: Sequence[Row]) -> list[tuple[str, list[int]]]:
    """Prompt and token ids of each row. Raises DataError where `question_pattern` finds nothing, ConfigError without template."""
    template = config.prompt_template or default_template(config)
    texts = [template.replace("{question}", _question(config.question_pattern, row)) for row in rows]
    if config.is_chat:
        _check_chat(config, tokenizer)
        texts = [_chat(config, tokenizer, text) for text in texts]
    try:
        encoded = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    except Exception as error:  # of the library, where what tokenizer.json says cannot be carried out
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DataError(explain("model.path", "must hold a tokenizer that works", None, f"copy it again ({cause})")) from error
    start = [] if config.is_chat else _bos(tokenizer)
    return [(text, [*start, *ids]) for text, ids in zip(texts, encoded, strict=True)]


def default_template(config: WorkloadConfig) -> str:
    """The workload's own."""
    return "{question}" if config.is_generated else SCHEMA_OF[config.name].template


def load_tokenizer(model_dir: Path) -> Any:
    """The Hugging Face tokenizer in `model_dir`, from disk alone. Raises DataError where it is missing or broken."""
    if not model_dir.is_dir():
        raise DataError(explain("model.path", "must be a model directory", str(model_dir), "check the path"))
    if not any(any(model_dir.glob(name)) for name in _VOCABULARIES):  # the library would make an empty one
        raise DataError(explain("model.path", "must hold a tokenizer", str(model_dir), "copy tokenizer.json there"))
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises what its many file formats raise, down to a bare Exception
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        remedy = f"copy tokenizer.json and tokenizer_config.json again ({cause})"
        raise DataError(explain("model.path", "must hold a readable tokenizer", str(model_dir), remedy)) from error


def _question(pattern: str | None, row: Row) -> str:
    if pattern is None:
        return row.question
    match = re.search(pattern, row.question)
    if match is None or match.group(1) is None:
        rule = f"{row.place}: workload.question_pattern finds nothing in the question"
        raise DataError(f"{rule}, got {row.question[:80]!r}; change the pattern, or remove the row")
    return match.group(1)


def _check_chat(config: WorkloadConfig, tokenizer: Any) -> None:
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        rule = f"needs a tokenizer with a chat template (the default of {config.name})"
        rule = rule if config.use_chat_template is None else "needs a tokenizer with a chat template"
        remedy = "set workload.use_chat_template=false, or use a chat model's tokenizer"
        raise ConfigError(explain("workload.use_chat_template", rule, config.use_chat_template, remedy))
    if config.enable_thinking is not None and "enable_thinking" not in str(template):
        rule = "is not known to the tokenizer's chat template"
        raise ConfigError(explain("workload.enable_thinking", rule, config.enable_thinking, "remove it"))


def _chat(config: WorkloadConfig, tokenizer: Any, text: str) -> str:
    messages = [] if config.system_prompt is None else [{"role": "system", "content": config.system_prompt}]
    for shot in config.shots:
        messages += [{"role": "user", "content": shot.question}, {"role": "assistant", "content": shot.response}]
    messages.append({"role": "user", "content": text})
    thinking = {} if config.enable_thinking is None else {"enable_thinking": config.enable_thinking}
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **thinking))
    except Exception as error:  # templates are programs: some refuse a system message, some are broken
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        remedy = f"remove workload.system_prompt if it refuses one, or set workload.use_chat_template=false ({cause})"
        rule = "must be a chat template that takes these messages"
        raise ConfigError(explain("workload.use_chat_template", rule, [one["role"] for one in messages], remedy)) from error


def _bos(tokenizer: Any) -> list[int]:
    bos = tokenizer.bos_token_id
    return [bos] if bos is not None and list(tokenizer("x")["input_ids"])[:1] == [bos] else []
