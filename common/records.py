"""Everything that crosses a border between two parts, as frozen dataclasses of plain values.

The flow, top to bottom: a `Request` is admitted and sampled under a `Sampling`; the engine answers
with a `Response`; verifier and advantage make a `Sample` of it; the K samples of a prompt are a
`Group`; a `Dispatch` hands groups to the trainer; an update ends in an `UpdateResult`.

Token ids and log-probs are tuples, not tensors: either trainer converts once, at its own edge.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from common.errors import ConfigError, explain


class FinishReason(StrEnum):
    """Why an engine stopped a response."""

    STOP = "stop"  # the model ended it
    LENGTH = "length"  # max_tokens or the model's context was reached
    ABORT = "abort"  # the caller ended it


class Verdict(StrEnum):
    """What the verifier said. Only ERROR means that there is no reward (rule 9)."""

    OK = "ok"  # right: reward 1.0 or more
    WRONG = "wrong"  # an answer was found and is not right; partial credit is kept
    NO_ANSWER = "no_answer"  # no answer was found
    TIMEOUT = "timeout"  # the answer made the verifier run out of time or memory: the model's doing, reward 0
    ERROR = "error"  # the verifier failed: no reward, out of the baseline


class Reason(StrEnum):
    """Why a group is not trained."""

    FILTERED = "filtered"  # complete, but of no use to the update (for example zero reward spread)
    FAILED = "failed"  # a request failed beyond its retries, or too few members have a reward
    TIMED_OUT = "timed_out"  # the group passed its deadline
    CANCELLED = "cancelled"  # the caller took it back


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sampling job for one member of a group."""

    request_id: Hashable
    group_id: Hashable
    order: int  # submission order of the group within the round
    member: int = 0  # 0 .. K-1
    prompt_ids: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample. What is trained needs the log-probs of the distribution sampled: no truncation there (design section 3)."""

    temperature: float = 1.0
    max_tokens: int = 256  # tokens of a response, the stop token included
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    is_trained: bool = True  # False: for evaluation alone, so temperature 0 (greedy) and truncation are allowed

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(explain("sampling.max_tokens", "must be at least 1", self.max_tokens, "raise it"))
        if self.is_trained:
            self._check_trained()

    def _check_trained(self) -> None:
        if not self.temperature > 0:
            raise ConfigError(
                explain("sampling.temperature", "must be above 0", self.temperature, "use 1.0 for the model's own distribution")
            )
        for name, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
            value = getattr(self, name)
            if value != neutral:
                rule = f"must be {neutral}: a truncated sampler's log-probs are not the policy's"
                raise ConfigError(explain(f"sampling.{name}", rule, value, "remove it, or lower sampling.temperature instead"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds since the start of the run; 0.0 where not known."""

    admitted_s: float = 0.0
    finished_s: float = 0.0
    scored_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What an engine returned for one request; `token_ids` and `logprobs` have equal length."""

    request_id: Hashable
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    version_start: int  # weight version when the request was dispatched
    version_end: int  # weight version of its last token
    times: Times = Times()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One scored member of a group."""

    request: Request
    response: Response
    reward: float | None  # None: the verifier failed, and the member is out of baseline and denominators
    status: Verdict
    advantage: float = 0.0
    text: str = ""  # for people and verifiers; never trained (rule 8)
    reason: str = ""  # the verifier's one line
    extracted: str = ""  # the answer that it found
    parts: tuple[tuple[str, float], ...] = ()  # of a summed reward, by name, before their weights

    @property
    def num_tokens(self) -> int:
        """Tokens of the response."""
        return len(self.response.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The K responses of one prompt, materialized: advantages are fixed."""

    group_id: Hashable
    order: int
    weight_version: int
    samples: tuple[Sample, ...]
    filtered: Reason | None = None

    @property
    def num_tokens(self) -> int:
        """Response tokens of all members."""
        return sum(sample.num_tokens for sample in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Groups for the trainer: one group, or none where it only closes an update that fell short."""

    groups: tuple[Any, ...]  # any object with group_id and weight_version
    update_index: int  # within the round, from 0
    is_last_of_update: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """One optimizer step."""

    update_index: int  # within the round, from 0
    optimizer_step: int  # optimizer steps taken since the start of training, this one included
    loss: float
    grad_norm: float  # before clipping
    num_groups: int
    num_tokens: int  # response tokens that carried a loss
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySnapshot:
    """Counts of an admission policy at one moment."""

    frontier: tuple[Hashable, ...]  # group ids, lowest order first
    num_waiting: int
    num_in_flight: int
    num_groups: int  # groups not yet served completely


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """Counts of a complete-group queue at one moment; `expected = waiting + taken + dropped + missing`."""

    num_expected: int  # R plus refills
    num_waiting: int  # put, not yet taken
    num_taken: int
    num_dropped: int  # of every reason
    num_missing: int  # not yet reported
    update_index: int  # of the next dispatch
    is_closed: bool  # nothing more may be put
    dropped: Mapping[Reason, int] = field(default_factory=dict)  # the dropped ones by reason


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """What a policy may observe; only adaptive policies use it. Rates are per second, 0.0 while unknown."""

    now_s: float
    trainer_backlog_groups: int  # complete groups that wait for the trainer
    trainer_groups_per_s: float
    engine_tokens_per_s: float
    engine_running: int
    engine_capacity: int
    trainer_tokens_per_s: float = 0.0  # response tokens of accumulated groups, over the seconds of accumulating them
    trainer_update_s: float = 0.0  # mean seconds of an optimizer step
