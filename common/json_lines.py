"""Files of figures, one JSON object a line: what cannot be read of them must not keep a run from going on."""

import json
import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

Made = TypeVar("Made")


def read_lines(path: Path, make: Callable[[dict[str, Any]], Made]) -> Iterator[Made]:
    """What `make` makes of each line; none where there is no file. A torn last line, which a killed run may leave, is skipped.

    So is a line that is no JSON, or of which `make` raises KeyError, OverflowError, TypeError or ValueError. How many those
    are is told once.
    """
    num_broken = 0
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                made = make(json.loads(line))
            except (KeyError, OverflowError, TypeError, ValueError, RecursionError):
                num_broken += 1
                continue
            yield made
    if num_broken:
        _tell(path, num_broken)


@cache
def _tell(path: Path, num_broken: int) -> None:
    logging.getLogger("rolloutpipe").warning("%s: lines that cannot be read, and are left out: %d", path, num_broken)
