"""One GPU, both trainers: tokens a second, MFU, peak memory, and whether torch and JAX give the same numbers.

Needs torch and transformers, for the other half jax and flax; neither vLLM nor Ray. Weights are random, in the shapes of
Qwen3-0.6B and 1.7B. Each measurement is one rank of a trainer room in a process of its own; together they keep to `--budget`
seconds, and what no longer fits, or is not there, is skipped with its reason. Exits 1 where a measurement failed or the two
disagree.

    python benchmarks/gpu_check.py [--shapes 0.6b,1.7b] [--budget 345] [--json FILE]
    python benchmarks/gpu_check.py --shapes tiny        # on a CPU: proves that the check works
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shared import ROOT, where

from common.batching import Row, plan_micro_batches
from common.config import Config
from common.model_shape import BUILT_IN, ModelShape

PROMPT = 64
UPDATES = 4  # timed, after one that is not
DTYPES = ("bfloat16", "float32")
KINDS = ("torch", "jax")
LATE = "cut off at the end of the budget"
# Largest difference of a log-prob, and of the gradient norm relative to torch's: our limits.
LIMITS = {"float32": (1e-3, 1e-3), "bfloat16": (0.3, 0.05)}
# Dense TFLOPS that NVIDIA states: bfloat16 tensor cores summing in float32, and float32 without TF32, as both trainers compute.
PEAKS = {
    "H200": (989, 67),
    "H100 PCIe": (756, 51),
    "H100": (989, 67),
    "A100": (312, 19.5),
    "L40S": (362, 91.6),
    "RTX 4090": (165, 82.6),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A shape and its batch."""

    shape: ModelShape
    rows: int
    length: int  # tokens of a row
    seconds: float  # that one measurement takes at least

    @property
    def num_tokens(self) -> int:
        return self.rows * self.length


