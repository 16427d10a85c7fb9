"""A real run with trainer=jax through the command line: vLLM samples from weights that JAX published. One engine start.

The model is untied, so its head is a tensor of its own on the way from JAX to the engine; its tied twin is the torch run's.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import load_file

from common.report.groups import read_groups
from common.rundir import RunDir, newest_checkpoint
from common.timeline import Event, read_timeline
from tests.integration.test_end_to_end import GROUPS, MEMBERS, ROOT, SETTINGS, rolloutpipe
from tests.integration.tiny_models import sums_model

pytestmark = pytest.mark.engine

ROUNDS = 3


@dataclass(frozen=True)
class Proof:
    """The run directory, and what the command printed."""

    run_dir: RunDir
    printed: str
    errors: str
    events: list[Event]

    def of(self, kind: str, **fields: Any) -> list[Event]:
        return [e for e in self.events if e["kind"] == kind and all(e.get(name) == value for name, value in fields.items())]


def untied(model: Path, directory: Path) -> Path:
    """The model with a head of its own, other than its embedding."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = AutoModelForCausalLM.from_pretrained(model)
    weights = found.state_dict()
    found.config.tie_word_embeddings = False
    twin = AutoModelForCausalLM.from_config(found.config)
    twin.load_state_dict(
        {
            **weights,
            "lm_head.weight": weights["model.embed_tokens.weight"]
            + 0.01 * torch.randn_like(weights["model.embed_tokens.weight"]),
        }
    )
    twin.save_pretrained(directory)
    AutoTokenizer.from_pretrained(model).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    root = tmp_path_factory.mktemp("jax-end-to-end")
    model = untied(sums_model(root / "tied", steps=150), root / "start")
    settings = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    own = {"trainer": "jax", "rounds": ROUNDS, "eval": {}, "model": {"path": str(model)}, "run_dir": str(root / "run")}
    settings |= {**SETTINGS, **own}
    settings["workload"]["options"]["datasets"] = [{"name": "chain_sum", "min_terms": 2, "max_terms": 3, "max_digits": 1}]
    settings["sampling"] = {"temperature": 0.8, "max_tokens": 64}
    (root / "config.yaml").write_text(yaml.safe_dump(settings))
    printed, errors = rolloutpipe("train", "config.yaml", cwd=root)
    run_dir = RunDir(root / "run")
    return Proof(run_dir, printed, errors, list(read_timeline(run_dir.timeline)))


def test_no_library_speaks(proof: Proof) -> None:
    assert proof.errors == ""
    assert not [line for line in proof.printed.splitlines() if "it/s" in line or "Warning" in line or "WARN" in line]


def test_the_run_directory_is_that_of_any_run(proof: Proof) -> None:
    """Design section 8."""
    names = {path.name for path in proof.run_dir.path.iterdir()}
    files = {"config.yaml", "start.json", "timeline.jsonl", "metrics.jsonl", "trace.json", "report.html", "result.json"}
    assert names == files | {"groups", "tensorboard", "checkpoints", "model", "logs"}


def test_the_engine_serves_what_jax_published(proof: Proof) -> None:
    """Rule 6: version 0 comes from JAX and is probed before the first request; so is every later one."""
    probes = proof.of("publish", phase="probe")
    assert [probe["version"] for probe in probes] == list(range(ROUNDS))
    assert probes[0]["t"] <= proof.of("dispatch")[0]["t"]
    assert max(probe["gap"] for probe in probes) < 1e-4
    assert max(event["metrics"]["logprob_gap_max"] for event in proof.of("update", update=0)) < 1e-4


def test_nothing_is_compiled_after_the_first_round(proof: Proof) -> None:
    compiled = [json.loads(line)["compilations"] for line in proof.run_dir.metrics.read_text().splitlines()]
    assert compiled[0] > 0 and compiled[1:] == [0] * (ROUNDS - 1)


def test_every_group_is_trained_once_and_whole(proof: Proof) -> None:
    """Rules 1 to 3."""
    for number, path in enumerate(sorted(proof.run_dir.groups.iterdir())):
        groups = [stored.group for stored in read_groups(path)]
        assert sorted(group.group_id for group in groups) == [f"r{number}/g{order}" for order in range(GROUPS)]
        assert {len(group.samples) for group in groups} == {MEMBERS}
        assert {group.weight_version for group in groups} == {number}
    assert [event["books"]["trained"] for event in proof.of("round_end")] == [GROUPS] * ROUNDS


def test_model_and_checkpoint_hold_the_same_weights_bit_for_bit(proof: Proof) -> None:
    """One went through the publisher's spool, the other through Orbax and `convert`."""
    root = proof.run_dir.path.parent
    checkpoint, state = newest_checkpoint(proof.run_dir)
    assert (state["round"], state["version"]) == (ROUNDS, ROUNDS)
    rolloutpipe("convert", checkpoint, root / "converted", "--like", root / "start", cwd=root)
    served, saved = (load_file(folder / "model.safetensors") for folder in (proof.run_dir.model, root / "converted"))
    start = load_file(root / "start" / "model.safetensors")
    assert set(served) == set(saved) == set(start) and "lm_head.weight" in served
    assert all((served[name] == saved[name]).all() for name in served)
    assert any((served[name] != start[name]).any() for name in served)
