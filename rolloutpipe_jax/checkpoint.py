"""Trainer state on disk through Orbax: written in the background, read onto any mesh.

    DIRECTORY/0/params/...     weights, float32
    DIRECTORY/0/moments/...    the optimizer's state, its step count included

The trainer has no random state: it uses no dropout, and the order of groups comes from outside.
"""

from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from common.errors import DataError, explain
from rolloutpipe_jax.optimizer import Params

PARAMS, MOMENTS = "params", "moments"
_STEP = 0  # a directory holds one state; which ones are kept is the run's business


class Checkpoint:
    """One save at a time; `wait` makes it durable."""

    def __init__(self) -> None:
        self._manager: ocp.CheckpointManager | None = None

    def save(self, directory: Path, params: Params, moments: Any | None = None) -> None:
        """Copy the state off the devices, then write it in the background. Waits for an earlier save."""
        self.wait()
        items = {PARAMS: ocp.args.StandardSave(params)}
        if moments is not None:
            items[MOMENTS] = ocp.args.StandardSave(moments)
        self._manager = _manager(directory, tuple(items))
        self._manager.save(_STEP, args=ocp.args.Composite(**items))

    def wait(self) -> None:
        """Return when the last save is on disk. Raises what it failed with, once."""
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.wait_until_finished()
            manager.close()

    def close(self) -> None:
        """As `wait`."""
        self.wait()

    @staticmethod
    def restore(directory: Path, params: Any, moments: Any) -> tuple[Params, Any]:
        """The state of `directory`, laid out as `params` and `moments` (ShapeDtypeStructs) say. Raises DataError."""
        found = read(directory, {PARAMS: params, MOMENTS: moments})
        return found[PARAMS], found[MOMENTS]


def read(directory: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Items of a checkpoint by name, each as its pytree of ShapeDtypeStructs says. Raises DataError."""
    try:
        with _manager(directory, tuple(wanted)) as manager:
            restored = manager.restore(
                _STEP, args=ocp.args.Composite(**{name: ocp.args.StandardRestore(tree) for name, tree in wanted.items()})
            )
        return {name: restored[name] for name in wanted}
    except (ValueError, KeyError, OSError, TypeError) as error:
        remedy = f"resume from an older checkpoint ({' '.join(str(error).split())[:200]})"
        raise DataError(explain("checkpoint", "must hold the trainer state of this model", str(directory), remedy)) from error


def _manager(directory: Path, items: tuple[str, ...]) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True, create=True)
    return ocp.CheckpointManager(directory.absolute(), options=options, item_names=items)
