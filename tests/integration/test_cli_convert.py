"""`rolloutpipe convert`: what it refuses, in one line and with nothing written."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tests.integration.test_cli_bad_input as bad_input
from tests.integration.test_cli_bad_input import Shell, edit_config, replace, truncate

model, shell = bad_input.model, bad_input.shell  # its fixtures


def test_convert_refuses_what_is_no_model(shell: Shell) -> None:
    said = shell.refuses("convert", "nowhere", "target")
    rule = "SOURCE: must be a Hugging Face directory (config.json, *.safetensors) or an Orbax directory (0/params), got 'nowhere'"
    assert said.startswith(f"{rule}; give a model")


def test_convert_refuses_a_checkpoint_of_the_torch_trainer(shell: Shell, tmp_path: Path) -> None:
    checkpoint = tmp_path / "trainer"
    checkpoint.mkdir()
    (checkpoint / "rank-00000-of-00001.safetensors").write_bytes(b"")
    (checkpoint / "state.json").write_text("{}")
    assert shell.refuses("convert", checkpoint, "target").startswith("SOURCE: must be a Hugging Face directory")


def test_convert_overwrites_nothing(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    for target in (tmp_path / "mine", tmp_path / "mine" / "file", shell.model):
        said = shell.refuses("convert", shell.model, target)
        assert said.startswith(f"TARGET: must be a new directory, or an empty one, got '{target}'; choose")
    assert (tmp_path / "mine" / "file").read_text() == "mine"


def test_convert_writes_nothing_into_its_source(shell: Shell) -> None:
    said = shell.refuses("convert", shell.model, shell.model / "orbax")
    assert said.startswith("TARGET: must not lie within SOURCE, got")
    assert not (shell.model / "orbax").exists()


def test_convert_needs_a_place_that_can_be_written(shell: Shell) -> None:
    path = shell.write("file", "mine")
    said = shell.refuses("convert", shell.model, path / "target")
    assert said.startswith(f"TARGET: must be a place that can be written, got '{path}/target'; choose another (")


def test_convert_knows_two_dtypes(shell: Shell) -> None:
    said = shell.refuses("convert", shell.model, "target", "--dtype", "int8")
    assert said == "--dtype: must be float32 or bfloat16, got 'int8'; leave it out to keep what is stored"


def test_convert_takes_a_config_from_elsewhere_for_checkpoints_only(shell: Shell) -> None:
    said = shell.refuses("convert", shell.model, "target", "--like", shell.model)
    assert said.startswith("--like: must be left out where SOURCE is a Hugging Face directory")


def test_convert_without_jax_names_the_extra(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutpipe_jax.room.find_spec", lambda name: None if name == "jax" else object())
    said = shell.refuses("convert", shell.model, "target")
    assert said == f"convert: needs packages that are not installed (jax), got '{shell.model}'; pip install 'rolloutpipe[jax]'"


def test_a_package_that_is_there_and_broken_is_told(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ImportError("jaxlib is version 0.1, but jax needs 0.10")

    def fail(name: str) -> None:
        raise broken

    monkeypatch.setattr("common.commands.convert.importlib.import_module", fail)
    said = shell.refuses("convert", shell.model, "target")
    assert said == f"a package that is needed for this is installed and cannot be imported ({broken}); install it again"


def test_convert_refuses_a_checkpoint_that_was_cut_off(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "round-00001" / "trainer.partial" / "0").mkdir(parents=True)
    for source in (tmp_path / "round-00001", tmp_path / "round-00001" / "trainer"):
        said = shell.refuses("convert", source, "target")
        assert said.startswith("SOURCE: must be a checkpoint that was finished (this one was cut off while it was written)")


def test_convert_refuses_an_architecture_that_the_jax_trainer_does_not_know(shell: Shell, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(shell.model, spoilt)
    edit_config(architectures=["BloomForCausalLM"])(spoilt)
    said = shell.refuses("convert", spoilt, "target")
    assert said.startswith("SOURCE: must be of an architecture that trainer=jax knows, got 'BloomForCausalLM'; use one of Qwen3")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(truncate, "must hold readable safetensors"), (replace("config.json", b"[]"), "must hold a readable config.json")],
)
def test_convert_refuses_a_corrupt_model(shell: Shell, tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(shell.model, spoilt)
    spoil(spoilt)
    assert shell.refuses("convert", spoilt, "target").startswith(f"SOURCE: {said}")
