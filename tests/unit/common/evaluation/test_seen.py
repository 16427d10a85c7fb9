"""What an evaluation says about what the model has seen: of a run's own training, and of nothing else."""

from pathlib import Path
from typing import Any

import pytest

from common.config import Config
from common.evaluation.checkpoint import Located
from common.evaluation.prepare import PreparedEval, _num_seen, seen_line
from common.workloads.load import load_problems
from tests.workload_lab import Letters, write_lines


def prepared(num_seen: int | None, num_problems: int, **located: Any) -> PreparedEval:
    class Workload:
        problems = tuple(range(num_problems))

    place = Located(kind="hf", weights=Path("m"), files=Path("m"), **located)
    return PreparedEval(located=place, tokenizer=None, workload=Workload(), max_model_len=1, num_seen=num_seen)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_seen", "located", "line"),
    [
        (None, {"is_start": True}, "what the starting model has seen is not known"),
        (None, {}, "what this model has seen is not known"),
        (0, {"run_dir": Path("runs/a")}, "none of these problems was trained on in runs/a"),
        (3, {"run_dir": Path("runs/a")}, "3 of these 8 problems are among those that are trained on in runs/a"),
        (None, {"run_dir": Path("runs/a")}, "whether these problems were trained on in runs/a is not known"),
    ],
)
def test_it_speaks_of_the_run_alone(num_seen: int | None, located: dict[str, Any], line: str) -> None:
    assert seen_line(prepared(num_seen, 8, **located)).startswith(line)


def test_problems_are_counted_by_their_questions_in_the_run_s_training_part(tmp_path: Path) -> None:
    rows = [{"question": f"Question {number}?", "answer": f"{number},000"} for number in range(1, 40)]
    path = write_lines(tmp_path / "train.jsonl", rows)
    other = write_lines(tmp_path / "other.jsonl", [{**row, "answer": row["answer"].replace(",", "")} for row in rows])
    settings = {"name": "jsonl", "path": str(path), "holdout": 0.4}
    run = Config.model_validate({"model": {"path": "m"}, "workload": settings, "sampling": {"max_tokens": 16}})
    everything = load_problems(run.workload.model_copy(update={"path": str(other)}), Letters(), part="all")
    held_out = load_problems(run.workload, Letters(), part="eval")
    assert _num_seen(run, Letters(), 512, held_out) == 0
    assert _num_seen(run, Letters(), 512, everything) == 39 - len(held_out.problems)
    assert _num_seen(None, Letters(), 512, everything) is None
    path.unlink()
    assert _num_seen(run, Letters(), 512, everything) is None
