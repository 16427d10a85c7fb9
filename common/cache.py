"""Where models that were made once are kept."""

import os
from pathlib import Path


def models_dir() -> Path:
    """`models` in ROLLOUTPIPE_CACHE, by default in `~/.cache/rolloutpipe`; it need not exist."""
    return Path(os.environ.get("ROLLOUTPIPE_CACHE") or Path.home() / ".cache" / "rolloutpipe") / "models"
