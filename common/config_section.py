"""The base of all sections of a configuration."""

import re

from pydantic import BaseModel, ConfigDict

from common.errors import ConfigError, explain


class Section(BaseModel):
    """Base of all sections: frozen; unknown keys, infinity and NaN refused (a deadline that never comes is none)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True)


def check_pattern(field: str, pattern: str | None, *, groups: int = 1) -> None:
    """Raises ConfigError unless `pattern` is None or a regular expression with so many groups at least."""
    try:
        found = groups if pattern is None else re.compile(pattern).groups
    except re.error as error:
        raise ConfigError(explain(field, "must be a regular expression", pattern, str(error))) from None
    if found < groups:
        raise ConfigError(explain(field, "must have a group", pattern, "put parentheses around what is wanted"))
