"""`rolloutpipe convert`: weights between a Hugging Face directory and an Orbax directory."""

import importlib
from pathlib import Path
from typing import Any

from rich.console import Console

from common.errors import ConfigError, explain

DTYPES = ("float32", "bfloat16")


def convert(source: Path, target: Path, console: Console, *, dtype: str | None, like: Path | None) -> dict[str, Any]:
    """Returns source, target, direction, tensors, params and dtype. Raises ConfigError and DataError; nothing is then written."""
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(explain("--dtype", f"must be {' or '.join(DTYPES)}", dtype, "leave it out to keep what is stored"))
    importlib.import_module("rolloutpipe_jax.room").check_packages("convert", str(source))
    result: dict[str, Any] = importlib.import_module("rolloutpipe_jax.convert").convert(source, target, dtype=dtype, like=like)
    said = "{target} ({direction}): {tensors} tensors, {params:,} parameters, {dtype}".format(**result)
    console.print(f"converted {source} to {said}", highlight=False, soft_wrap=True, markup=False)
    return result
