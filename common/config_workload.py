"""Settings of a workload: where its problems come from, which of them are used, and how the model is asked."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from common.config_section import Section, check_pattern
from common.errors import ConfigError, explain

# Workloads with a schema, a prompt and a checker of their own (`common.workloads`).
SCHEMAS = ("lsat_ar", "sci_xw", "sci_jl", "olyphys", "gsm8k", "math500")
JSONL = "jsonl"
REASONING_GYM = "reasoning_gym:"


class Shot(Section):
    """A worked example that the model sees before the question."""

    question: str = Field(min_length=1)
    response: str = Field(min_length=1)


class WorkloadConfig(Section):
    """Where the problems come from, and how they are put to the model."""

    name: str = "reasoning_gym:chain_sum"  # one of SCHEMAS, `jsonl` (GSM8K's fields by default), `reasoning_gym:NAME` or `:mix`
    options: dict[str, Any] = {}  # keyword arguments of the reasoning-gym data set; of a mix: {datasets: [{name, weight, ...}]}
    size: int = Field(1000, ge=1, le=10_000_000)  # problems to generate (reasoning-gym only); repeats are dropped and counted
    seed: int = 0  # of the generated problems, and of the choice of `max_problems`
    path: str | None = None  # a file in the workload's own schema, or a directory of such files
    dataset: str | None = None  # instead of `path`: a Hugging Face data set, by id or directory (extra `hub`)
    dataset_config: str | None = None  # of that data set
    split: str | None = None  # of that data set; None: its only one
    fields: dict[str, str] = {}  # where a file's fields have other names than the schema's: {schema's name: file's name}
    where: dict[str, list[bool | int | float | str]] = {}  # only rows whose field (its name in the file) has one of these values
    on_bad_gold: Literal["stop", "skip"] = "stop"  # a row whose answer cannot be read: an error that names it, or left out
    holdout: float = Field(0.0, ge=0, lt=1)  # share of the problems kept for `eval`, by a hash of the question, and never trained
    max_problems: int | None = Field(None, ge=1)  # of the rest, so many, chosen by `seed`; None: all
    question_field: str = "question"  # jsonl only, as the two below
    answer_field: str = "answer"
    answer_kind: Literal["number", "math", "letter"] = "number"  # how answers are compared (`common.rewards.checkers`)
    system_prompt: str | None = None  # chat templates only, as the shots
    shots: tuple[Shot, ...] = ()  # worked examples, as earlier turns of the chat: {question, response}
    prompt_template: str | None = None  # text around the question; `{question}` is replaced; None: the workload's own
    question_pattern: str | None = None  # regular expression; its first group replaces the question
    answer_pattern: str | None = None  # first group of its last match is the answer; None: the rule of `common.rewards.answers`
    use_chat_template: bool | None = None  # through the tokenizer's own; None: for the workloads in SCHEMAS
    enable_thinking: bool | None = None  # handed to the chat template; None: its own default
    max_prompt_tokens: int | None = Field(None, ge=1)  # longer prompts are left out and counted; None: what the model allows
    when_short: Literal["wrap", "short", "stop"] = (
        "wrap"  # fewer problems left than R: start over, take a short round, or end the run
    )

    @property
    def is_chat(self) -> bool:
        """Prompts go through the chat template."""
        return self.name in SCHEMAS if self.use_chat_template is None else self.use_chat_template

    @property
    def is_generated(self) -> bool:
        """Problems come from reasoning-gym, not from a file."""
        return self.name.startswith(REASONING_GYM)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_name()
        self._check_source()
        for field in ("question_pattern", "answer_pattern"):
            check_pattern(f"workload.{field}", getattr(self, field))
        if self.prompt_template is not None and "{question}" not in self.prompt_template:
            rule = "must contain {question}"
            raise ConfigError(explain("workload.prompt_template", rule, self.prompt_template, "add it where the question goes"))
        for field in ("system_prompt", "enable_thinking", "shots"):
            if getattr(self, field) not in (None, ()) and not self.is_chat:
                rule = "is for chat templates only"
                raise ConfigError(explain(f"workload.{field}", rule, getattr(self, field), "set workload.use_chat_template=true"))
        return self

    def _check_name(self) -> None:
        if self.name not in (*SCHEMAS, JSONL) and not self.is_generated:
            rule = f"must be one of {', '.join(SCHEMAS)}, {JSONL}, {REASONING_GYM}NAME"
            raise ConfigError(explain("workload.name", rule, self.name, "`rolloutpipe workloads` describes them"))

    def _check_source(self) -> None:
        given = {"path": self.path, "dataset": self.dataset}
        if self.is_generated:
            if any(value is not None for value in given.values()):
                raise ConfigError(
                    explain("workload", "path and dataset are for data from files", given, f"{self.name} makes its own")
                )
        elif (self.path is None) == (self.dataset is None):
            remedy = (
                "set workload.path to a file in its schema, or workload.dataset to an id (`rolloutpipe workloads` names both)"
            )
            raise ConfigError(explain("workload", f"exactly one of path and dataset must be set for {self.name}", given, remedy))
        for field in ("fields", "where"):
            if getattr(self, field) and self.is_generated:
                raise ConfigError(explain(f"workload.{field}", "is for data from files", getattr(self, field), "remove it"))
        if self.fields and self.name == JSONL:
            rule = f"is for {', '.join(SCHEMAS)}"
            raise ConfigError(explain("workload.fields", rule, self.fields, "use workload.question_field and answer_field"))
        for field in ("dataset_config", "split"):
            if getattr(self, field) is not None and self.dataset is None:
                raise ConfigError(explain(f"workload.{field}", "is of a data set", getattr(self, field), "set workload.dataset"))
