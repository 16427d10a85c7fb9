"""Where a run lies, and what is refused before anything is made."""

import json
from pathlib import Path

import pytest
import yaml
from round_lab import config_of

from common.config import load_config
from common.errors import ConfigError, DataError, DiskError
from common.rundir import (
    RunDir,
    begun,
    check_same_problems,
    checkpoint_dir,
    create,
    finished_checkpoints,
    held,
    newest_checkpoint,
    plan_run_dir,
    prune,
    write_atomically,
)


def checkpoint(run_dir: RunDir, rounds: int, *, is_finished: bool = True) -> Path:
    directory = checkpoint_dir(run_dir, rounds)
    directory.mkdir(parents=True)
    if is_finished:
        state = {"round": rounds, "version": rounds, "sampler": {}, "workload": "c0ffee"}
        (directory / "state.json").write_text(json.dumps(state))
    return directory


def test_planning_makes_nothing(tmp_path: Path) -> None:
    plan_run_dir(config_of(run_dir=str(tmp_path / "a" / "b")))
    assert list(tmp_path.iterdir()) == []


def test_runs_without_a_directory_of_their_own_never_share_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = []
    for _ in range(3):
        run_dir = plan_run_dir(config_of(name="again"))
        create(run_dir, config_of(name="again"))
        paths.append(run_dir.path)
    assert len(set(paths)) == 3 and all(path.parts[0] == "runs" and path.name.startswith("again-") for path in paths)


@pytest.mark.parametrize("name", ["config.yaml", "timeline.jsonl"])
def test_a_directory_that_holds_a_run_is_refused_with_two_ways_out(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match=r"run_dir: must not hold a run already, got .*; choose another, .* --resume "):
        plan_run_dir(config_of(run_dir=str(tmp_path)))


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_where_the_directory_should_be_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="run_dir: must be a directory that can be made"):
        plan_run_dir(config_of(run_dir=str(tmp_path / place)))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # tests may run as root, whom no mode stops
    with pytest.raises(ConfigError, match="it cannot be written"):
        plan_run_dir(config_of(run_dir=str(tmp_path / "run")))


def test_a_directory_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("common.rundir.write_atomically", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        create(RunDir(tmp_path / "run"), config_of())
    assert list(tmp_path.iterdir()) == []


def test_what_lay_in_the_directory_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    create(RunDir(tmp_path), config_of())
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_resolved_configuration_reads_back_as_itself(tmp_path: Path) -> None:
    config = config_of(training={"kl": {"coef": 0.1}}, sampling={"stop_token_ids": [1, 2]})
    create(RunDir(tmp_path / "run"), config)
    assert load_config(tmp_path / "run" / "config.yaml") == config
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["groups_per_round"] == 4


def test_a_second_process_cannot_run_in_the_same_directory(tmp_path: Path) -> None:
    with (
        held(RunDir(tmp_path)),
        pytest.raises(ConfigError, match="run_dir: must not be a run that still goes on"),
        held(RunDir(tmp_path)),
    ):
        pass
    with held(RunDir(tmp_path)):  # free again
        pass


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "result.json"
    write_atomically(file, "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("common.durable.os.fsync", full)
    with pytest.raises(DiskError, match=r"result.json cannot be written: No space left"):
        write_atomically(file, "new")
    assert file.read_text() == "old"


def test_an_unfinished_checkpoint_counts_for_nothing(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    checkpoint(run_dir, 2)
    checkpoint(run_dir, 10)
    checkpoint(run_dir, 11, is_finished=False)
    assert [path.name for path in finished_checkpoints(run_dir)] == ["round-00002", "round-00010"]
    path, state = newest_checkpoint(run_dir)
    assert path.name == "round-00010" and state["version"] == 10


def test_pruning_keeps_the_newest_and_removes_unfinished_ones(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for rounds in (1, 2, 3):
        checkpoint(run_dir, rounds)
    checkpoint(run_dir, 4, is_finished=False)
    prune(run_dir, 2)
    assert sorted(path.name for path in run_dir.checkpoints.iterdir()) == ["round-00002", "round-00003"]


def test_without_a_checkpoint_a_resume_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--resume: needs a finished checkpoint, got .*; start again in a new run directory"):
        newest_checkpoint(RunDir(tmp_path))


STATE = '{"round": %d, "version": %d, "sampler": {}, "workload": "a"}'


@pytest.mark.parametrize("text", ["", "{", "[]", '{"round": 1}', STATE % (2, 2), STATE % (1, 7), STATE % (2, 1)])
def test_a_broken_state_names_its_checkpoint(tmp_path: Path, text: str) -> None:
    directory = checkpoint(RunDir(tmp_path), 1)
    (directory / "state.json").write_text(text)
    with pytest.raises(DataError, match=r"--resume: needs a whole state\.json .*, got .*round-00001.*; move that directory away"):
        newest_checkpoint(RunDir(tmp_path))


@pytest.mark.parametrize("name", ["round-00002.damaged", "round-00002-old", "round-"])
def test_a_checkpoint_that_was_moved_away_counts_no_more(tmp_path: Path, name: str) -> None:
    run_dir = RunDir(tmp_path)
    checkpoint(run_dir, 1)
    checkpoint(run_dir, 2).rename(run_dir.checkpoints / name)
    assert [path.name for path in finished_checkpoints(run_dir)] == ["round-00001"]


def test_of_two_starts_into_one_directory_the_second_changes_nothing(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs" / "a")
    with begun(run_dir):
        create(run_dir, config_of(seed=1))
        with pytest.raises(ConfigError, match="must not be a run that still goes on"), begun(run_dir):
            create(run_dir, config_of(seed=2))
    with pytest.raises(ConfigError, match="must not hold a run already"), begun(run_dir):
        create(run_dir, config_of(seed=3))
    assert load_config(run_dir.config).seed == 1


def test_a_start_that_is_refused_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), begun(RunDir(tmp_path / "runs" / "a")):
        raise ConfigError("refused")
    assert list(tmp_path.iterdir()) == []


def test_other_problems_are_refused() -> None:
    check_same_problems({"workload": "a"}, "a")
    with pytest.raises(DataError, match=r"workload: must be the problems .* \(content a\), got 'b'"):
        check_same_problems({"workload": "a"}, "b")