TINY = ModelShape(
    family="Qwen3ForCausalLM",
    vocab_size=64,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    is_tied=True,
)
CASES = {
    "tiny": Case(TINY, 4, 96, 1),
    "0.6b": Case(BUILT_IN["qwen3-0.6b"], 8, 1024, 15),
    "1.7b": Case(BUILT_IN["qwen3-1.7b"], 8, 1024, 30),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One trainer on one shape in one dtype."""

    kind: str
    shape: str
    dtype: str
    skipped: str = ""  # why
    failed: str = ""
    start_s: float = 0.0  # load and compile
    tokens_per_s: float = 0.0
    mfu: float | None = None
    peak_gib: float | None = None
    planned_gib: float | None = None  # by the room's memory model
    grad_norm: float = 0.0
    logprobs: list[float] = field(default_factory=list)  # of the first row


# --- in a process of its own


def work(kind: str, name: str, dtype: str, model: Path) -> dict[str, Any]:
    """What one rank measures."""
    case, start_s = CASES[name], time.perf_counter()
    rank, shares = start_rank(kind, case, config_of(kind, case, dtype, model), model)
    rows = rows_of(case)
    (scored,) = rank.logprobs([[[rows[0]]]], 1.0)
    started_s, times, norms = time.perf_counter() - start_s, [], []
    for _ in range(UPDATES + 1):
        before_s = time.perf_counter()
        rank.accumulate(shares)
        norm, _ = rank.finish_update(float(case.rows), 1e-6)  # reads the norm, so the device has finished
        times.append(time.perf_counter() - before_s)
        norms.append(norm)
    rank.close()
    return {
        "start_s": started_s,
        "tokens_per_s": case.num_tokens / statistics.median(times[1:]),
        "peak_gib": peak_gib(kind),
        "grad_norm": norms[0],
        "logprobs": scored[0][0],
    }


def config_of(kind: str, case: Case, dtype: str, model: Path) -> Config:
    training = {"dtype": dtype, "micro_batch_tokens": case.num_tokens, "activation_checkpointing": True, "threads": 1}
    return Config(
        trainer=kind,  # type: ignore[arg-type]
        model={"path": str(model)},  # type: ignore[arg-type]
        training=training,  # type: ignore[arg-type]
        sampling={"max_tokens": case.length - PROMPT},  # type: ignore[arg-type]
        rollout={"max_model_len": case.length},  # type: ignore[arg-type]
        responses_per_group=case.rows,
    )


def start_rank(kind: str, case: Case, config: Config, model: Path) -> tuple[Any, Any]:
    """The only rank, with its model loaded, and its micro-batches."""
    lengths = [case.length] * case.rows
    if kind == "torch":
        from rolloutpipe_torch.rank import TrainerRank

        rank: Any = TrainerRank(config, model, 0, 1)
        rank.join(rank.listen())
        plan = plan_micro_batches(lengths, case.num_tokens, 1)
    else:
        from rolloutpipe_jax.rank import TrainerRank as JaxRank
        from rolloutpipe_jax.trainer import planner

        rank = JaxRank(config, model, 0, 1)
        rank.join(rank.listen())
        plan = planner(rank.fit(case.length), 1)(lengths)
    rows = rows_of(case)
    return rank, [[[rows[index] for index in run] for run in steps] for steps in plan]


def rows_of(case: Case) -> list[Row]:
    """The same in every process."""
    draw = random.Random(0)

    def row() -> Row:
        ids = tuple(draw.randrange(case.shape.vocab_size) for _ in range(case.length))
        return Row(ids[:PROMPT], ids[PROMPT:], tuple(-3 * draw.random() for _ in ids[PROMPT:]), draw.gauss(0, 1), True, True)

    return [row() for _ in range(case.rows)]


def peak_gib(kind: str) -> float | None:
    """Of the device's allocator; None on a CPU."""
    if kind == "torch":
        import torch

        return torch.cuda.max_memory_reserved() / 2**30 if torch.cuda.is_available() else None
    import jax

    stats = jax.devices()[0].memory_stats() if jax.default_backend() == "gpu" else None
    return stats["peak_bytes_in_use"] / 2**30 if stats else None


def save_model(name: str, directory: Path) -> dict[str, Any]:
    """Random weights in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    shape = CASES[name].shape
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.is_tied,
    )
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    return {}


def probe(kind: str) -> dict[str, Any]:
    """What a framework finds here: its version, and name and bytes of the GPU."""
    if kind == "torch":
        import torch

        if not torch.cuda.is_available():
            return {"version": torch.__version__, "gpu": None, "gpu_bytes": 0}
        gpu = torch.cuda.get_device_properties(0)
        return {"version": torch.__version__, "gpu": gpu.name, "gpu_bytes": gpu.total_memory}
    import flax  # noqa: F401  (that it is there)
    import jax

    return {"version": jax.__version__, "gpu": jax.devices()[0].device_kind if jax.default_backend() == "gpu" else None}


# --- the driver


class Check:
    """Runs the measurements within the budget."""

    def __init__(self, budget_s: float) -> None:
        self._end_s = time.monotonic() + budget_s
        self.found = {kind: self._call("probe", kind) for kind in KINDS}

    @property
    def left_s(self) -> float:
        """Seconds of the budget."""
        return self._end_s - time.monotonic()

    def shape(self, name: str) -> list[Measured]:
        """All measurements of one shape, fewest seconds to wait for the first figures."""
        reasons = {kind: self._reason(kind, name) for kind in KINDS}
        if all(reasons.values()):
            return [Measured(kind=kind, shape=name, dtype=dtype, skipped=reasons[kind]) for dtype in DTYPES for kind in KINDS]
        with tempfile.TemporaryDirectory() as folder:
            made = self._call("save", name, folder) if self.left_s > CASES[name].seconds else {"error": "no time left"}
            if "error" in made:
                why = f"no model: {made['error']}"
                return [Measured(kind=kind, shape=name, dtype=dtype, skipped=why) for dtype in DTYPES for kind in KINDS]
            return [self._measure(kind, name, dtype, Path(folder), reasons[kind]) for dtype in DTYPES for kind in KINDS]

    def _reason(self, kind: str, name: str) -> str:
        """Why nothing of it can run; empty where it can."""
        found = self.found[kind]
        if found.get("error") == LATE:
            return f"no time: the budget ended while {kind} was looked for"
        if "error" in found:
            return f"{kind} is not usable here ({found['error']})"
        if name == "tiny":
            return ""
        if not found["gpu"]:
            return "no GPU" if not self.found["torch"].get("gpu") else "JAX finds no GPU (it needs its CUDA plugin)"
        return ""

    def _measure(self, kind: str, name: str, dtype: str, model: Path, reason: str) -> Measured:
        case, gpu_bytes = CASES[name], self.found["torch"].get("gpu_bytes", 0)
        planned = planned_bytes(kind, case, dtype, model, bool(gpu_bytes))
        if not reason and gpu_bytes and planned > gpu_bytes:
            reason = f"needs about {planned / 2**30:.1f} GiB of {gpu_bytes / 2**30:.1f}"
        if not reason and self.left_s < case.seconds:
            reason = f"no time: {max(0.0, self.left_s):.0f} s of the budget are left, it takes {case.seconds:.0f} s or more"
        label = {"kind": kind, "shape": name, "dtype": dtype}
        if reason:
            return Measured(**label, skipped=reason)  # type: ignore[arg-type]
        result = self._call("work", kind, name, dtype, str(model))
        if "error" in result:
            is_late = self.left_s <= 0
            return Measured(**label, **{"skipped" if is_late else "failed": result["error"]})  # type: ignore[arg-type]
        mfu = self._mfu(case, dtype, result["tokens_per_s"])
        return Measured(**label, mfu=mfu, planned_gib=planned / 2**30, **result)  # type: ignore[arg-type]

    def _mfu(self, case: Case, dtype: str, tokens_per_s: float) -> float | None:
        gpu = self.found["torch"].get("gpu") or ""
        peak = next((peaks[dtype == "float32"] for name, peaks in PEAKS.items() if all(w in gpu for w in name.split())), None)
        return None if peak is None else 6 * case.shape.num_params * tokens_per_s / (peak * 1e12)

    def _call(self, *job: str) -> dict[str, Any]:
        """Do a job in a process of its own, within the budget; `error` says why there is no result."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        command = [sys.executable, __file__, "--job", *job]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=max(1.0, self.left_s), check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": LATE}
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines:
            return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200]}
        result: dict[str, Any] = json.loads(lines[-1])
        return result


