"""Settings of an evaluation: what is refused, and under which name."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from common.config import Config, load_config
from common.config_eval import EvalConfig
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
        ({"every": 1.5}, "eval.every: must be a valid integer, got 1.5; "),
        ({"samples": True}, "eval.samples: must be a number, got True; "),
        ({"samples": 2.0}, "eval.samples: must be a valid integer, got 2.0; "),
        ({"pass_at": [True]}, "eval.pass_at.0: must be a valid integer, got True; "),
        ({"pass_at": [1.0]}, "eval.pass_at.0: must be a valid integer, got 1.0; "),
        ({"seed": 1.0}, "eval.seed: must be a valid integer, got 1.0; "),
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


def test_whole_numbers_are_whole_numbers_also_without_a_file() -> None:
    for section in ({"samples": True}, {"pass_at": (True,)}, {"max_tokens": True}, {"every": 1.0}):
        with pytest.raises(ValidationError):
            EvalConfig.model_validate(section)


def test_no_fault_of_a_number_says_twice_what_it_got(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "rounds=1.5")
    assert str(caught.value).startswith("rounds: must be a valid integer, got 1.5; ")
