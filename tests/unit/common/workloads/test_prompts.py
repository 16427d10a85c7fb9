"""Prompts with a real tokenizer: special tokens, chat template, broken folders."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.config_workload import WorkloadConfig
from common.errors import ConfigError, DataError
from common.workloads.prompts import build_prompts, load_tokenizer
from common.workloads.rows import Row

BOS, EOS = 0, 1
CHAT = "{{ bos_token }}[{{ messages[0]['content'] }}]{% if add_generation_prompt %}>{% endif %}"
BOXED_SENTENCE = "Please reason step by step, and put your final answer within \\boxed{}."
THINKING = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)


def make_tokenizer(folder: Path, *, specials: str | None = None, chat: str | None = None) -> Any:
    """A character tokenizer in `folder`; `specials` is the pattern it wraps around a text, such as `<s> $A </s>`."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<s>": BOS, "</s>": EOS, **{character: i for i, character in enumerate("ab[]>?", start=2)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("<s>|."), behavior="isolated")
    if specials:
        pairs = [("<s>", BOS), ("</s>", EOS)]
        tokenizer.post_processor = processors.TemplateProcessing(single=specials, special_tokens=pairs)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=chat)
    fast.save_pretrained(folder)
    return load_tokenizer(folder)


def ids_of(tokenizer: Any, **settings: Any) -> tuple[str, list[int]]:
    row = Row(place="here", question="ab", gold=None, task={})
    return build_prompts(WorkloadConfig(**settings), tokenizer, [row])[0]


@pytest.mark.parametrize(
    ("specials", "expected"),
    [(None, [2, 3]), ("<s> $A", [BOS, 2, 3]), ("<s> $A </s>", [BOS, 2, 3]), ("$A </s>", [2, 3])],
)
def test_a_raw_prompt_gets_bos_where_the_tokenizer_puts_one_and_never_eos(
    specials: str | None, expected: list[int], tmp_path: Path
) -> None:
    assert ids_of(make_tokenizer(tmp_path, specials=specials)) == ("ab", expected)


def test_a_chat_template_writes_its_own_special_tokens(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, specials="<s> $A", chat=CHAT)
    assert ids_of(tokenizer, use_chat_template=True) == ("<s>[ab]>", [BOS, 4, 2, 3, 5, 6])


def test_a_missing_chat_template_is_an_error(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match=r"workload\.use_chat_template: needs a tokenizer with a chat template, got True"):
        ids_of(tokenizer, use_chat_template=True)
    with pytest.raises(ConfigError, match=r"\(the default of gsm8k\), got None; set workload\.use_chat_template=false, or use"):
        ids_of(tokenizer, name="gsm8k", path="x")
    assert ids_of(tokenizer, name="gsm8k", path="x", use_chat_template=False)[0].startswith("ab\n\nPlease reason")


def test_system_prompt_and_thinking_reach_the_template_only_where_they_are_set(tmp_path: Path) -> None:
    """A template of Qwen3's form: thinking is on unless it is switched off, which puts an empty block into the prompt."""
    tokenizer = make_tokenizer(tmp_path, chat=THINKING)
    asked = f"<|im_start|>user\nab\n\n{BOXED_SENTENCE}<|im_end|>\n<|im_start|>assistant\n"

    def prompt(**settings: Any) -> str:
        return ids_of(tokenizer, name="gsm8k", path="x", **settings)[0]

    assert prompt() == asked
    assert prompt(enable_thinking=True) == asked
    assert prompt(enable_thinking=False) == f"{asked}<think>\n\n</think>\n\n"
    assert prompt(system_prompt="Be brief.") == f"<|im_start|>system\nBe brief.<|im_end|>\n{asked}"
    assert prompt(prompt_template="[{question}]").startswith("<|im_start|>user\n[ab]<|im_end|>")


def test_what_a_template_cannot_do_is_an_error(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, chat=CHAT)
    with pytest.raises(
        ConfigError, match=r"^workload\.enable_thinking: is not known to the tokenizer's chat template, got False"
    ):
        ids_of(tokenizer, name="gsm8k", path="x", enable_thinking=False)
    tokenizer.chat_template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system\nmessage') }}{% endif %}"
    with pytest.raises(
        ConfigError, match=r"must be a chat template that takes these messages, got .*no system message"
    ) as caught:
        ids_of(tokenizer, name="gsm8k", path="x", system_prompt="Be brief.")
    assert "\n" not in str(caught.value)


def test_a_missing_and_a_broken_tokenizer_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"model\.path: must be a model directory, got '.*none'"):
        load_tokenizer(tmp_path / "none")
    make_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=r"model\.path: must hold a readable tokenizer, got ") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, common.workloads.load, common.workloads.sampler, common.rewards.pool\n"
        "heavy = {'torch', 'transformers', 'reasoning_gym', 'ray', 'vllm', 'jax', 'datasets', 'huggingface_hub', 'sympy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[4], check=True
    )
    assert found.stdout.strip() == "[]"
