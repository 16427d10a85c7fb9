"""`compile-check` with the real TPU compiler, on a model small enough to be quick: all of the step, splash attention, a mesh."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("libtpu", reason="the TPU compiler is not installed (extra tpu)")

ROOT = Path(__file__).parents[2]
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "tie_word_embeddings": True,
}


def test_the_train_step_compiles_for_a_tpu_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    words = ["--topology", "v5e:2x2", "--mesh", "fsdp=2,tp=2", "--model", ".", "--seq-len", "512", "--json", "result.json"]
    done = subprocess.run(
        [sys.executable, "-m", "common.cli", "compile-check", *words],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "the compiler's noise reached the terminal"
    result = json.loads((tmp_path / "result.json").read_text())
    parts = result["parts"]
    assert result["fits"] and result["gib_per_chip"] < result["hbm_gib"] == 15.75
    while_accumulating = sum(size for name, size in parts.items() if name != "step_temporaries")
    assert result["gib_per_chip"] == pytest.approx(max(while_accumulating, result["gib_while_stepping"]))
    # Shared by all four chips but for the norms; two moments, and the count of steps.
    share_gib = 4 * result["params"] / 4 / 2**30
    assert parts["parameters"] == parts["gradient_sums"] == pytest.approx(share_gib, rel=0.01)
    assert parts["moments"] == pytest.approx(2 * parts["parameters"], rel=0.001)
    assert parts["accumulate_temporaries"] > 0 and parts["programs"] > 0
    assert result["tokens"] == 2 * 512 and result["flops"] == 6 * result["params"] * 2 * 512
    assert (result["topology"], result["mesh"], result["attention"]) == ("v5e:2x2", {"fsdp": 2, "tp": 2}, "splash")
