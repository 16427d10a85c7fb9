"""Options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

from common.commands.json_file import writable

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", callback=writable, help="Write the result as JSON.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="key=value", help="Settings that replace the file's: rounds=4 training.lr=1e-4"),
]
