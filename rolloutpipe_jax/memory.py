"""What a train step needs on one chip, in parts, and what to change where that is too much. No JAX is imported.

The parts of a report come from the compiler. The estimate here only serves advice, and says that it is one; its factors were
fitted to compiled programs (docs/compile-check.md).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

from common.config import Config
from common.errors import ConfigError, explain
from common.grpo import LossKind
from common.model_shape import ModelShape
from rolloutpipe_jax.topology import Topology

GIB = 2**30
LANE = 128  # rows of splash attention are a multiple of so many tokens
# On a GPU: CUDA's context, communicators, what the allocator cannot use. An assumption, not measured by us.
RESERVE_BYTES = 1_500_000_000
_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is compiled, and for which devices. Raises ConfigError where it cannot be."""

    topology: Topology
    fsdp: int
    tp: int
    model: str
    shape: ModelShape
    seq_len: int = 4096
    rows: int = 1  # of a micro-batch, on each place of the fsdp axis
    attention: Literal["splash", "xla"] = "splash"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    remat: bool = True
    loss: LossKind = "grpo"

    def __post_init__(self) -> None:
        for what, heads in (("heads", self.shape.num_heads), ("key and value heads", self.shape.num_kv_heads)):
            if heads % self.tp:
                rule = f"tp must divide the model's {heads} {what}"
                raise ConfigError(explain("--mesh", rule, f"fsdp={self.fsdp},tp={self.tp}", "use a divisor, such as tp=1"))
        if self.attention == "splash" and self.seq_len % LANE:
            nearest = ceil(self.seq_len / LANE) * LANE
            rule = f"must be a multiple of {LANE} with splash attention"
            raise ConfigError(explain("--seq-len", rule, self.seq_len, f"use {nearest}, or --attention xla"))

    @property
    def tokens(self) -> int:
        """Of a micro-batch, on all chips."""
        return self.fsdp * self.rows * self.seq_len

    @property
    def flops(self) -> int:
        """Of forward and backward of one micro-batch by the rule 6 x parameters x tokens (arXiv 2001.08361, section 2.1).

        Products of attention scores and what remat computes again are left out.
        """
        return 6 * self.shape.num_params * self.tokens

    @property
    def words(self) -> str:
        """The command line that checks this setup."""
        parts = [f"--topology {self.topology.name}", f"--model {self.model}", f"--seq-len {self.seq_len}"]
        parts += [f"--mesh fsdp={self.fsdp},tp={self.tp}"]
        parts += [f"--rows {self.rows}"] if self.rows != 1 else []
        parts += [f"--attention {self.attention}"] if self.attention != "splash" else []
        parts += [f"--dtype {self.dtype}"] if self.dtype != "bfloat16" else []
        parts += ["--no-remat"] if not self.remat else []
        parts += [f"--loss {self.loss}"] if self.loss != "grpo" else []
        return " ".join(["compile-check", *parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What the compiler says about one program, on one chip. Bytes."""

    temporaries: int
    outputs: int  # that do not reuse an argument's memory
    code: int
    compile_s: float
    is_too_large: bool = False  # the compiler gave up; `temporaries` are what it asked for beyond the arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What lies on one chip, and when. Bytes."""

    parameters: int
    gradient_sums: int
    moments: int
    batch: int
    accumulate: Program
    step: Program

    @property
    def code(self) -> int:
        """Both programs stay loaded."""
        return self.accumulate.code + self.step.code

    @property
    def state(self) -> int:
        """What is there all the time; moments too, although `accumulate` is not given them."""
        return self.parameters + self.gradient_sums + self.moments + self.code

    @property
    def while_accumulating(self) -> int:
        """The peak while a micro-batch is computed."""
        return self.state + self.batch + self.accumulate.temporaries + self.accumulate.outputs

    @property
    def while_stepping(self) -> int:
        """The peak while the optimizer steps."""
        return self.state + self.step.temporaries + self.step.outputs

    @property
    def peak(self) -> int:
        """Of the two."""
        return max(self.while_accumulating, self.while_stepping)

    def fits(self, setup: Setup) -> bool:
        """Whether the chip holds it, by the compiler's word and by our sum, which knows of the moments."""
        gave_up = self.accumulate.is_too_large or self.step.is_too_large
        return not gave_up and self.peak <= setup.topology.hbm_gib * GIB

    def parts(self) -> dict[str, int]:
        """By name, in bytes. All but the last are there when the peak is reached in `accumulate`."""
        return {
            "parameters": self.parameters,
            "gradient_sums": self.gradient_sums,
            "moments": self.moments,
            "programs": self.code,
            "batch": self.batch,
            "accumulate_temporaries": self.accumulate.temporaries + self.accumulate.outputs,
            "step_temporaries": self.step.temporaries + self.step.outputs,
        }


@dataclass(frozen=True, slots=True)
class Advice:
    """One way to make it fit, or the best there is."""

    what: str
    setup: Setup
    estimated_gib: float

    @property
    def fits(self) -> bool:
        """By the estimate."""
        return self.estimated_gib <= self.setup.topology.hbm_gib

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "what": self.what,
            "command": self.setup.words,
            "estimated_gib": round(self.estimated_gib, 2),
            "hbm_gib": self.setup.topology.hbm_gib,
            "fits": self.fits,
        }


def state_gib(setup: Setup) -> float:
    """Of parameters, gradient sums and two moments in float32, nearly exactly."""
    return 16 * setup.shape.num_params / setup.topology.num_chips / GIB


def working_gib(setup: Setup) -> float:
    """Of all else, roughly: an estimate."""
    return (
        _working_bytes(
            setup.shape,
            (setup.topology.num_chips, setup.tp),
            width=_BYTES[setup.dtype],
            rows=setup.rows,
            length=setup.seq_len,
            has_scores=setup.attention == "xla",
            remat=setup.remat,
        )
        / GIB
    )


def _working_bytes(
    shape: ModelShape, mesh: tuple[int, int], *, width: int, rows: float, length: int, has_scores: bool, remat: bool
) -> float:
    """On one of the devices of `mesh` (all, tp): copies in `width` bytes, gradients, activations of `rows` of `length` tokens."""
    num_devices, tp = mesh
    tokens = rows * length
    cast = width * shape.num_params / num_devices  # once as weights, once more as gradients
    inner, heads = shape.intermediate_size, shape.num_heads * shape.head_dim
    layer = width * tokens * (6 * inner + 10 * shape.hidden_size + 6 * heads) / tp
    if has_scores:
        layer += 6 * rows * shape.num_heads * length**2 / tp
    between = width * tokens * shape.hidden_size / tp
    tables = (2 - shape.is_tied) * shape.table_params
    gathered = width * (shape.num_params - tables) / shape.num_layers / tp
    kv = shape.num_kv_heads * shape.head_dim
    products = between + width * tokens * (2 * inner + heads + 2 * kv + 2 * shape.hidden_size) / tp
    kept = shape.num_layers * (between if remat else products)
    return 2 * cast + kept + layer + gathered


def device_parts(config: Config, shape: ModelShape, num_tokens: int) -> dict[str, int]:
    """Bytes by name on one device with micro-batches of `num_tokens` tokens: the state exactly, all else by the estimate."""
    training = config.training
    share = -(-shape.num_params // training.ranks) * _BYTES["float32"]
    has_kept = training.importance_cap is not None and training.keep_round_weights and config.updates_per_round > 1
    longest = min(num_tokens, config.rollout.max_model_len or num_tokens)
    working = _working_bytes(
        shape,
        (training.ranks, training.tensor_parallel),
        width=_BYTES[training.dtype],
        rows=num_tokens / longest,
        length=longest,
        has_scores=training.attention != "splash",
        remat=training.activation_checkpointing,
    )
    return {
        "parameters": share,
        "gradients": share,
        "moments": 2 * share,
        "reference": share if training.kl is not None else 0,
        "kept_weights": share if has_kept else 0,
        "working": ceil(working),
    }


def advise(setup: Setup, peak_gib: float) -> list[Advice]:
    """What to change where `peak_gib` is too much: free changes first, each on top of the last, then what costs something."""
    found: list[Advice] = []
    best, scale = setup, 1.0
    for what, changed in _free_changes(setup):
        found.append(Advice(what, changed, state_gib(changed) + working_gib(changed)))
        best = changed
        if found[-1].fits:
            return found
    if not found:  # of the same program in another size the compiler's own figure says more than the estimate
        scale = max(0.0, peak_gib - state_gib(setup)) / working_gib(setup)
    also = " as well" if found else ""
    for way in (_smaller_batches(best, also), _more_chips(best, also), _more_tp(best, also)):
        tried = [Advice(what, changed, state_gib(changed) + scale * working_gib(changed)) for what, changed in way]
        found += [next((each for each in tried if each.fits), tried[-1])] if tried else []
    return [each for each in found if each.fits or each.estimated_gib < peak_gib]


def _free_changes(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Those that cost time at most; each contains those before it."""
    if not setup.remat:
        setup = replace(setup, remat=True)
        yield "remat: leave out --no-remat", setup
    if setup.attention == "xla":
        length = ceil(setup.seq_len / LANE) * LANE
        setup = replace(setup, attention="splash", seq_len=length)
        yield "splash attention: leave out --attention xla", setup
    if setup.dtype == "float32":
        setup = replace(setup, dtype="bfloat16")
        yield "bfloat16 compute: leave out --dtype float32", setup


def _smaller_batches(setup: Setup, also: str) -> Iterator[tuple[str, Setup]]:
    while setup.rows > 1:
        setup = replace(setup, rows=setup.rows // 2)
        yield f"fewer rows{also}: --rows {setup.rows}", setup
    while setup.seq_len // 2 >= LANE:
        length = setup.seq_len // 2 // LANE * LANE
        setup = replace(setup, seq_len=length)
        yield f"shorter sequences{also}: --seq-len {length}", setup


def _more_chips(setup: Setup, also: str) -> Iterator[tuple[str, Setup]]:
    for topology in setup.topology.larger():
        changed = replace(setup, topology=topology, fsdp=topology.num_chips // setup.tp)
        yield f"more chips{also}: --topology {topology.name}", changed


def _more_tp(setup: Setup, also: str) -> Iterator[tuple[str, Setup]]:
    """Heads and tokens shared by more chips: fewer rows at a time on all chips together."""
    tp = setup.tp * 2
    while setup.fsdp * setup.tp % tp == 0 and setup.shape.num_heads % tp == 0 and setup.shape.num_kv_heads % tp == 0:
        fsdp = setup.topology.num_chips // tp
        yield f"more chips a row{also}: --mesh fsdp={fsdp},tp={tp}", replace(setup, fsdp=fsdp, tp=tp)
        tp *= 2
