"""There is always room."""

from pathlib import Path

from common.config import Config


def check_room(config: Config, model_dir: Path | None = None) -> None:
    """Nothing to check."""


def has_gpus() -> bool:
    """None."""
    return False
