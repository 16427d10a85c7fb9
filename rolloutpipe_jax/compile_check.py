"""Compiles the train step for TPUs that are not there, and reports what it needs on one chip.

Run as a process of its own, with a `Setup` in words as JSON on stdin and a `Footprint` as JSON on stdout: the TPU compiler
writes to stderr as it likes, ends the process where it finds a fault in itself, and cannot be interrupted.
"""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict
from math import prod
from typing import Any

from common.config import TrainingConfig
from common.errors import ConfigError, RolloutPipeError, RunError, explain
from common.grpo import LossRules
from rolloutpipe_jax.memory import Footprint, Program, Setup
from rolloutpipe_jax.shape import named_shape
from rolloutpipe_jax.topology import parse_topology

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # the only devices of this process
    "TPU_SKIP_MDS_QUERY": "1",  # libtpu would ask a cloud's metadata server which TPU this machine has
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # its lock guards devices, and no device is opened
}
# The compiler counts arguments among the temporaries here: the figure is all that the program needs.
_TOO_LARGE = re.compile(r"CompileTimeHbmOom.*?\(([\d.]+)([KMG])\) exceeds available HBM", re.DOTALL)
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# The sizes of a step do not depend on their values.
_TRAINING = TrainingConfig(max_grad_norm=1.0, weight_decay=0.1)


def footprint(setup: Setup) -> Footprint:
    """Compile in a process of its own, for a minute or more. Raises RunError where the compiler fails, or dies."""
    command = [sys.executable, "-m", "rolloutpipe_jax.compile_check"]
    environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    words = json.dumps({**asdict(setup), "topology": setup.topology.name, "shape": None})
    done = subprocess.run(command, input=words, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        last = " / ".join(lines[-3:]) or "it wrote nothing"
        raise RunError(f"compile-check: the compiler's process ended with {done.returncode}: {last}")
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise ConfigError(answer["refused"])
    if "error" in answer:
        raise RunError(f"compile-check: {answer['error']}")
    accumulate, step = Program(**answer.pop("accumulate")), Program(**answer.pop("step"))
    return Footprint(**answer, accumulate=accumulate, step=step)


def compile_here(setup: Setup) -> Footprint:
    """Compile in this process, which must have been started for it. Raises ConfigError and RunError."""
    from rolloutpipe_jax.batch import Rung
    from rolloutpipe_jax.model import skeleton
    from rolloutpipe_jax.optimizer import adamw
    from rolloutpipe_jax.parallelize import compute_on, make_mesh
    from rolloutpipe_jax.programs import Programs

    mesh = make_mesh(setup.fsdp, setup.tp, _devices(setup))
    programs = Programs(
        skeleton(setup.shape),
        mesh,
        compute_on(mesh, setup.attention, remat=setup.remat),
        LossRules(kind=setup.loss),
        optimizer=adamw(_TRAINING),
        dtype=setup.dtype,
        max_norm=_TRAINING.max_grad_norm,
    )
    rung = Rung(setup.rows, setup.seq_len)
    parameters, moments = _bytes_on_a_chip(programs.params()), _bytes_on_a_chip(programs.moments())
    batch = _bytes_on_a_chip(programs.batch(rung))
    return Footprint(
        parameters=parameters,
        gradient_sums=parameters,
        moments=moments,
        batch=batch,
        accumulate=_compile(programs, "accumulate", rung, 2 * parameters + batch),
        step=_compile(programs, "step", None, 2 * parameters + moments),
    )


def _devices(setup: Setup) -> Any:
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    try:
        devices = topologies.get_topology_desc(topology_name=setup.topology.name, platform="tpu").devices
    except JaxRuntimeError as error:
        rule = f"must be known to the TPU compiler ({_first_line(error)})"
        raise ConfigError(explain("--topology", rule, setup.topology.name, "use a larger libtpu, or another topology")) from error
    assert len(devices) == setup.topology.num_chips, "a chip is one device in all families of rolloutpipe_jax.topology"
    return devices


def _compile(programs: Any, kind: str, rung: Any, arguments: int) -> Program:
    """`arguments` are the bytes that the program is given, for where only a total is known."""
    from jax.errors import JaxRuntimeError

    start_s = time.monotonic()
    try:
        compiled = programs.lower(kind, rung).compile()
    except JaxRuntimeError as error:
        found = _TOO_LARGE.search(str(error))
        if found is None:
            raise RunError(f"the TPU compiler refuses `{kind}`: {_first_line(error)}") from error
        total = int(float(found[1]) * _UNITS[found[2]])
        taken_s = time.monotonic() - start_s
        return Program(temporaries=max(0, total - arguments), outputs=0, code=0, compile_s=taken_s, is_too_large=True)
    memory = compiled.memory_analysis()
    return Program(
        temporaries=memory.temp_size_in_bytes,
        outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        compile_s=time.monotonic() - start_s,
    )


def _bytes_on_a_chip(abstract: Any) -> int:
    import jax

    leaves = jax.tree.leaves(abstract)
    return sum(prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def main() -> None:
    """The process: see the head of this file."""
    words = json.load(sys.stdin)
    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints must not get between
    try:
        words |= {"topology": parse_topology(words["topology"]), "shape": named_shape(words["model"])}
        answer = asdict(compile_here(Setup(**words)))
    except ConfigError as error:
        answer = {"refused": str(error)}
    except RolloutPipeError as error:
        answer = {"error": str(error)}
    json.dump(answer, answers)


if __name__ == "__main__":
    main()
