"""Settings of the verifier: what a response is scored by, and the limits of a call."""

from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from common.config_section import Section, check_pattern
from common.errors import ConfigError, explain

OWN_LIMIT_S = 1.5  # the shipped checkers: 99 of 100 calls take less than 0.1 s
FUNCTION_LIMIT_S = 10.0  # a user's function


class RewardWeights(Section):
    """The reward is the sum of weight times part. The verdict (ok, wrong ...) is that of the answer alone."""

    answer: float = 1.0  # 1 for a right answer; of a function or remote verifier, what it returned
    format: float = 0.0  # 1 where the response keeps the format (`format_pattern`), else 0
    length: float = 0.0  # 0, falling to -1 for long responses (`length`)

    @property
    def is_answer_alone(self) -> bool:
        """Nothing is summed."""
        return self.answer == 1.0 and self.format == 0.0 and self.length == 0.0


class LengthConfig(Section):
    """Soft punishment of long responses (DAPO, arXiv 2503.14476, equation 13), in tokens.

    0 up to `limit - buffer`, then falling linearly to -1 at `limit`, and -1 beyond.
    """

    limit: int = Field(ge=1)
    buffer: int = Field(ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.buffer > self.limit:
            rule = f"must be at most rewards.length.limit ({self.limit})"
            raise ConfigError(explain("rewards.length.buffer", rule, self.buffer, "lower it"))
        return self


class RemoteConfig(Section):
    """A verifier behind HTTP: the JSON contract is in `common.rewards.remote`."""

    url: str
    timeout_s: float = Field(30.0, gt=0)  # of one response with all its tries
    retries: int = Field(2, ge=0)  # after no connection, 429 and 5xx; a retry waits longer each time
    max_in_flight: int = Field(32, ge=1)  # calls at one time
    max_reply_kb: int = Field(256, ge=1)  # a larger reply is an error
    token_variable: str | None = None  # environment variable with a bearer token

    @model_validator(mode="after")
    def _check(self) -> Self:
        example = "for example http://127.0.0.1:8000/score"
        try:
            parts = urlsplit(self.url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # of a port or a bracket
            is_address = False
        if not is_address:
            raise ConfigError(explain("rewards.remote.url", "must be an http or https address", self.url, example))
        if "@" in parts.netloc:
            rule, shown = "must hold no name or password", self.url.replace(parts.netloc, "...")
            raise ConfigError(explain("rewards.remote.url", rule, shown, "put a token into token_variable's variable"))
        return self


class RewardConfig(Section):
    """How responses are scored."""

    # Dotted path `package.module:function` of (task, response) -> reward or (reward, reason); None: the workload's own checker
    function: str | None = None
    remote: RemoteConfig | None = None  # instead of both
    weights: RewardWeights = RewardWeights()
    # The whole response must match it, a dot matches line breaks too; None: no open think block, and after it a complete box
    format_pattern: str | None = None
    length: LengthConfig | None = None
    workers: int = Field(1, ge=1)  # killable verifier processes that answer side by side
    timeout_s: float | None = Field(None, gt=0)  # wall clock of one call; None: OWN_LIMIT_S, or FUNCTION_LIMIT_S for a function
    memory_mb: int = Field(2048, ge=64)  # address space of a worker beyond that of its start; an answer that needs more gets 0

    @property
    def needs_gold(self) -> bool:
        """The shipped checkers do; what a function or a remote verifier needs is its own affair."""
        return self.function is None and self.remote is None

    @property
    def limit_s(self) -> float:
        """Seconds of one call in a worker."""
        if self.timeout_s is not None:
            return self.timeout_s
        return OWN_LIMIT_S if self.function is None else FUNCTION_LIMIT_S

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_pattern("rewards.format_pattern", self.format_pattern, groups=0)
        if self.function is not None and self.remote is not None:
            raise ConfigError(explain("rewards", "function and remote exclude each other", self.function, "remove one"))
        if (self.length is None) != (self.weights.length == 0.0):
            rule = "weights.length and length are set together"
            given = {"weights.length": self.weights.length, "length": self.length}
            raise ConfigError(explain("rewards", rule, given, "set rewards.length={limit: ..., buffer: ...} and its weight"))
        return self
