"""What `--checkpoint` may name, and the weights that come of it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from common.config import Config, load_config
from common.errors import DataError
from common.evaluation.checkpoint import as_hugging_face, locate
from common.spool import check_spool, model_layout, spool_files, spool_model
from rolloutpipe_torch.checkpoint import rows

SHAPES = {"model.embed_tokens.weight": (7, 4), "model.norm.weight": (4,), "model.one.weight": (1, 3)}


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """The model that a run starts from."""
    directory = tmp_path / "start"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    (directory / "tokenizer.json").write_text("{}")
    save_file({name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in SHAPES.items()}, directory / "model.safetensors")
    return directory


@pytest.fixture
def config(tmp_path: Path, start: Path) -> Config:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"model": {"path": str(start)}}))
    return load_config(path)


def make_run(root: Path, start: Path, *, has_model: bool = False) -> Path:
    run = root / "run"
    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump({"model": {"path": str(start)}, "name": "trained"}))
    if has_model:
        (run / "model").mkdir()
        (run / "model" / "config.json").write_text("{}")
        (run / "result.json").write_text(json.dumps({"weight_version": 9}))
    return run


def make_checkpoint(run: Path, number: int, weights: dict[str, torch.Tensor], num_ranks: int = 3) -> Path:
    """As the torch ranks write it: each its rows of every tensor."""
    checkpoint = run / "checkpoints" / f"round-{number:05d}"
    trainer = checkpoint / "trainer"
    trainer.mkdir(parents=True)
    for rank in range(num_ranks):
        parts = {name: tensor[slice(*rows(tensor.shape[0], rank, num_ranks))].contiguous() for name, tensor in weights.items()}
        moments = {f"exp_avg/{name}": torch.full_like(part, 5.0) for name, part in parts.items()}
        save_file(
            {**{f"weight/{n}": p for n, p in parts.items()}, **moments},
            trainer / f"rank-{rank:05d}-of-{num_ranks:05d}.safetensors",
        )
    (trainer / "state.json").write_text(json.dumps({"optimizer_step": 3, "num_ranks": num_ranks}))
    (checkpoint / "state.json").write_text(json.dumps({"round": number, "version": number, "sampler": {}, "workload": ""}))
    return checkpoint


def some_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def test_nothing_given_is_the_configurations_own_model(config: Config, start: Path) -> None:
    found = locate(config, None)
    assert (found.kind, found.weights, found.version, found.run, found.is_start) == ("hf", start, 0, None, True)


def test_a_hugging_face_directory_is_taken_as_it_is(config: Config, start: Path, tmp_path: Path) -> None:
    found = locate(config, start)
    assert found.kind == "hf" and as_hugging_face(found, tmp_path / "target") == start and not (tmp_path / "target").exists()
    assert (found.run, found.run_dir, found.is_start) == (None, None, False)


def test_the_model_of_a_run_knows_its_run(config: Config, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, start, has_model=True)
    (run / "model" / "model.safetensors").touch()
    wanted = locate(config, run)
    assert wanted.version == 9 and wanted.run is not None
    assert locate(config, run / "model") == wanted
    monkeypatch.chdir(run)
    assert locate(config, Path("model")) == wanted


def test_a_run_is_its_model(config: Config, start: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, start, has_model=True)
    make_checkpoint(run, 4, some_weights())
    found = locate(config, run)
    assert (found.kind, found.weights, found.version) == ("hf", run / "model", 9)
    assert found.run is not None and found.run.name == "trained" and found.run_dir == run


def test_a_run_without_a_model_is_its_newest_finished_checkpoint(config: Config, start: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, start)
    for number in (2, 10, 9):
        make_checkpoint(run, number, some_weights())
    (make_checkpoint(run, 11, some_weights()) / "state.json").unlink()  # not finished
    found = locate(config, run)
    assert (found.kind, found.version) == ("torch", 10)
    assert found.weights == run / "checkpoints" / "round-00010" / "trainer" and found.files == start


@pytest.mark.parametrize("part", ["", "trainer"])
def test_a_checkpoint_of_the_torch_trainer_becomes_a_model(config: Config, start: Path, tmp_path: Path, part: str) -> None:
    """Rows of all ranks in order, no moments, in the dtype of the starting model."""
    weights = some_weights()
    checkpoint = make_checkpoint(make_run(tmp_path, start), 4, weights)
    found = locate(config, checkpoint / part)
    assert (found.kind, found.version) == ("torch", 4) and found.run is not None and found.run_dir == tmp_path / "run"
    target = as_hugging_face(found, tmp_path / "target")
    made = load_file(target / "model.safetensors")
    assert made.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(made[name], tensor.to(torch.bfloat16)), name
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_a_checkpoint_of_another_model_is_refused(config: Config, start: Path, tmp_path: Path) -> None:
    weights = {**some_weights(), "model.norm.weight": torch.zeros(5)}
    found = locate(config, make_checkpoint(make_run(tmp_path, start), 1, weights))
    with pytest.raises(DataError, match=r"--checkpoint: must hold the weights of the run's model.*model\.norm\.weight"):
        as_hugging_face(found, tmp_path / "target")
    assert not (tmp_path / "target").exists() and not list(tmp_path.glob(".target*"))


def test_a_checkpoint_with_a_rank_missing_is_refused(config: Config, start: Path, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(make_run(tmp_path, start), 1, some_weights())
    (checkpoint / "trainer" / "rank-00001-of-00003.safetensors").unlink()
    with pytest.raises(DataError, match="must hold the files of all 3 ranks"):
        as_hugging_face(locate(config, checkpoint), tmp_path / "target")


def orbax_at(directory: Path, **files: Any) -> Path:
    (directory / "0" / "params").mkdir(parents=True)
    for name, text in files.items():
        (directory / f"{name}.json").write_text(text)
    return directory


def test_orbax_directories_are_known(config: Config, start: Path, tmp_path: Path) -> None:
    own = locate(config, orbax_at(tmp_path / "converted", config="{}"))
    assert own.kind == "orbax" and own.files == own.weights == tmp_path / "converted"
    run = make_run(tmp_path, start)
    orbax_at(run / "checkpoints" / "round-00003" / "trainer", state="{}")
    (run / "checkpoints" / "round-00003" / "state.json").write_text('{"version": 3}')
    for path in (run, run / "checkpoints" / "round-00003", run / "checkpoints" / "round-00003" / "trainer"):
        found = locate(config, path)
        assert (found.kind, found.files, found.version) == ("orbax", start, 3), path


def test_a_checkpoint_that_was_moved_takes_the_configurations_model_and_says_so(
    config: Config, start: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    moved = make_checkpoint(make_run(tmp_path, start), 2, some_weights()).rename(tmp_path / "moved")
    found = locate(config, moved, lines.append)
    assert found.run is None and found.files == start and "not known" in lines[0]


def test_bad_paths_are_told_in_one_line(config: Config, start: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, words in (
        (tmp_path / "nowhere", "--checkpoint: must be a directory"),
        (start / "config.json", "--checkpoint: must be a directory"),
        (empty, "--checkpoint: must be a model or a checkpoint"),
        (make_run(tmp_path, start), "--checkpoint: must hold model/ or a finished checkpoint"),
    ):
        with pytest.raises(DataError) as caught:
            locate(config, path)
        assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_spool_of_a_model_is_what_a_trainer_would_export(start: Path, tmp_path: Path) -> None:
    """A tied head that stands in the files is left out, as in a publish."""
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in some_weights(3).items()}
    (start / "model.safetensors").unlink()
    names = list(weights)
    save_file({names[0]: weights[names[0]], "lm_head.weight": torch.ones(7, 4)}, start / "model-00001-of-00002.safetensors")
    save_file({name: weights[name] for name in names[1:]}, start / "model-00002-of-00002.safetensors")
    spool_model(start, tmp_path / "spool", 5)
    check_spool(tmp_path / "spool", 5, model_layout(start))
    found: dict[str, torch.Tensor] = {}
    for file in spool_files(tmp_path / "spool"):
        found |= load_file(file)
    assert found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in weights)
