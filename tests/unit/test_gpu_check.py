"""benchmarks/gpu_check.py on a machine without a GPU: the tiny shape is measured, all else is skipped with its reason."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPU = {"version": "2", "gpu": "NVIDIA GeForce RTX 4090", "gpu_bytes": 24 * 2**30}


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu_check

    return gpu_check


def job(*words: str) -> dict[str, Any]:
    """A job in its own process: JAX's devices are fixed once in a process."""
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), "--job", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


@pytest.mark.slow
def test_both_trainers_measure_the_tiny_shape_and_agree(gpu_check: Any, tmp_path: Path) -> None:
    gpu_check.save_model("tiny", tmp_path)
    found = {
        "torch": gpu_check.work("torch", "tiny", "float32", tmp_path),
        "jax": job("work", "jax", "tiny", "float32", str(tmp_path)),
    }
    measured = [gpu_check.Measured(kind=kind, shape="tiny", dtype="float32", **result) for kind, result in found.items()]
    assert all(one.tokens_per_s > 0 and len(one.logprobs) == 96 - 64 and one.peak_gib is None for one in measured)
    (line,) = gpu_check.parity(measured)
    assert line["ok"] and line["logprob_gap"] < 1e-5 and line["grad_norm_gap"] < 1e-5
    off = replace(measured[1], logprobs=[value + 0.01 for value in measured[1].logprobs])
    assert not gpu_check.parity([measured[0], off])[0]["ok"]
    assert not gpu_check.parity([measured[0], replace(measured[1], grad_norm=float("nan"))])[0]["ok"]


@pytest.fixture
def checked(gpu_check: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A check that finds these; its measurements take no time."""
    result = {"start_s": 1.0, "tokens_per_s": 1000.0, "peak_gib": 9.0, "grad_norm": 1.0, "logprobs": [-1.0]}

    def make(torch: dict[str, Any], jax: dict[str, Any], left_s: float = 300) -> Any:
        def call(self: Any, what: str, kind: str, *rest: str) -> dict[str, Any]:
            return {"probe": {"torch": torch, "jax": jax}.get(kind, {}), "save": {}}.get(what, result)

        monkeypatch.setattr(gpu_check.Check, "_call", call)
        return gpu_check.Check(left_s)

    return make


def reasons(found: list[Any]) -> dict[tuple[str, str], str]:
    return {(one.kind, one.dtype): one.skipped for one in found}


def test_without_a_gpu_the_real_shapes_are_skipped(checked: Callable[..., Any]) -> None:
    check = checked({"gpu": None, "gpu_bytes": 0}, {"gpu": None})
    assert set(reasons(check.shape("0.6b")).values()) == {"no GPU"}


def test_what_is_missing_or_too_large_or_too_late_is_skipped_with_its_reason(checked: Callable[..., Any]) -> None:
    found = reasons(checked(GPU, {"gpu": None}).shape("0.6b"))
    assert found[("torch", "bfloat16")] == "" and "CUDA plugin" in found[("jax", "bfloat16")]
    found = reasons(checked(GPU, {"error": "No module named 'jax'"}).shape("0.6b"))
    assert found[("jax", "float32")] == "jax is not usable here (No module named 'jax')"
    found = reasons(checked(GPU, GPU).shape("1.7b"))
    assert "needs about" in found[("torch", "float32")]  # 16 bytes a parameter are 27 GB
    found = reasons(checked(GPU, GPU, left_s=16).shape("0.6b"))
    assert found[("torch", "bfloat16")] == ""
    found = reasons(checked(GPU, GPU, left_s=3).shape("0.6b"))
    assert set(found.values()) == {"no model: no time left"}


def test_what_the_budget_cut_off_is_not_called_unusable(gpu_check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> Any:
        if command[-1] == "jax":
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, 0, json.dumps({"version": "2", "gpu": None, "gpu_bytes": 0}), "")

    monkeypatch.setattr(subprocess, "run", run)
    check = gpu_check.Check(15)
    assert reasons(check.shape("0.6b"))[("jax", "float32")] == "no time: the budget ended while jax was looked for"
    assert gpu_check._version(check.found["jax"]) == "not looked at, no time"
    assert gpu_check._version({"error": "No module named 'jax'"}) == "not usable" and gpu_check._version({"version": "2"}) == "2"


def test_mfu_is_flops_over_the_peak_of_the_named_gpu(gpu_check: Any, checked: Callable[..., Any]) -> None:
    check = checked(GPU, GPU)
    one = next(one for one in check.shape("0.6b") if (one.kind, one.dtype) == ("torch", "bfloat16"))
    params = gpu_check.CASES["0.6b"].shape.num_params
    assert one.mfu == pytest.approx(6 * params * 1000 / 165e12)
    check = checked({**GPU, "gpu": "unheard-of"}, GPU)
    assert check.shape("0.6b")[0].mfu is None
