"""Crafted files as people meet them: `rolloutpipe` says one line, exits with 2, soon, and runs nothing of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from crafted_files import DEEP, MARK, TENSOR_FILES, YAML_FILES, bomb

from common import cli
from tests.integration.tiny_models import sums_model

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
Refuses = Callable[..., str]


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sums_model(tmp_path_factory.mktemp("models") / "sums", steps=1)


@pytest.fixture
def refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refuses:
    """Runs the command in `tmp_path`; the one line that it says."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> str:
        code = cli.run([str(word) for word in words])
        said = capsys.readouterr().err
        assert code == 2, said
        assert said.startswith("rolloutpipe: ") and said.count("\n") == 1
        assert len(said) < 3000
        assert not (tmp_path / MARK).exists()
        return said

    return run


@pytest.mark.parametrize("content", YAML_FILES.values(), ids=YAML_FILES.keys())
def test_a_crafted_configuration(tmp_path: Path, refuses: Refuses, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    refuses("train", "config.yaml")


def config(directory: Path, model: Path, **settings: Any) -> Path:
    file = directory / "config.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(QUICKSTART.read_text()), "model": {"path": str(model)}, **settings}))
    return file


def _config_json(**changes: Any) -> Callable[[Path], object]:
    def spoil(model: Path) -> None:
        file = model / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return spoil


def _put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda model: (model / name).write_bytes(content)


def _huge_ids(model: Path) -> None:
    file = model / "tokenizer.json"
    data = json.loads(file.read_text())
    data["model"]["vocab"] = {word: 2**32 - 1 - number for number, word in enumerate(data["model"]["vocab"])}
    file.write_text(json.dumps(data))


NESTED = b'{"a":' * DEEP + b"1" + b"}" * DEEP
SPOILS: dict[str, Callable[[Path], object]] = {
    "layers": _config_json(num_hidden_layers=10**9),
    "context": _config_json(max_position_embeddings=10**40),
    "width": _config_json(hidden_size=2**62),
    "vocabulary": _config_json(vocab_size=2**62),
    "nested config.json": _put("config.json", NESTED),
    "nested generation_config.json": _put("generation_config.json", NESTED),
    "nested tokenizer.json": _put("tokenizer.json", NESTED),
    "nested tokenizer_config.json": _put("tokenizer_config.json", NESTED),
    "pickle": lambda model: (model / "model.safetensors").write_bytes(bomb(Path.cwd())),
    "index": _put("model.safetensors.index.json", b'{"weight_map": {"w": "../../x.safetensors"}}'),
    "header": lambda model: (model / "model.safetensors").write_bytes(TENSOR_FILES["header of 10^9 bytes"]()),
    "token ids": _huge_ids,
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS.keys())
def test_a_crafted_model(tmp_path: Path, whole_model: Path, refuses: Refuses, spoil: Callable[[Path], object]) -> None:
    model = shutil.copytree(whole_model, tmp_path / "model")
    spoil(model)
    refuses("train", config(tmp_path, model), "--dry-run")


@pytest.mark.parametrize("content", [b"[" * DEEP, b'{"round": 1e9}', b'{"round": true}', b"\xff", b"x" * (17 * 10**6)])
def test_a_crafted_state_of_a_run(tmp_path: Path, whole_model: Path, refuses: Refuses, content: bytes) -> None:
    run_dir = tmp_path / "run"
    checkpoint = run_dir / "checkpoints" / "round-00001"
    checkpoint.mkdir(parents=True)
    shutil.copy(config(tmp_path, whole_model, run_dir=str(run_dir)), run_dir / "config.yaml")
    (checkpoint / "state.json").write_bytes(content)
    assert "--resume: needs a whole state.json" in refuses("train", "--resume", run_dir)
