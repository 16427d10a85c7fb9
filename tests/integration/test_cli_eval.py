"""`rolloutpipe eval` through the command line: bad input, without an engine; slow: a real one of each kind of checkpoint."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from common.report.groups import read_groups
from tests.integration.tiny_models import sums_model

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"


def rolloutpipe(*words: object, cwd: Path, timeout_s: float = 280) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "common.cli", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd, env=environment)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sums_model(tmp_path_factory.mktemp("models") / "start", steps=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--checkpoint", "nowhere"], "--checkpoint: must be a directory, got 'nowhere'"),
        (["--checkpoint", "empty"], "--checkpoint: must be a model or a checkpoint, got 'empty'"),
        (["eval.samples=2", "eval.pass_at=[1, 4]"], "eval.pass_at: must be between 1 and eval.samples (2), got 4"),
        (["eval.workload.name=nothing"], "eval.workload.name: must be one of "),
        (["eval.workload={name: jsonl, path: none.jsonl}"], "eval.workload.path: "),
        (["workload.holdout=1e-9"], "workload.holdout: leaves no problem for eval"),
        (["eval.max_tokens=100000"], "eval.max_tokens: must leave room for a prompt"),
        (["--out", "full"], "--out: must be a new directory, or an empty one, got 'full'"),
        (["--json", "none/there.json"], "--json: must be a file that can be written"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path: Path, model: Path, words: list[str], message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    done = rolloutpipe("eval", QUICKSTART, "model.recipe=null", f"model.path={model}", *words, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith(f"rolloutpipe: {message}"), done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_without_a_tokenizer_is_one_line(tmp_path: Path, model: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((model / name).read_bytes())
    done = rolloutpipe("eval", QUICKSTART, "--checkpoint", bare, cwd=tmp_path)
    assert done.returncode == 2 and "tokenizer" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of each trainer."""
    root = tmp_path_factory.mktemp("eval")
    for trainer, ranks in (("torch", 2), ("jax", 1)):
        settings = [f"trainer={trainer}", f"training.ranks={ranks}", "rounds=4", "workload.holdout=0.1", f"run_dir={trainer}"]
        done = rolloutpipe("train", QUICKSTART, *settings, cwd=root, timeout_s=900)
        assert done.returncode == 0, done.stderr
    return root


def evaluated(root: Path, *words: object) -> dict[str, Any]:
    settings = ["workload.holdout=0.1", "eval.samples=4", "eval.pass_at=[1, 2, 4]"]
    done = rolloutpipe("eval", QUICKSTART, *settings, *words, "--json", "found.json", cwd=root, timeout_s=600)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: dict[str, Any] = json.loads((root / "found.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_kind_of_checkpoint_is_evaluated(trained: Path) -> None:
    """A trained model is better than its start, and one checkpoint in several forms has the same samples."""
    start = evaluated(trained, "--out", "out-start")
    for name in ("torch", "jax"):
        run = evaluated(trained, "--checkpoint", name, "--out", f"out-{name}")
        checkpoint = evaluated(trained, "--checkpoint", f"{name}/checkpoints/round-00004", "--out", f"out-{name}-checkpoint")
        assert run["figures"] == checkpoint["figures"], "model/ and the last checkpoint are the same weights"
        assert run["weight_version"] == checkpoint["weight_version"] == 4 and run["trained_on"] == 0
        assert run["figures"]["accuracy"]["low"] > start["figures"]["accuracy"]["high"]
    done = rolloutpipe("convert", "jax/model", "orbax", cwd=trained)
    assert done.returncode == 0, done.stderr
    orbax = evaluated(trained, "--checkpoint", "orbax", "--out", "out-orbax")
    assert orbax["figures"] == run["figures"] and orbax["trained_on"] is None
    _check_figures(trained / "out-torch", json.loads((trained / "out-torch" / "eval.json").read_text())["figures"])


def _check_figures(out: Path, figures: dict[str, Any]) -> None:
    """From the samples on disk, by brute force over all subsets."""
    found = defaultdict(list)
    for path in (out / "eval").iterdir():
        for stored in read_groups(path):
            right = [sample.status == "ok" for sample in stored.group.samples]
            for k in (1, 2, 4):
                found[k].append(fmean(map(any, combinations(right, k))))
    for k, values in found.items():
        assert figures["pass_at"][str(k)]["value"] == pytest.approx(fmean(values))
    assert figures["accuracy"]["value"] == pytest.approx(fmean(found[1]))
