"""Faults of `rewards.function` are found when it is loaded, in one line that names the setting."""

from pathlib import Path

import pytest

from common.errors import ConfigError
from common.rewards.functions import load_function


def test_a_function_is_found_by_its_path() -> None:
    assert load_function("planted_rewards:obey")({}, "right") == 1.0


def test_the_working_directory_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reward_in_the_working_directory.py").write_text("def score(task, response):\n    return 0.25\n")
    monkeypatch.setattr("sys.path", [])
    monkeypatch.chdir(tmp_path)
    assert load_function("reward_in_the_working_directory:score")({}, "") == 0.25


def test_the_example_scores_both_kinds_of_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[4])
    score = load_function("examples.custom_reward:score")
    assert score({"workload": "jsonl", "gold": "12"}, "3 + 9 = 12") == (1.0, "right")
    assert score({"workload": "reasoning_gym", "entry": {"answer": "12"}}, " " * 198 + "12") == (0.75, "right")
    assert score({"workload": "jsonl", "gold": "12"}, "none")[0] == 0.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("planted_rewards", "must read package.module:function"),
        ("planted_rewards:", "must read package.module:function"),
        (":obey", "must read package.module:function"),
        ("no_such_module:score", "module no_such_module must be importable"),
        ("common.no_such_module:score", "module common.no_such_module must be importable"),
        ("planted_rewards:obay", "module planted_rewards must define obay"),
        ("planted_rewards:not_callable", "must name a function"),
        ("planted_rewards:one_argument", r"must accept \(task, response\)"),
        ("planted_rewards:coroutine", "must be a plain function"),
    ],
)
def test_a_bad_path_is_one_line(path: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rf"^rewards\.function: {rule}, got '{path}'; ") as caught:
        load_function(path)
    assert "\n" not in str(caught.value)


def test_a_module_that_fails_names_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reward_that_fails_to_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="ZeroDivisionError: division by zero"):
        load_function("reward_that_fails_to_import:score")