def planned_bytes(kind: str, case: Case, dtype: str, model: Path, on_gpu: bool) -> int:
    """By the memory model of the trainer's room, which reads no framework."""
    if kind == "torch":
        from rolloutpipe_torch import memory as room
    else:
        from rolloutpipe_jax import memory as room  # type: ignore[no-redef]
    parts = room.device_parts(config_of(kind, case, dtype, model), case.shape, case.num_tokens)
    return sum(parts.values()) + (room.RESERVE_BYTES if on_gpu else 0)


def parity(measured: list[Measured]) -> list[dict[str, Any]]:
    """Torch against JAX, where both were measured."""
    by_name = {(one.shape, one.dtype, one.kind): one for one in measured if one.logprobs}
    lines = []
    for shape, dtype in dict.fromkeys((one.shape, one.dtype) for one in measured):
        torch_one, jax_one = (by_name.get((shape, dtype, kind)) for kind in KINDS)
        if torch_one is None or jax_one is None:
            continue
        gap = max(abs(a - b) for a, b in zip(torch_one.logprobs, jax_one.logprobs, strict=True))
        norm = abs(jax_one.grad_norm - torch_one.grad_norm) / torch_one.grad_norm
        is_met = gap <= LIMITS[dtype][0] and norm <= LIMITS[dtype][1]  # NaN is not
        lines.append({"shape": shape, "dtype": dtype, "logprob_gap": gap, "grad_norm_gap": norm, "ok": is_met})
    return lines


def show(measured: list[Measured], lines: list[dict[str, Any]]) -> None:
    """The tables."""
    print("\n| shape | dtype | trainer | tokens/s | MFU | peak GiB | planned GiB | start s | |\n" + "| --- " * 9 + "|")
    for one in measured:
        note = f"skipped: {one.skipped}" if one.skipped else f"FAILED: {one.failed}" if one.failed else ""
        figures = [f"{one.tokens_per_s:,.0f}", _number(one.mfu, "{:.1%}"), _number(one.peak_gib), _number(one.planned_gib)]
        figures += [f"{one.start_s:.1f}"]
        cells = [one.shape, one.dtype, one.kind, *([""] * 5 if note else figures), note]
        print("| " + " | ".join(cells) + " |")
    print("\nMFU: 6 x parameters x tokens a second / peak; attention scores and what is computed again are left out of it.")
    if lines:
        print(
            "\n| torch against jax | largest log-prob gap | gradient norm, relative | within our limits |\n" + "| --- " * 4 + "|"
        )
    for line in lines:
        gaps = f"{line['logprob_gap']:.1e} | {line['grad_norm_gap']:.1e}"
        print(f"| {line['shape']}, {line['dtype']} | {gaps} | {'yes' if line['ok'] else 'NO'} |")


def _number(value: float | None, form: str = "{:.2f}") -> str:
    return "–" if value is None else form.format(value)


def _version(found: dict[str, Any]) -> str:
    """Of a framework that was looked for."""
    return str(found.get("version") or ("not looked at, no time" if found.get("error") == LATE else "not usable"))


def main() -> None:
    """Measure, show, and exit 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="0.6b,1.7b", help=f"comma-separated, of {', '.join(CASES)}")
    parser.add_argument("--budget", type=float, default=345, help="seconds in all")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        do(arguments.job)
        return
    names = arguments.shapes.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"--shapes: must be of {', '.join(CASES)}, got {unknown[0]!r}")
    check = Check(arguments.budget)
    versions = ", ".join(f"{kind} {_version(found)}" for kind, found in check.found.items())
    print(f"{where()}; {check.found['torch'].get('gpu') or 'no GPU'}; {versions}")
    measured = [one for name in names for one in check.shape(name)]
    lines = parity(measured)
    show(measured, lines)
    if arguments.json is not None:
        result = {"found": check.found, "measured": [asdict(one) for one in measured], "parity": lines}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(one.failed for one in measured) or not all(line["ok"] for line in lines))


def do(job: list[str]) -> None:
    """One job of `Check`; its result is the last line of stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    what, *rest = job
    if what == "work":
        kind, name, dtype, model = rest
        result = work(kind, name, dtype, Path(model))
    else:
        result = probe(rest[0]) if what == "probe" else save_model(rest[0], Path(rest[1]))
    print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
