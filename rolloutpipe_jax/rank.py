"""The trainer's process: in a Ray actor (`common.ranks`), or a plain object in a test. It drives all devices of the mesh.

    listen -> join -> warm_up -> (accumulate* -> finish_update | abort_update)* ...

It decides nothing: what to compute, the denominator and the learning rate come from the driver. A rank of the driver's plan is
a place on the mesh's `fsdp` axis.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from common.batching import Row
from common.config import Config
from common.grpo import LossRules
from common.network import LOOPBACK
from common.spool import model_layout
from rolloutpipe_jax.attention import SPLASH_ROW
from rolloutpipe_jax.batch import Batch, Rung, Spot, cut, ladder, pick, to_batch
from rolloutpipe_jax.checkpoint import MOMENTS, PARAMS, Checkpoint, check, read
from rolloutpipe_jax.devices import attention_of, count_compilations, set_up_devices
from rolloutpipe_jax.model import skeleton
from rolloutpipe_jax.optimizer import Params, adamw
from rolloutpipe_jax.parallelize import compute_on, make_mesh
from rolloutpipe_jax.programs import Programs, add_sums
from rolloutpipe_jax.shape import read_shape
from rolloutpipe_jax.weights import export_weights, load_params, whole_tensors

MicroBatches = list[list[Row]]  # of one planner rank; an empty one is a pass of weight zero
_ROW = 32  # rows of plain attention are a multiple of so many tokens


class TrainerRank:
    """Holds weights, moments and gradient sums on its devices."""

    def __init__(self, config: Config, model_dir: Path, rank: int, num_processes: int) -> None:
        assert (rank, num_processes) == (0, 1), "one process drives all devices"
        self._config, self._model_dir = config, model_dir
        self._sums: dict[str, float] = {}
        self._measured: list[dict[str, Array]] = []
        self._kept: Params | None = None
        self._has_left_kept = False  # there is a copy, and a step was made since
        self._cpu_mark_s = time.process_time()
        self._checkpoint = Checkpoint()

    def listen(self, address: str = LOOPBACK) -> int:
        """Choose and set up the devices of this process, once; there is nobody to meet, so the port is 0."""
        set_up_devices(self._config.training)
        return 0

    def join(self, port: int = 0, host: str = LOOPBACK, address: str = LOOPBACK) -> None:
        """Load the model; nobody is met. Raises ConfigError where there are too few devices."""
        training = self._config.training
        self._compilations = count_compilations()
        self._compilation_mark = 0
        attention = attention_of(training)
        tp = training.tensor_parallel
        mesh = make_mesh(training.ranks // tp, tp)
        self._layout = model_layout(self._model_dir)
        self._skeleton = skeleton(read_shape(self._model_dir))
        self._programs = Programs(
            self._skeleton,
            mesh,
            compute_on(mesh, attention, remat=training.activation_checkpointing, interpret=jax.default_backend() != "tpu"),
            LossRules.from_config(self._config),
            optimizer=adamw(training),
            dtype=training.dtype,
            max_norm=training.max_grad_norm,
        )
        self._multiple = SPLASH_ROW if attention == "splash" else _ROW
        self._params = load_params(self._model_dir, self._skeleton, mesh)
        self._moments = self._programs.init_moments(self._params)
        self._gradient_sums = self._programs.zeros()
        # Frozen, but in float32 as the policy, so that both round alike and the penalty starts at exactly 0.
        self._reference = load_params(self._model_dir, self._skeleton, mesh) if training.kl is not None else None

    def warm_up(self, longest: int) -> Rung:
        """Compile everything for sequences of up to `longest` tokens; after it a run compiles nothing more.

        Returns the largest size of a micro-batch.
        """
        top = self.fit(longest)
        self._programs.warm_up(self._sizes, self._one_row, self._config.training.threads)
        return top

    def fit(self, longest: int) -> Rung:
        """Fix the sizes of micro-batches, as `warm_up` does; each program is then compiled when it is first needed."""
        training = self._config.training
        places = training.ranks // training.tensor_parallel
        of_a_group = -(-self._config.responses_per_group // places)  # groups are accumulated one at a time
        self._sizes = ladder(longest, training.micro_batch_tokens, self._multiple, of_a_group)
        self._one_row = Rung(1, self._sizes[-1].length)
        return self._sizes[-1]

    def keep_round_weights(self) -> None:
        """Copy the weights as the round's."""
        self._kept = _copy(self._params)
        self._has_left_kept = False

    def accumulate(self, shares: Sequence[MicroBatches]) -> None:
        """Add the gradient sums of these micro-batches, one list for each planner rank."""
        temperature = self._config.sampling.temperature
        for batch in self._batches(shares):
            old = ref = None
            if self._programs.has_old and self._has_left_kept:
                assert self._kept is not None
                old = self._programs.score(self._kept, batch, temperature)
            if self._programs.has_ref:
                assert self._reference is not None
                ref = self._programs.score(self._reference, batch, temperature)
            self._gradient_sums, measured = self._programs.accumulate(
                self._params, self._gradient_sums, batch, old, ref, temperature
            )
            self._measured.append(measured)
        for measured in jax.device_get(self._measured):
            add_sums(self._sums, measured)
        self._measured = []

    def finish_update(self, denominator: float, lr: float) -> tuple[float, dict[str, float]]:
        """Step, unless the denominator is 0. Returns the gradient norm before clipping and the update's sums."""
        sums, self._sums = self._sums, {}
        grad_norm = 0.0
        if denominator == 0:
            self._gradient_sums = self._programs.zeros()
        else:
            self._params, self._moments, self._gradient_sums, norm = self._programs.step(
                self._params, self._moments, self._gradient_sums, denominator, lr
            )
            grad_norm = float(norm)
            self._has_left_kept |= self._kept is not None and np.isfinite(grad_norm).item()
        now_s, compilations = time.process_time(), self._compilations()
        sums["cpu_s"], self._cpu_mark_s = now_s - self._cpu_mark_s, now_s
        sums["compilations"], self._compilation_mark = compilations - self._compilation_mark, compilations
        return grad_norm, sums

    def abort_update(self) -> None:
        """Forget the open update."""
        self._sums, self._measured = {}, []
        self._gradient_sums = self._programs.zeros()

    def logprobs(
        self, shares: Sequence[MicroBatches], temperature: float, model: Literal["policy", "reference"] = "policy"
    ) -> list[list[list[list[float]]]]:
        """Log-probs of each row's response tokens, by planner rank and micro-batch."""
        params = self._params if model == "policy" else self._reference
        assert params is not None, "the reference is loaded where training.kl is set"
        steps = [self._score(params, runs, temperature) for runs in zip(*shares, strict=True)]
        return [[[found[id(row)] for row in run] for run, found in zip(share, steps, strict=True)] for share in shares]

    def _score(self, params: Params, runs: Sequence[list[Row]], temperature: float) -> dict[int, list[float]]:
        """Log-probs of the response tokens of all rows of `runs`, by `id`; row by row, so that one program is enough."""
        found: dict[int, list[float]] = {}
        for packed in cut(self._one_row, runs):
            batch, spots = to_batch(self._one_row, packed)
            values = np.asarray(self._programs.score(params, self._programs.put(batch), temperature))
            found |= {row: _at(values, spot) for row, spot in spots.items()}
        return found

    def export_weights(self, spool: Path, version: int) -> None:
        """Stream the weights into `spool`."""
        export_weights(spool, version, self._params, self._layout)

    def save(self, directory: Path) -> None:
        """Capture the state; it is written into `directory` while training goes on, until `saved` returns."""
        self._checkpoint.save(directory, self._params, self._moments)

    def saved(self) -> None:
        """Wait until the last save is on disk."""
        self._checkpoint.wait()

    def restore(self, directory: Path, saved_ranks: int, num_steps: int) -> None:
        """Read a state onto this mesh, whatever mesh wrote it. Raises DataError; the state is then undefined."""
        wanted = {PARAMS: self._programs.params(), MOMENTS: self._programs.moments()}
        check(directory, wanted)
        del self._params, self._moments  # two states need not fit
        self._kept, self._has_left_kept = None, False
        found = read(directory, wanted)
        self._params, self._moments = found[PARAMS], found[MOMENTS]
        self.abort_update()

    def gradients(self) -> dict[str, NDArray[Any]]:
        """The gradient sums of the open update in the Hugging Face layout: for tests, and for comparing trainers."""
        return dict(whole_tensors(self._gradient_sums))

    def weights(self) -> dict[str, NDArray[Any]]:
        """The master weights in the Hugging Face layout."""
        return dict(whole_tensors(self._params))

    def close(self) -> None:
        """End what runs in the background."""
        self._checkpoint.close()

    def _batches(self, shares: Sequence[MicroBatches]) -> Iterator[Batch]:
        """The batch of each step, all ranks' together, on the devices."""
        for runs in zip(*shares, strict=True):
            batch, _ = to_batch(*pick(self._sizes, runs))
            yield self._programs.put(batch)


def _at(values: NDArray[Any], spot: Spot) -> list[float]:
    found: list[float] = values[spot.row, spot.start : spot.start + spot.num_tokens].tolist()
    return found


@jax.jit
def _copy(params: Params) -> Params:
    """Of its own memory: the original's is reused by the next step."""
    return jax.tree.map(jax.numpy.copy, params)
