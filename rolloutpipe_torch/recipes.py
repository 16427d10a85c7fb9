"""`model.recipe`: models that are made once and kept in the cache, by warming one up here or by fetching one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.cache import models_dir
from common.errors import ConfigError, explain

SMOLLM2 = "smollm2"


def find_or_make(recipe: str, options: Mapping[str, Any], report: Callable[[str], None]) -> Path:
    """The recipe's model directory. Raises ConfigError for a bad option, RunError where a model cannot be fetched."""
    if recipe == SMOLLM2:
        from rolloutpipe_torch.pretrained import fetch

        if options:
            raise ConfigError(explain("model.recipe_options", "must be empty for smollm2", dict(options), "remove them"))
        directory = models_dir() / "smollm2-135m-instruct"
        fetch(directory, report)
        return directory
    from rolloutpipe_torch.warmup import find_or_build

    return find_or_build(recipe, options, report)
