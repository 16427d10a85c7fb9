"""How much a run is certain to write, and whether the disks have room for it: asked before anything starts."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

from common.config import Config
from common.disk import existing, free_bytes, size
from common.errors import ConfigError, explain
from common.rundir import RunDir, finished_checkpoints
from common.spool import TensorLayout

_STATE_BYTES = 12  # a parameter in a checkpoint: the weight and two moments, float32
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNeeds:
    """Bytes, apart from samples and logs."""

    checkpoint: int  # one
    num_checkpoints: int  # that will be on disk at one time and are not yet: `checkpoint.keep`, and the one being written
    spool: int  # weights on their way to the engines: the last version, and the one being exported
    model: int  # final weights


def disk_needs(config: Config, layout: dict[str, TensorLayout], run_dir: RunDir | None = None) -> DiskNeeds:
    """Of a run of this model; with `run_dir`, what a resume adds to what is there."""
    params = sum(prod(part.shape) for part in layout.values())
    weights = sum(prod(part.shape) * _DTYPE_BYTES.get(part.dtype, 4) for part in layout.values())
    every, there = config.checkpoint.every, 0 if run_dir is None else len(finished_checkpoints(run_dir))
    made = 1 if every is None else min(config.checkpoint.keep + 1, -(-config.rounds // every))
    num_checkpoints = max(made - there, 1)
    return DiskNeeds(checkpoint=_STATE_BYTES * params, num_checkpoints=num_checkpoints, spool=2 * weights, model=weights)


def check_space(needs: DiskNeeds, run_dir: RunDir, spool_root: Path | None = None) -> None:
    """Raises ConfigError, with the numbers, where a disk has less room. `spool_root` None: the spool is in the run directory."""
    spool_root = spool_root or run_dir.path
    count = needs.num_checkpoints
    parts = [
        (f"{count} checkpoints" if count > 1 else "checkpoint", count * needs.checkpoint, run_dir.path),
        ("model", needs.model, run_dir.path),
        ("spool", needs.spool, spool_root),
    ]
    for field, place in (("run_dir", run_dir.path), ("cluster.spool_dir", spool_root)):
        here = [(name, num_bytes) for name, num_bytes, where in parts if _device(where) == _device(place)]
        needed, free = sum(num_bytes for _, num_bytes in here), free_bytes(place)
        if free is not None and needed > free:
            rule = f"must have {size(needed)} free ({', '.join(f'{name} {size(num_bytes)}' for name, num_bytes in here)})"
            remedy = f"make room on the disk of {existing(place)}, set {field} to another disk, or lower checkpoint.keep"
            raise ConfigError(explain(field, rule, f"{size(free)} free", remedy))


def _device(path: Path) -> int:
    return existing(path).stat().st_dev
