"""The driver's part of a trainer checkpoint: its name, which it gets when all of it is there, and its counters."""

from dataclasses import dataclass
from pathlib import Path

from common.durable import sync_directory, sync_file
from common.errors import MAX_COUNT, DataError, explain
from common.safe_files import read_json, whole_number

STATE_FILE = "state.json"
_MAX_RANKS = 2**16  # that a checkpoint may name


@dataclass(frozen=True, slots=True)
class OpenSave:
    """A save whose state the ranks hold, but may not have written yet."""

    directory: Path
    partial: Path
    state: str


def finish_save(save: OpenSave) -> None:
    """Give a save its name, once all of it is on the disk for good."""
    state = save.partial / STATE_FILE
    state.write_text(save.state, encoding="utf-8")
    sync_file(state)
    sync_directory(save.partial)
    save.partial.rename(save.directory)
    sync_directory(save.directory.parent)


def read_trainer_state(directory: Path) -> dict[str, int]:
    """`optimizer_step` and `num_ranks` of a save. Raises DataError."""
    try:
        state = read_json(directory / STATE_FILE)
        steps = whole_number(state, "optimizer_step", 0, MAX_COUNT)
        return {"optimizer_step": steps, "num_ranks": whole_number(state, "num_ranks", 1, _MAX_RANKS)}
    except (OSError, ValueError) as error:
        cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
        where = directory.parent if directory.name == "trainer" else directory
        remedy = f"move {where} away, then resume again: the one before it counts ({cause})"
        raise DataError(explain("checkpoint", "must be a directory that save wrote", str(directory), remedy)) from error
