"""`--schedules serial,cgp,fgd`, as several commands take it."""

from typing import get_args

from common.config import Schedule
from common.errors import ConfigError, explain


def parse_schedules(text: str | None) -> list[str]:
    """All where nothing is given (None). Raises ConfigError for an unknown or repeated name."""
    known = get_args(Schedule)
    names = list(known) if text is None else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(explain("--schedules", f"must be some of {','.join(known)}", name, "separate them with commas"))
    if not names or len(set(names)) != len(names):
        raise ConfigError(explain("--schedules", "must name each schedule once", text, "for example serial,cgp,fgd"))
    return names
