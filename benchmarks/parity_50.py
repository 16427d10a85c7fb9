"""Do the two trainers stay together? 50 updates of a quickstart run on both, then the same questions to both models.

    python benchmarks/parity_50.py [--run RUN_DIR] [--updates 50] [--prompts 100] [key=value ...]

Without a run directory the quickstart is run first. Questions are new ones of the run's workload, answered greedily.
"""

import argparse
import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared import Marks, rolloutpipe, where

from common.parity import Comparison, Side, both, compare, longest_sequence, set_up_jax
from common.parity_input import ParityInput, from_run
from common.spool import write_safetensors
from common.workloads.load import load_problems
from common.workloads.prompts import load_tokenizer

ROUNDS = 16  # of the quickstart: 60 updates, as groups without spread are dropped
MAX_LOSS_GAP = 1e-4  # in mean absolute advantages
MIN_SAME = 0.98
ANSWER_TOKENS = 128
Answers = list[list[int]]


def main() -> None:
    """Run, compare, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", dest="run_dir", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--prompts", type=int, default=100)
    arguments = parser.parse_args()
    os.environ.setdefault("TQDM_DISABLE", "1")
    with recorded(arguments.run_dir) as run_dir, tempfile.TemporaryDirectory() as directory:
        given = from_run(run_dir, arguments.overrides, arguments.updates, print)
        if len(given.updates) < arguments.updates:
            raise SystemExit(f"RUN_DIR: must hold {arguments.updates} updates, got {len(given.updates)}; give a longer run")
        set_up_jax(given.config)
        rows, models = asyncio.run(train_both(given, Path(directory)))
        prompts = held_out(given, arguments.prompts)
        start, torch_answers, jax_answers = (answer(model, prompts) for model in (given.model_dir, *models))
    print_rows(rows)
    check(rows, start, torch_answers, jax_answers)


@contextmanager
def recorded(run_dir: Path | None) -> Iterator[Path]:
    """The run given, or a quickstart for the time of the block."""
    if run_dir is not None:
        yield run_dir
        return
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        rolloutpipe("train", "configs/quickstart.yaml", f"rounds={ROUNDS}", f"run_dir={run_dir}")
        yield run_dir


async def train_both(given: ParityInput, directory: Path) -> tuple[list[Comparison], list[Path]]:
    """Every update on both; the trained models, torch first."""
    with both(given.config, given.model_dir, longest_sequence(given.updates)) as sides:
        rows = [row async for row in compare(*sides, given.updates)]
        names = ("torch", "jax")
        return rows, [await export(side, given.model_dir, directory / name) for side, name in zip(sides, names, strict=True)]


async def export(side: Side, start: Path, directory: Path) -> Path:
    """The weights of a side as a model directory."""
    shutil.copytree(start, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    spool = directory.with_suffix(".spool")
    await side.trainer.export_weights(spool, 1)
    write_safetensors(spool, directory)
    return directory


def held_out(given: ParityInput, count: int) -> list[tuple[int, ...]]:
    """Prompts of another workload seed that are none of the run's."""
    tokenizer, workload = load_tokenizer(given.model_dir), given.config.workload
    seen = {problem.prompt_ids for problem in load_problems(workload, tokenizer).problems}
    other = load_problems(workload.model_copy(update={"seed": workload.seed + 1}), tokenizer)
    fresh = [problem.prompt_ids for problem in other.problems if problem.prompt_ids not in seen]
    if len(fresh) < count:
        raise SystemExit(f"workload: must give {count} prompts that the run has not seen, got {len(fresh)}; raise workload.size")
    return fresh[:count]


def answer(model_dir: Path, prompts: list[tuple[int, ...]]) -> Answers:
    """The most likely token again and again, by transformers' own generation, up to the end token."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=torch.float32, local_files_only=True).eval()
    width = max(map(len, prompts))
    ids = torch.tensor([[*(0 for _ in range(width - len(prompt))), *prompt] for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=ANSWER_TOKENS, pad_token_id=0)
    answers: Answers = out[:, width:].tolist()
    return answers


def print_rows(rows: list[Comparison]) -> None:
    """Update by update."""
    print(f"\n{where()}")
    print("update  loss torch    loss JAX      norm  loss gap  gradients  parameters")
    for row in rows:
        losses = "  ".join(f"{loss:10.6f}" for loss in row.losses)
        print(
            f"{row.update:6}  {losses}  {row.grad_norms[0]:8.4f}   {row.loss_gap:.1e}"
            f"    {row.gradients.rel_l2:.1e}     {row.params.rel_l2:.1e}"
        )


def check(rows: list[Comparison], start: Answers, torch_answers: Answers, jax_answers: Answers) -> None:
    """Print the figures beside their marks; exit 1 where one is missed."""
    marks = Marks()
    gap = max(row.loss_gap for row in rows)
    marks.check(f"losses of {len(rows)} updates", f"{gap:.1e} mean advantages", f"at most {MAX_LOSS_GAP:g}", gap <= MAX_LOSS_GAP)
    same = sum(one == other for one, other in zip(torch_answers, jax_answers, strict=True))
    changed = sum(one != other for one, other in zip(start, torch_answers, strict=True))
    needed = MIN_SAME * len(start)
    marks.check("same greedy answers of both models", f"{same} of {len(start)}", f"at least {needed:g}", same >= needed)
    marks.check(
        "answers that training has changed", f"{changed} of {len(start)}", "at least 1, else nothing is shown", changed > 0
    )
    gradients, params = max(row.gradients.rel_l2 for row in rows), max(row.params.rel_l2 for row in rows)
    print(f"        gradients differ by up to {gradients:.1e}, parameters by {params:.1e}")
    marks.end()


if __name__ == "__main__":
    main()
