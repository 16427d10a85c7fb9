"""Settings of an evaluation: what is refused, and under which name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from common.config import Config, load_config
from common.errors import ConfigError


def load(tmp_path: Path, *overrides: str, **section: Any) -> Config:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"model": {"path": "m"}, "eval": section}))
    return load_config(path, list(overrides))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"samples": 2, "pass_at": [1, 4]}, "eval.pass_at: must be between 1 and eval.samples (2), got 4"),
        ({"samples": 2, "temperature": 0}, "eval.samples: must be 1 with temperature 0"),
        ({"every": 0}, "eval.every: "),
        ({"top_p": 0}, "eval.top_p: "),
        ({"workload": {"name": "nothing"}}, "eval.workload.name: must be one of"),
        ({"workload": {"name": "gsm8k"}}, "eval.workload: exactly one of path and dataset must be set for gsm8k"),
        ({"workload": {"name": "gsm8k"}}, "set eval.workload.path to a file"),
        ({"workload": {"question_pattern": "("}}, "eval.workload.question_pattern: must be a regular expression"),
        ({"workload": {"system_prompt": "x"}}, "eval.workload.system_prompt: is for chat templates only"),
        ({"workload": {"system_prompt": "x"}}, "set eval.workload.use_chat_template=true"),
        ({"workload": {"holdout": 1.5}}, "eval.workload.holdout: "),
        ({"workload": {"sise": 5}}, "did you mean eval.workload.size?"),
    ],
)
def test_faults_name_the_field_as_typed(tmp_path: Path, section: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **section)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert "eval.eval" not in str(caught.value)


def test_the_same_fault_of_the_runs_own_workload_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "workload.name=nothing")
    assert str(caught.value).startswith("workload.name: ")


def test_it_can_be_set_from_the_command_line(tmp_path: Path) -> None:
    config = load(tmp_path, "eval.workload.name=gsm8k", "eval.workload.path=test.jsonl", "eval.samples=4", "eval.pass_at=[1, 4]")
    assert config.eval.workload is not None and config.eval.workload.path == "test.jsonl"
    assert config.eval.pass_at == (1, 4)


def test_what_is_not_set_is_the_trainings(tmp_path: Path) -> None:
    config = load(tmp_path, "sampling.temperature=0.7", "sampling.max_tokens=64", "sampling.stop_token_ids=[7]", top_p=0.9)
    sampling = config.eval.sampling(config.sampling.build())
    assert (sampling.temperature, sampling.max_tokens, sampling.top_p, sampling.stop_token_ids) == (0.7, 64, 0.9, (7,))
    assert not sampling.is_trained
    greedy = load(tmp_path, temperature=0)
    assert greedy.eval.sampling(greedy.sampling.build()).temperature == 0
