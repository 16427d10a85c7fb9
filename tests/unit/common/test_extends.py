"""`extends` of a configuration: what the base says, unless the file says otherwise."""

import os
from pathlib import Path

import pytest

from common.config import load_config
from common.config_errors import read_yaml
from common.errors import ConfigError

BASE = """
model: {path: m}
rounds: 3
sampling: {max_tokens: 64, temperature: 0.5}
cluster: {rollout: {labels: {pool: a}, gpus: 2}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "below" / "middle.yaml").write_text("extends: ../base.yaml\nsampling: {max_tokens: 32}\nrounds: 5\n")
    (tmp_path / "top.yaml").write_text("extends: below/middle.yaml\nname: top\ncluster: {rollout: {gpus: 4}}\n")
    return tmp_path


def test_a_file_is_laid_over_its_base_section_by_section(folder: Path) -> None:
    config = load_config(folder / "top.yaml")
    assert (config.name, config.rounds) == ("top", 5)
    assert (config.sampling.max_tokens, config.sampling.temperature) == (32, 0.5)
    assert (config.cluster.rollout.gpus, config.cluster.rollout.labels) == (4, {"pool": "a"})


def test_overrides_come_last(folder: Path) -> None:
    assert load_config(folder / "top.yaml", ["rounds=9", "sampling.max_tokens=8"]).rounds == 9


def test_a_value_that_is_no_section_replaces_one(folder: Path) -> None:
    (folder / "none.yaml").write_text("extends: base.yaml\nsampling: null\n")
    assert read_yaml(folder / "none.yaml")["sampling"] is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends: top.yaml\n", "extends: must not lead back to a file that led to"),
        ("extends: other.yaml\n", "extends: must not lead back to a file that led to"),
        ("extends: nowhere.yaml\n", "CONFIG: must be a readable YAML file, got '"),
        ("extends: [base.yaml]\n", "extends: must be the name of a configuration file, got ['base.yaml']"),
        ("extends: broken.yaml\n", "CONFIG: must be valid YAML, got '"),
        ('extends: "a\\0b"\n', "extends: must be the name of a configuration file, got 'a"),
        ("extends: circle.yaml\n", "extends: must be the name of a configuration file, got 'circle.yaml'"),
        ("extends: pipe.yaml\n", "CONFIG: must be a readable YAML file, got '"),
    ],
)
def test_a_base_that_cannot_be_is_refused_in_one_line(folder: Path, text: str, said: str) -> None:
    (folder / "top.yaml").write_text(text)
    (folder / "other.yaml").write_text("extends: top.yaml\n")
    (folder / "broken.yaml").write_text("a: [\n")
    (folder / "circle.yaml").symlink_to(folder / "circle.yaml")
    os.mkfifo(folder / "pipe.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config(folder / "top.yaml")
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match=r"^CONFIG: must be a readable YAML file.*\(it is no regular file\)$"):
        load_config(tmp_path / "pipe.yaml")


def test_a_chain_of_twenty_files_is_read_and_a_longer_one_refused(tmp_path: Path) -> None:
    (tmp_path / "0.yaml").write_text(BASE)
    for number in range(1, 21):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {number - 1}.yaml\n")
    assert load_config(tmp_path / "19.yaml").rounds == 3
    with pytest.raises(ConfigError, match=r"^extends: must lead through at most 20 files, got '0\.yaml'; "):
        load_config(tmp_path / "20.yaml")


def test_extends_is_of_files_and_no_setting(folder: Path) -> None:
    with pytest.raises(ConfigError, match="extends: is no known setting"):
        load_config(folder / "base.yaml", ["extends=top.yaml"])
