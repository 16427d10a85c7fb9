"""`rolloutpipe parity`: what it refuses, in one line, and what it writes for a tiny model."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import tests.integration.test_cli_bad_input as bad_input
from common.config import load_config
from common.records import Group
from common.report.groups import GroupWriter
from common.rundir import RunDir, create
from tests.integration.test_cli_bad_input import ROOT, Shell

model, shell = bad_input.model, bad_input.shell  # its fixtures


def recorded(root: Path, config: Path, groups: list[Group]) -> Path:
    """A run directory with these groups in its first round."""
    run_dir = RunDir(root / "run")
    create(run_dir, load_config(config))
    with GroupWriter(run_dir.groups) as writer:
        for group in groups:
            writer.write(0, group, prompt="1 + 1 =")
    return run_dir.path


# --- bad input


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--losses", "grpo,ppo"), "--losses: must be all, or some of grpo,dr_grpo,dapo,gspo,cispo, got 'ppo'; "),
        (("--losses", ""), "--losses: must name each loss once, got ''"),
        (("--losses", "dapo,dapo"), "--losses: must name each loss once, got 'dapo,dapo'"),
        (("--updates", "0"), "--updates: must be 1 or more, got 0"),
        (("--updates", "x"), "Invalid value for '--updates'"),
        (("--grad-tolerance", "0"), "--grad-tolerance: must be a finite number above 0, got 0.0"),
        (("--param-tolerance", "nan"), "--param-tolerance: must be a finite number above 0, got nan"),
        (("--json", "/nowhere/at/all.json"), "--json: must be a file that can be written"),
        (("training.loss=ppo",), "training.loss: must be 'grpo', 'dr_grpo', 'dapo', 'gspo' or 'cispo', got 'ppo'"),
        (("training.attention=splash", "trainer=jax"), "training.attention: must be xla where there is no TPU"),
        (("model.path=nowhere",), "model.path: must be a model directory, got 'nowhere'"),
        (
            ("training.ranks=3", "training.tensor_parallel=3", "trainer=jax"),
            "training.tensor_parallel: must divide the model's",
        ),
    ],
)
def test_words_that_parity_does_not_take(shell: Shell, words: tuple[str, ...], said: str) -> None:
    assert shell.refuses("parity", shell.config(), *words).startswith(said)


def test_a_directory_that_is_no_run_is_refused(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert shell.refuses("parity", tmp_path / "empty").startswith("RUN_DIR: must hold the config.yaml of a run")


def test_a_source_that_is_not_there_is_refused(shell: Shell) -> None:
    assert shell.refuses("parity", "nowhere").startswith("CONFIG: must be a readable YAML file")


def test_a_run_without_groups_is_refused(shell: Shell, tmp_path: Path) -> None:
    run = recorded(tmp_path, shell.config(), [])
    assert shell.refuses("parity", run).startswith("RUN_DIR: must hold groups with a spread of rewards")


def test_a_run_of_flat_groups_alone_is_refused(shell: Shell, tmp_path: Path, make_group: Callable[..., Group]) -> None:
    """Two trainers that do nothing would agree."""
    run = recorded(tmp_path, shell.config(), [make_group(0, rewards=[1.0, 1.0])])
    assert shell.refuses("parity", run).startswith("RUN_DIR: must hold groups with a spread of rewards")


def test_a_run_of_another_model_is_refused(
    shell: Shell, tmp_path: Path, make_group: Callable[..., Group], tiny_model: Path
) -> None:
    """The groups have tokens that this model does not."""
    from dataclasses import replace

    group = make_group(0)
    samples = [replace(one, response=replace(one.response, token_ids=(200,), logprobs=(-1.0,))) for one in group.samples]
    run = recorded(tmp_path, shell.config(), [replace(group, samples=tuple(samples))])
    said = shell.refuses("parity", run, f"model.path={tiny_model}")
    rule = "must be of a model that has the tokens of the recorded groups (one has id 200), got '45 tokens'"
    assert said == f"model.path: {rule}; give the model that the run started from"


def test_a_run_whose_model_is_gone_is_refused(shell: Shell, tmp_path: Path, make_group: Callable[..., Group]) -> None:
    run = recorded(tmp_path, shell.config(model={"path": "/gone/model"}), [make_group(0)])
    assert shell.refuses("parity", run).startswith("model.path: must be a model directory, got '/gone/model'")


def test_a_model_that_jax_does_not_know_is_refused(shell: Shell, tmp_path: Path, make_group: Callable[..., Group]) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    other = tmp_path / "gpt2"
    GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)).save_pretrained(other)
    run = recorded(tmp_path, shell.config(model={"path": str(other)}), [make_group(0)])
    assert "qwen3" in shell.refuses("parity", run).lower()


# --- the command


def settings_of(model: Path) -> dict[str, Any]:
    """Small, on a mesh of two; rewards by length, as the model cannot add."""
    return {
        "model": {"path": str(model)},
        "groups_per_round": 2,
        "groups_per_update": 1,
        "responses_per_group": 4,
        "sampling": {"max_tokens": 8},
        "workload": {"size": 20},
        "rewards": {"function": "parity_rewards:by_length"},
        "training": {"ranks": 2, "lr": 1e-3, "weight_decay": 0.1, "micro_batch_tokens": 256},
    }


def test_parity_samples_groups_trains_both_and_says_ok(model: Path, tmp_path: Path) -> None:
    (tmp_path / "parity_rewards.py").write_text("def by_length(task, response):\n    return float(len(response) % 3)\n")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings_of(model)))
    command = [sys.executable, "-m", "common.cli", "parity", "config.yaml", "--losses", "dapo", "--updates", "2"]
    command += ["--grad-tolerance", "1e-4"]  # norms of an untrained model's queries have next to no gradient: 2e-5
    done = subprocess.run(
        [*command, "--json", "out.json"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "" and "dapo: torch and JAX" in done.stdout and "\nok: gradients" in done.stdout
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["ok"] and [row["update"] for row in data["updates"]] == [1, 2]
    for row in data["updates"]:
        assert row["loss"] == "dapo" and row["grad_norm_torch"] > 0 and 0 < row["grad_rel_l2_max"] < 5e-3
        assert 0 < row["param_rel_l2_max"] < 5e-5 and row["loss_torch"] == pytest.approx(row["loss_jax"], abs=1e-5)
        assert {row["grad_worst_tensor"], row["param_worst_tensor"]} <= _tensors(model)


def _tensors(model: Path) -> set[str]:
    from common.spool import model_layout

    return set(model_layout(model))
