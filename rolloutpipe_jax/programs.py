"""The compiled programs of a trainer: accumulate, score, step, zeros. Each is compiled once for each size of its arguments.

    accumulate(params, sums, batch, old, ref) -> sums, measurements     gradient sums grow in place
    score(params, batch) -> log-probs                                   no gradient
    step(params, moments, sums, denominator, lr) -> params, moments, sums of zero, norm   all in place
    zeros() -> sums of zero                                             for an update that is not stepped

Programs are compiled ahead of time, so that a run compiles nothing once it is warm, and so that the same code can be compiled
for devices that are not there (`compile_check`).
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, ShapeDtypeStruct
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from common.grpo import LossRules
from rolloutpipe_jax.batch import Batch, Rung, to_batch
from rolloutpipe_jax.loss import Sums, TokenLogprobs, loss_sum
from rolloutpipe_jax.model import Compute, Skeleton
from rolloutpipe_jax.optimizer import Params, step
from rolloutpipe_jax.parallelize import BATCH, FSDP, param_shardings

Abstract = Any  # a pytree of ShapeDtypeStruct


class Programs:
    """Of one model on one mesh."""

    def __init__(
        self,
        skeleton: Skeleton,
        mesh: Mesh,
        compute: Compute,
        rules: LossRules,
        *,
        optimizer: optax.GradientTransformation,
        dtype: str,
        max_norm: float | None,
    ) -> None:
        self._skeleton, self._mesh, self._compute, self._rules = skeleton, mesh, compute, rules
        self._optimizer, self._dtype, self._max_norm = optimizer, jnp.dtype(dtype), max_norm
        self.has_old = rules.importance_cap is not None
        self.has_ref = rules.kl_kind is not None
        self.shardings = param_shardings(skeleton.shapes, mesh)
        self._whole = NamedSharding(mesh, P())
        self._rows = NamedSharding(mesh, BATCH)
        self._compiled: dict[tuple[str, Rung | None, bool], Any] = {}

    def warm_up(self, sizes: Sequence[Rung], score_size: Rung, num_threads: int) -> None:
        """Compile all that a run can ask for: accumulation in `sizes`, scoring beside it where the loss needs that, and
        scoring of its own in `score_size`. XLA compiles without Python's lock, so threads help.
        """
        wanted: list[tuple[str, Rung | None, bool]] = [("step", None, False), ("zeros", None, False)]
        wanted += [("accumulate", rung, has_old) for rung in sizes for has_old in sorted({False, self.has_old})]
        score_sizes = {score_size, *(sizes if self.has_old or self.has_ref else ())}
        wanted += [("score", rung, False) for rung in sorted(score_sizes)]
        with ThreadPoolExecutor(num_threads) as threads:
            list(threads.map(lambda key: self._program(*key), wanted))

    def accumulate(
        self, params: Params, sums: Params, batch: Batch, old: Array | None, ref: Array | None, temperature: float
    ) -> tuple[Params, Sums]:
        """Add the gradient sums of a batch. `sums` is used up."""
        program = self._program("accumulate", self._rung(batch), old is not None)
        result: tuple[Params, Sums] = program(params, sums, batch, old, ref, np.float32(temperature))
        return result

    def score(self, params: Params, batch: Batch, temperature: float) -> Array:
        """Log-probs of the response tokens, [R, L], 0 outside the mask."""
        result: Array = self._program("score", self._rung(batch))(params, batch, np.float32(temperature))
        return result

    def step(
        self, params: Params, moments: Any, sums: Params, denominator: float, lr: float
    ) -> tuple[Params, Any, Params, Array]:
        """One optimizer step; all three are used up. Also returns sums of zero and the gradient norm before clipping."""
        result: tuple[Params, Any, Params, Array] = self._program("step")(
            params, moments, sums, np.float32(denominator), np.float32(lr)
        )
        return result

    def init_moments(self, params: Params) -> Any:
        """Moments of zero, laid out as their weights."""
        return jax.jit(self._optimizer.init, out_shardings=self._shardings_of(self.moments()))(params)

    def zeros(self) -> Params:
        """Gradient sums of zero."""
        result: Params = self._program("zeros")()
        return result

    def put(self, batch: Batch) -> Batch:
        """A batch on the devices, rows shared."""
        return jax.device_put(batch, self._rows)

    def params(self) -> Abstract:
        """What the programs are compiled for: shapes, dtypes and places of the parameters."""
        return {
            name: ShapeDtypeStruct(shape, jnp.float32, sharding=self.shardings[name])
            for name, shape in self._skeleton.shapes.items()
        }

    def moments(self) -> Abstract:
        """The same of the optimizer's state."""
        by_shape = jax.eval_shape(self._optimizer.init, self.params())

        def place(path: tuple[Any, ...], leaf: ShapeDtypeStruct) -> ShapeDtypeStruct:
            name = getattr(path[-1], "key", None)
            sharding = self.shardings[name] if isinstance(name, str) and name in self.shardings else self._whole
            return ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        return jax.tree_util.tree_map_with_path(place, by_shape)

    def batch(self, rung: Rung) -> Abstract:
        """The same of a batch."""
        empty, _ = to_batch(rung, [[] for _ in range(self._mesh.shape[FSDP])])
        return jax.tree.map(lambda array: ShapeDtypeStruct(array.shape, array.dtype, sharding=self._rows), empty)

    def lower(self, kind: str, rung: Rung | None = None, has_old: bool = False) -> Any:
        """A program, traced but not compiled."""
        number = ShapeDtypeStruct((), jnp.float32)
        with jax.set_mesh(self._mesh):
            if kind == "zeros":
                return jax.jit(self._zeros, out_shardings=self.shardings).lower()
            if kind == "step":
                outputs = (self.shardings, self._shardings_of(self.moments()), self.shardings, self._whole)
                jitted = jax.jit(self._step, donate_argnums=(0, 1, 2), out_shardings=outputs)
                return jitted.lower(self.params(), self.moments(), self.params(), number, number)
            assert rung is not None
            batch = self.batch(rung)
            logprobs = ShapeDtypeStruct(batch.sampler.shape, jnp.float32, sharding=self._rows)
            if kind == "score":
                return jax.jit(self._score, out_shardings=self._rows).lower(self.params(), batch, number)
            old, ref = logprobs if has_old else None, logprobs if self.has_ref else None
            jitted = jax.jit(self._accumulate, donate_argnums=(1,), out_shardings=(self.shardings, self._whole))
            return jitted.lower(self.params(), self.params(), batch, old, ref, number)

    def _program(self, kind: str, rung: Rung | None = None, has_old: bool = False) -> Callable[..., Any]:
        key = (kind, rung, has_old)
        if key not in self._compiled:
            self._compiled[key] = self.lower(*key).compile()
        program: Callable[..., Any] = self._compiled[key]
        return program

    def _rung(self, batch: Batch) -> Rung:
        rows, length = batch.input_ids.shape
        return Rung(rows // self._mesh.shape[FSDP], length)

    def _forward(self, params: Params, batch: Batch, temperature: Array) -> tuple[Array, Array]:
        policy = self._skeleton.build({name: value.astype(self._dtype) for name, value in params.items()})
        hidden = policy.hidden(batch.input_ids, batch.positions, batch.segments, self._compute)
        return policy.score(hidden, batch.places, batch.targets, batch.mask, temperature, self._compute)

    def _accumulate(
        self, params: Params, sums: Params, batch: Batch, old: Array | None, ref: Array | None, temperature: Array
    ) -> tuple[Params, Sums]:
        def loss(weights: Params) -> tuple[Array, Sums]:
            logprobs, entropies = self._forward(weights, batch, temperature)
            total, measured = loss_sum(batch, TokenLogprobs(logprobs, old, ref), self._rules)
            return total, {**measured, "entropy_sum": entropies.sum()}

        gradients, measured = jax.grad(loss, has_aux=True)(params)
        return {name: value + gradients[name] for name, value in sums.items()}, measured

    def _score(self, params: Params, batch: Batch, temperature: Array) -> Array:
        return self._forward(params, batch, temperature)[0]

    def _step(
        self, params: Params, moments: Any, sums: Params, denominator: Array, lr: Array
    ) -> tuple[Params, Any, Params, Array]:
        params, moments, norm = step(self._optimizer, params, moments, sums, denominator, lr, self._max_norm)
        return params, moments, jax.tree.map(jnp.zeros_like, sums), norm

    def _zeros(self) -> Params:
        return {name: jnp.zeros(shape) for name, shape in self._skeleton.shapes.items()}

    @staticmethod
    def _shardings_of(abstract: Abstract) -> Any:
        return jax.tree.map(lambda leaf: leaf.sharding, abstract)


def add_sums(total: dict[str, float], more: Mapping[str, Any]) -> None:
    """Add measurements to those of the update, in double precision; maxima stay maxima."""
    for name, value in more.items():
        number = float(value)
        total[name] = max(total.get(name, number), number) if name.endswith("_max") else total.get(name, 0.0) + number
