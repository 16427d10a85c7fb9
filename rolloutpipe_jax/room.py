"""Whether the trainer fits this machine, answered before anything starts. No JAX is imported: it would take the devices."""

from importlib.util import find_spec
from pathlib import Path

from common.config import Config
from common.errors import ConfigError, explain
from common.room import check_at_most, check_state_memory
from rolloutpipe_jax.shape import read_shape

_PACKAGES = ("jax", "flax", "optax", "orbax")
MAX_PLAYED = 64  # virtual devices: enough for any mesh that one would try on a CPU
_DEVICES = Path("/dev")
_TPU_DEVICES = ("/dev/accel0", "/dev/vfio/0")


def check_room(config: Config, model_dir: Path | None = None) -> None:
    """Raises ConfigError where packages are missing, or devices or memory do not allow the mesh; heads and memory need
    `model_dir`. Of a run on a cluster, whose nodes have them, only the heads are checked here.
    """
    check_packages("trainer", config.trainer)
    if model_dir is not None:
        check_heads(model_dir, config.training.tensor_parallel)
    if config.cluster.is_local:
        _check_machine(config, model_dir)


def _check_machine(config: Config, model_dir: Path | None) -> None:
    if not has_tpus():
        _check_devices(config)
    if config.training.attention == "splash" and not has_tpus():
        raise ConfigError(explain("training.attention", "must be xla where there is no TPU", "splash", "say xla"))
    # The memory of TPUs and GPUs is not known here; `compile-check` tells of a TPU's.
    if model_dir is not None and not has_tpus() and not num_gpus():
        check_state_memory(config, model_dir, num_readers=0)


def _check_devices(config: Config) -> None:
    ranks, gpus = config.training.ranks, num_gpus()
    if gpus:
        engines = config.rollout.replicas * config.rollout.tensor_parallel
        check_at_most("training.ranks", ranks, gpus - engines, f"GPUs that {engines} for rollout leave of {gpus}")
    else:
        check_at_most("training.ranks", ranks, MAX_PLAYED, f"{MAX_PLAYED} devices that the CPU plays")


def check_packages(field: str, value: str) -> None:
    """Raises ConfigError that names the extra where a package of this room is missing; `field` is what asked for it."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        rule = f"needs packages that are not installed ({', '.join(missing)})"
        raise ConfigError(explain(field, rule, value, "pip install 'rolloutpipe[jax]'"))


def check_heads(model_dir: Path, tensor_parallel: int) -> None:
    """Raises ConfigError where heads cannot be shared out evenly."""
    shape = read_shape(model_dir)
    for what, heads in (("heads", shape.num_heads), ("key and value heads", shape.num_kv_heads)):
        if heads % tensor_parallel:
            rule = f"must divide the model's {heads} {what}"
            raise ConfigError(explain("training.tensor_parallel", rule, tensor_parallel, "use a divisor, such as 1"))


def has_tpus() -> bool:
    """Whether this machine has a TPU."""
    return any(Path(device).exists() for device in _TPU_DEVICES)


def num_gpus() -> int:
    """NVIDIA GPUs of this machine; the process checks what JAX can use of them."""
    return len(list(_DEVICES.glob("nvidia[0-9]*")))
