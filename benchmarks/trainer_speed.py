"""Tokens a second of the JAX trainer and of the torch trainer on the same batches, side by side in one run.

Each trainer has a process of its own and the same number of threads. The two take turns, update by update (accumulate, then
finish_update, AdamW included), so that whatever else the machine does falls on both. Tokens are those of prompts and responses,
padding not counted. Exits 1 where JAX is slower than torch on the 27 M model.

    python benchmarks/trainer_speed.py [--threads 1] [--updates 7]
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared import Marks, where

from common.batching import Row, plan_micro_batches
from common.config import Config

PROMPT = 16
BUDGET = 2048


@dataclass(frozen=True, slots=True)
class Case:
    """A random Qwen3 and the lengths of its batch."""

    name: str
    hidden: int
    layers: int
    vocab: int
    lengths: tuple[int, ...]  # prompt and response
    is_judged: bool


CASES = [
    Case("27 M, 8 x 128 tokens", 512, 8, 4096, (128,) * 8, True),
    Case("27 M, 16 rows of 24 to 128 tokens", 512, 8, 4096, tuple(range(24, 129, 7)), True),
    Case("0.8 M, 8 rows of 24 to 122 tokens", 128, 4, 64, tuple(range(24, 129, 14)), False),
]


def rows_of(case: Case) -> list[Row]:
    """The same in both processes."""
    draw = random.Random(0)
    return [_row(draw, case, length) for length in case.lengths]


def _row(draw: random.Random, case: Case, length: int) -> Row:
    ids = tuple(draw.randrange(case.vocab) for _ in range(length))
    logprobs = tuple(-3 * draw.random() for _ in ids[PROMPT:])
    return Row(ids[:PROMPT], ids[PROMPT:], logprobs, draw.gauss(0, 1), True, True)


def save_model(case: Case, directory: Path) -> None:
    """Random weights."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(0)
    heads = max(2, case.hidden // 64)
    config = Qwen3Config(
        vocab_size=case.vocab,
        hidden_size=case.hidden,
        intermediate_size=3 * case.hidden,
        num_hidden_layers=case.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=case.hidden // heads,
        tie_word_embeddings=True,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)


def work(kind: str, case: Case, model: Path, threads: int) -> None:
    """A trainer's process: one update for each line on stdin, answered with its seconds on the clock and of the CPU."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    config = Config(
        trainer=kind,  # type: ignore[arg-type]
        model={"path": str(model)},  # type: ignore[arg-type]
        training={"threads": threads, "micro_batch_tokens": BUDGET},  # type: ignore[arg-type]
        sampling={"max_tokens": max(case.lengths)},  # type: ignore[arg-type]
        responses_per_group=len(case.lengths),
    )
    rank, shares = _torch(config, model, case) if kind == "torch" else _jax(config, model, case)
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        rank.accumulate(shares)
        rank.finish_update(float(len(case.lengths)), 1e-6)
        print(json.dumps([time.perf_counter() - wall_s, time.process_time() - cpu_s]), file=answers, flush=True)


def _torch(config: Config, model: Path, case: Case) -> tuple[Any, Any]:
    from rolloutpipe_torch.rank import TrainerRank

    rank = TrainerRank(config, model, 0, 1)
    rank.join(rank.listen())
    return rank, _shares(case, plan_micro_batches(case.lengths, BUDGET, 1))


def _jax(config: Config, model: Path, case: Case) -> tuple[Any, Any]:
    from rolloutpipe_jax.rank import TrainerRank
    from rolloutpipe_jax.trainer import planner

    rank = TrainerRank(config, model, 0, 1)
    rank.join(rank.listen())
    return rank, _shares(case, planner(rank.warm_up(max(case.lengths)), 1)(case.lengths))


def _shares(case: Case, plan: Any) -> list[list[list[Row]]]:
    rows = rows_of(case)
    return [[[rows[index] for index in run] for run in steps] for steps in plan]


class Worker:
    """One trainer's process."""

    def __init__(self, kind: str, number: int, model: Path, threads: int) -> None:
        command = [sys.executable, __file__, "--worker", kind, str(number), str(model), "--threads", str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._read()

    def update(self) -> tuple[float, float]:
        """Seconds on the clock and of the CPU."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        wall_s, cpu_s = json.loads(self._read())
        return wall_s, cpu_s

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a trainer's process died")
        return line

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(number: int, threads: int, updates: int) -> dict[str, tuple[float, float]]:
    """Median (clock, CPU) seconds of an update by trainer; the first two of each are not counted."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        save_model(CASES[number], model)
        workers = {kind: Worker(kind, number, model, threads) for kind in ("torch", "jax")}
        times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in workers}
        for _ in range(updates + 2):
            for kind, worker in workers.items():
                times[kind].append(worker.update())
        for worker in workers.values():
            worker.close()
    return {
        kind: (statistics.median(wall for wall, _ in found[2:]), statistics.median(cpu for _, cpu in found[2:]))
        for kind, found in times.items()
    }


def main() -> None:
    """The table, then the marks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--updates", type=int, default=7)
    parser.add_argument("--worker", nargs=3, metavar=("KIND", "CASE", "MODEL"))
    arguments = parser.parse_args()
    if arguments.worker:
        kind, number, model = arguments.worker
        work(kind, CASES[int(number)], Path(model), arguments.threads)
        return
    print(f"{where()}; float32, {arguments.threads} thread(s) each, median of {arguments.updates} updates\n")
    print("| model and batch | torch tok/s | jax tok/s | jax / torch | CPU s torch | CPU s jax |\n" + "| --- " * 6 + "|")
    marks, lines = Marks(), []
    for number, case in enumerate(CASES):
        found = compare(number, arguments.threads, arguments.updates)
        tokens, ratio = sum(case.lengths), found["torch"][0] / found["jax"][0]
        rates = " | ".join(f"{tokens / found[kind][0]:,.0f}" for kind in found)
        print(f"| {case.name} | {rates} | {ratio:.2f} | {found['torch'][1]:.3f} | {found['jax'][1]:.3f} |", flush=True)
        if case.is_judged:
            lines.append((f"{case.name}, jax / torch tokens a second", f"{ratio:.2f}", "at least 1", ratio >= 1))
    print()
    for line in lines:
        marks.check(*line)
    marks.end()


if __name__ == "__main__":
    main()
