"""Settings of an evaluation: of a finished model (`rolloutpipe eval`), and during a training (`every`)."""

import re
from typing import Any, Self

from pydantic import Field, StrictInt, ValidationError, ValidatorFunctionWrapHandler, field_validator, model_validator

from common.config_section import Section
from common.config_workload import WorkloadConfig
from common.errors import ConfigError, explain
from common.records import Sampling

_OWN_NAME = re.compile(r"(?<![\w.'\"])workload(?=[.:])")  # of the section in a message


def as_typed(message: str) -> str:
    """A message of a workload's section that stands in `eval`."""
    return _OWN_NAME.sub("eval.workload", message)


class EvalConfig(Section):
    """What is asked of the model, how often, and what is reported."""

    every: StrictInt | None = Field(None, ge=1)  # rounds between evaluations during a training; None: none there
    workload: WorkloadConfig | None = None  # None: the run's own; of it the held-out part, where it has one
    max_problems: StrictInt | None = Field(None, ge=1)  # the first so many of a seeded order; None: all
    samples: StrictInt = Field(1, ge=1, le=100_000)  # responses per problem
    pass_at: tuple[StrictInt, ...] = (1,)  # the k of pass@k, each at most `samples`
    seed: StrictInt = 0
    temperature: float | None = Field(None, ge=0)  # None: the run's; 0: greedy
    top_p: float = Field(1.0, gt=0, le=1)  # nothing is trained on these responses, so truncation is allowed
    top_k: StrictInt = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)
    max_tokens: StrictInt | None = Field(None, ge=1)  # None: the run's

    def sampling(self, training: Sampling) -> Sampling:
        """How the responses are sampled; what is not set here is that of the training."""
        return Sampling(
            temperature=training.temperature if self.temperature is None else self.temperature,
            max_tokens=training.max_tokens if self.max_tokens is None else self.max_tokens,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop_token_ids=training.stop_token_ids,
            is_trained=False,
        )

    @field_validator("workload", mode="wrap")
    @classmethod
    def _check_workload(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        """What the section says of itself as `workload`, it says here of `eval.workload`."""
        try:
            return validate(value)
        except ValidationError as error:
            for fault in error.errors():
                if isinstance(cause := fault.get("ctx", {}).get("error"), ConfigError):
                    raise ConfigError(as_typed(str(cause))) from None
            raise

    @model_validator(mode="after")
    def _check(self) -> Self:
        for k in self.pass_at:
            if not 1 <= k <= self.samples:
                rule = f"must be between 1 and eval.samples ({self.samples})"
                raise ConfigError(explain("eval.pass_at", rule, k, "raise eval.samples"))
        if self.temperature == 0 and self.samples > 1:
            rule = "must be 1 with temperature 0, which gives the same response each time"
            raise ConfigError(explain("eval.samples", rule, self.samples, "raise eval.temperature"))
        return self
