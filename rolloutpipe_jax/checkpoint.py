"""Trainer state on disk through Orbax: written in the background, read onto any mesh.

    DIRECTORY/0/params/...     weights, float32
    DIRECTORY/0/moments/...    the optimizer's state, its step count included

What a save has captured stays as it was although the next step reuses ("donates") the memory of weights and moments: an
accelerator's arrays are copied to the host, and of an array on the CPU, which Orbax views in place, JAX donates nothing as
long as the view lives. So on the CPU a step during a save takes new memory, and no byte is copied for the save itself.
The trainer has no random state: it uses no dropout, and the order of groups comes from outside.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import absl.logging
import jax
import orbax.checkpoint as ocp
from jax import Array, ShapeDtypeStruct

from common.errors import DataError, explain
from rolloutpipe_jax.optimizer import Params

PARAMS, MOMENTS = "params", "moments"
_STEP = 0  # a directory holds one state; which ones are kept is the run's business
_RULE = "must hold the trainer state of this model"

# Orbax would cut what several devices hold alike into a part for each of them to write: programs to compile, at the first save
# of a run that compiles nothing else any more. One of the devices writes it instead.
_verbosity = absl.logging.get_verbosity()
absl.logging.set_verbosity(absl.logging.ERROR)  # Orbax warns of the override
ocp.type_handlers.register_type_handler(jax.Array, ocp.type_handlers.ArrayHandler(use_replica_parallel=False), override=True)
absl.logging.set_verbosity(_verbosity)


class Checkpoint:
    """One save at a time; `wait` makes it durable."""

    def __init__(self) -> None:
        self._manager: ocp.CheckpointManager | None = None

    def save(self, directory: Path, params: Params, moments: Any | None = None) -> None:
        """Capture the state, then write it in the background. Waits for an earlier save."""
        self.wait()
        items = {PARAMS: ocp.args.StandardSave(params)}
        if moments is not None:
            items[MOMENTS] = ocp.args.StandardSave(moments)
        options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True, create=True)
        self._manager = ocp.CheckpointManager(directory.absolute(), options=options, item_names=tuple(items))
        self._manager.save(_STEP, args=ocp.args.Composite(**items))

    def wait(self) -> None:
        """Return when the last save is on disk. Raises what it failed with, once."""
        manager, self._manager = self._manager, None
        if manager is not None:
            try:
                manager.wait_until_finished()
            finally:
                manager.close()

    def close(self) -> None:
        """As `wait`."""
        self.wait()


def read(directory: Path, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Items of a checkpoint by name, each laid out as its pytree of ShapeDtypeStructs says. Raises DataError."""
    options = ocp.CheckpointManagerOptions(create=False)
    try:
        with ocp.CheckpointManager(directory.absolute(), options=options, item_names=tuple(wanted)) as manager:
            items = {name: ocp.args.StandardRestore(tree) for name, tree in wanted.items()}
            restored = manager.restore(_STEP, args=ocp.args.Composite(**items))
        return {name: restored[name] for name in wanted}
    except Exception as error:  # Orbax raises a bare Exception where a file is torn
        raise _refusal(directory, _RULE, error) from error


def read_tensor(directory: Path, item: str, name: str, wanted: ShapeDtypeStruct) -> Array:
    """One tensor of a flat item, and nothing else of it. Raises DataError."""
    tree = {name: wanted}
    options = ocp.args.PyTreeRestore(tree, ocp.checkpoint_utils.construct_restore_args(tree), partial_restore=True)
    try:
        found: Array = ocp.PyTreeCheckpointHandler().restore(_item_dir(directory, item), args=options)[name]
    except Exception as error:  # Orbax raises a bare Exception where a file is torn
        raise _refusal(directory, f"must hold a readable tensor {item}/{name}", error) from error
    return found


def check(directory: Path, wanted: Mapping[str, Any]) -> None:
    """Raises DataError unless the items hold tensors of these names and shapes; reads no tensor."""
    for item, tree in wanted.items():
        found, expected = stored(directory, item), _leaves(tree)
        for name in sorted(expected.keys() ^ found.keys()):
            verb = "must hold" if name in expected else "must not hold"
            raise _refusal(directory, f"{verb} tensor {item}/{name}, to be the state of this model")
        for name, leaf in expected.items():
            if found[name].shape != leaf.shape:
                rule = f"must hold tensor {item}/{name} in this model's shape {leaf.shape} (here it is {found[name].shape})"
                raise _refusal(directory, rule)


def holds(directory: Path, item: str) -> bool:
    """Whether `directory` looks like a checkpoint with this item."""
    return _item_dir(directory, item).is_dir()


def stored(directory: Path, item: str) -> dict[str, ShapeDtypeStruct]:
    """Shapes and dtypes of an item's tensors by name, `.` between the parts. Raises DataError."""
    try:
        if not holds(directory, item):
            raise FileNotFoundError(f"there is no {_STEP}/{item} in it")
        metadata = ocp.StandardCheckpointHandler().metadata(_item_dir(directory, item))
        leaves = _leaves(metadata.tree)
        return {name: ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in leaves.items() if hasattr(leaf, "shape")}
    except Exception as error:  # whatever a broken file leads to
        raise _refusal(directory, _RULE, error) from error


def _item_dir(directory: Path, item: str) -> Path:
    return directory.absolute() / str(_STEP) / item


def _leaves(tree: Any) -> dict[str, Any]:
    paths, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}


def _refusal(directory: Path, rule: str, error: Exception | None = None) -> DataError:
    told = "" if error is None else " ".join(str(error).split()).partition(" See full TensorStore")[0]
    cause = f" ({told[:200]})" if told else ""
    where = directory.parent if directory.name == "trainer" else directory
    remedy = f"move {where} away, then resume again: the one before it counts; or take the trainer and model that wrote it{cause}"
    return DataError(explain("checkpoint", rule, str(directory), remedy))
