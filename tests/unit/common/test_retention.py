"""What stays of a run's samples, and that what is removed is never missed."""

from pathlib import Path

import pytest
from run_lab import run_run

from common.config import RetentionConfig
from common.metrics import collect_rounds
from common.report.html import write_report
from common.report.samples import choose_samples
from common.retention import first_kept, prune_samples
from common.rundir import RunDir, checkpoint_dir


def make(tmp_path: Path, rounds: int, checkpoints: list[int], unfinished: list[int] = ()) -> RunDir:  # type: ignore[assignment]
    run_dir = RunDir(tmp_path)
    for directory in (run_dir.groups, run_dir.eval_samples):
        directory.mkdir()
        for number in range(rounds):
            (directory / f"round-{number:05d}.jsonl").write_text("{}\n")
    for number in (*checkpoints, *unfinished):
        checkpoint_dir(run_dir, number).mkdir(parents=True)
    for number in checkpoints:
        (checkpoint_dir(run_dir, number) / "state.json").write_text("{}")
    return run_dir


def kept(directory: Path) -> list[int]:
    return sorted(int(path.stem[-5:]) for path in directory.iterdir())


@pytest.mark.parametrize(
    ("keep", "checkpoints", "expected"),
    [
        (3, [9, 10], [7, 8, 9]),
        (1, [10], [9]),
        (1, [6, 10], [6, 7, 8, 9]),  # a resume from the checkpoint of 6 rounds needs round 6
        (1, [], list(range(10))),
        (30, [10], list(range(10))),
        (None, [10], list(range(10))),
    ],
)
def test_the_newest_stay_and_what_a_resume_needs(tmp_path: Path, keep: int, checkpoints: list[int], expected: list[int]) -> None:
    run_dir = make(tmp_path, 10, checkpoints)
    removed = prune_samples(run_dir, RetentionConfig(groups=keep), 10)
    assert kept(run_dir.groups) == expected and sorted([*removed, *expected]) == list(range(10))
    assert prune_samples(run_dir, RetentionConfig(groups=keep), 10) == []


def test_an_unfinished_checkpoint_counts_for_nothing(tmp_path: Path) -> None:
    run_dir = make(tmp_path, 10, [], unfinished=[8])
    assert prune_samples(run_dir, RetentionConfig(groups=1), 10) == []


def test_an_open_round_and_other_files_are_left_alone(tmp_path: Path) -> None:
    run_dir = make(tmp_path, 6, [5])  # round 5 is being sampled
    (run_dir.groups / "round-notes.jsonl").write_text("mine")
    assert prune_samples(run_dir, RetentionConfig(groups=2), 5) == [0, 1, 2]
    assert (run_dir.groups / "round-00005.jsonl").exists() and (run_dir.groups / "round-notes.jsonl").exists()
    assert kept(run_dir.eval_samples) == [4, 5]


def test_numbers_beyond_five_digits_are_ordered_as_numbers(tmp_path: Path) -> None:
    run_dir = make(tmp_path, 0, [])
    for number in (99_999, 100_000, 100_001):
        (run_dir.groups / f"round-{number:05d}.jsonl").write_text("")
    checkpoint_dir(run_dir, 100_002).mkdir(parents=True)
    (checkpoint_dir(run_dir, 100_002) / "state.json").write_text("{}")
    assert prune_samples(run_dir, RetentionConfig(groups=1), 100_002) == [99_999, 100_000]
    assert first_kept(run_dir.groups) == 100_001


def test_a_run_keeps_as_many_rounds_as_asked_and_its_report_says_so(tmp_path: Path) -> None:
    lab = run_run(tmp_path, rounds=6, checkpoint={"every": 1, "keep": 2}, retention={"groups": 2}, eval={"every": 1}, num_eval=2)
    assert lab.error is None
    assert kept(lab.run_dir.groups) == [4, 5] and kept(lab.run_dir.eval_samples) == [4, 5, 6]  # 6: after the last prune
    samples = choose_samples(lab.run_dir.path, collect_rounds(lab.all_events))
    assert samples["removed"] == 4 and [entry["round"] for entry in samples["rounds"]] == [4, 5]
    assert "were removed (retention.groups)" in write_report(lab.run_dir.path).read_text(encoding="utf-8")


def test_a_resume_from_the_oldest_kept_checkpoint_finds_its_rounds(tmp_path: Path) -> None:
    """Every state between the prunes of a run: rounds from the oldest kept checkpoint on are there."""
    found: list[tuple[int, int]] = []

    def look(event: dict[str, object]) -> bool:
        run_dir = RunDir(tmp_path / "run")
        states = sorted(run_dir.checkpoints.glob("round-*/state.json"))
        if states and event["kind"] in ("round_start", "update", "publish"):
            found.append((int(states[0].parent.name[-5:]), min(kept(run_dir.groups))))
        return False

    run_run(tmp_path, rounds=8, checkpoint={"every": 2, "keep": 2}, retention={"groups": 1}, stop_when=look)
    assert found and all(first <= checkpoint for checkpoint, first in found)
    assert {first for _, first in found} != {0}


def test_without_the_setting_all_rounds_stay(tmp_path: Path) -> None:
    lab = run_run(tmp_path, rounds=4, checkpoint={"every": 1})
    assert kept(lab.run_dir.groups) == [0, 1, 2, 3]
    assert choose_samples(lab.run_dir.path, collect_rounds(lab.all_events))["removed"] == 0
