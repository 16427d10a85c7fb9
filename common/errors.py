"""Every error that RolloutPipe raises on purpose.

    RolloutPipeError
    ├── InputError (ValueError)            bad input of a person or a caller: exit code 2
    │   ├── ConfigError                    a setting breaks a rule
    │   ├── DataError                      a data set row or file breaks a rule
    │   └── UsageError                     the core was called wrongly; nothing has changed
    │       ├── UnknownRequestError        an id that is not where the call needs it
    │       ├── DuplicateRequestError      a request submitted twice
    │       ├── DuplicateGroupError        a group reported twice
    │       └── StaleGroupError            a group of another weight version
    ├── RunError (RuntimeError)            a run broke one of its rules: exit code 1
    │   ├── QueueClosedError               put after the end or after a failure
    │   ├── PublishError                   weights that must not reach, or did not reach, an engine
    │   ├── EngineError                    an engine lost a request
    │   │   └── EngineDiedError            its process is gone: its requests move, at no cost to their retries
    │   ├── TrainerError                   a trainer rank failed
    │   │   └── TrainerDiedError           ranks are gone or stuck: they start again, and the round is replayed from disk
    │   ├── DiskError                      a disk is full, or cannot be written: the run stops, and can be resumed
    │   ├── LogprobGapError                sampler and trainer disagree beyond the limit
    │   └── BooksError                     rule 3: a round's counts do not balance
    └── RoundFinished                      not a fault: nothing more will come this round

Errors cross process borders, so every one takes a single message and pickles. Messages of an
`InputError` come from `explain`: the field as typed, the rule, the value received, the remedy.
"""

import math
from numbers import Real
from operator import index

MAX_COUNT = 2**53  # whole numbers to which floats are exact


class RolloutPipeError(Exception):
    """Base of all."""


class InputError(RolloutPipeError, ValueError):
    """Bad input; the message is one line that ends with the remedy."""


class ConfigError(InputError):
    """A setting breaks a rule."""


class DataError(InputError):
    """A data set, row or model file breaks a rule."""


class UsageError(InputError):
    """The core was called wrongly; the call has changed nothing."""


class UnknownRequestError(UsageError):
    """No request with this id is where the call needs it (in flight, unless the message says otherwise)."""


class DuplicateRequestError(UsageError):
    """A request id was submitted twice."""


class DuplicateGroupError(UsageError):
    """A group was reported a second time (rule 10: no group is trained twice)."""


class StaleGroupError(UsageError):
    """A group carries another weight version than its round (rule 1)."""


class RunError(RolloutPipeError, RuntimeError):
    """A run cannot go on."""


class QueueClosedError(RunError):
    """A group was put after the round's end or after a failure."""


class PublishError(RunError):
    """Weights failed a check before or after they reached an engine (rule 6)."""


class EngineError(RunError):
    """An engine lost a request or died."""


class EngineDiedError(EngineError):
    """The engine that had the request is gone: not the request's doing, so it is no try of it."""


class TrainerError(RunError):
    """A trainer rank failed or died."""


class TrainerDiedError(TrainerError):
    """Ranks are gone, or stuck beyond a deadline: a restart and a replay may go on where a fault would repeat itself."""


class DiskError(RunError):
    """A file of the run cannot be written; what is on disk can be resumed."""


class LogprobGapError(RunError):
    """Sampler and trainer log-probs differ by more than the configured limit."""


class BooksError(RunError):
    """The counts of a round do not balance (rule 3)."""


class RoundFinished(RolloutPipeError):
    """Every group of the round was taken or dropped; raised again at each later call."""


def explain(field: str, rule: str, value: object, remedy: str) -> str:
    """One line for an `InputError`: `field: rule, got value; remedy`."""
    return f"{field}: {rule}, got {value!r}; {remedy}"


def is_finite(value: object) -> bool:
    """Whether it is a real number that a float can hold."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def check_count(field: str, value: object, minimum: int | None, remedy: str, *, maximum: int | None = None) -> None:
    """Raise UsageError unless `value` is a whole number (of any integer type) from `minimum` to `maximum`."""
    try:
        number = index(value)  # type: ignore[arg-type]  # what this finds out
    except TypeError:
        raise UsageError(explain(field, "must be a whole number", value, remedy)) from None
    if minimum is not None and number < minimum:
        raise UsageError(explain(field, f"must be {minimum} or more", value, remedy))
    if maximum is not None and number > maximum:
        raise UsageError(explain(field, f"must be {maximum} or less", value, remedy))
