"""A real run through the command line: two rounds, then a resume to three. What it leaves is read back file by file.

Two engine starts in all. The model knows next to nothing: what is proved here is the plumbing, not the learning.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import load_file

from common.config import load_config
from common.evaluation.training import read_evals
from common.report.groups import StoredGroup, read_groups, round_path
from common.rundir import RunDir, newest_checkpoint
from common.simulation.event_check import checked_events
from common.timeline import Event, read_timeline
from tests.integration.tiny_models import sums_model
from tests.listeners import LOOPBACK, watched

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
GROUPS, MEMBERS, ROUNDS = 6, 4, 3
NUM_EVAL = 8  # problems of an evaluation
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "groups_per_round": GROUPS,
    "responses_per_group": MEMBERS,
    "groups_per_update": 2,
    "filter": "keep",
    "checkpoint": {"every": 1},
    "schedule": "adaptive",
    "eval": {"every": 2, "max_problems": NUM_EVAL, "temperature": 0},
}


@dataclass(frozen=True)
class Proof:
    """The run directory after the resume, and what each command printed."""

    run_dir: RunDir
    printed: tuple[str, str]
    errors: tuple[str, str]
    result: dict[str, Any]
    first_metrics: list[str]  # lines before the resume
    events: list[Event]
    groups: list[list[StoredGroup]]  # by round
    listens: set[tuple[str, str]]  # (process, address) seen in the first command

    def of(self, kind: str, **fields: Any) -> list[Event]:
        return [e for e in self.events if e["kind"] == kind and all(e.get(name) == value for name, value in fields.items())]


def rolloutpipe(*words: object, cwd: Path, listens: set[tuple[str, str]] | None = None) -> tuple[str, str]:
    command = [sys.executable, "-m", "common.cli", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=cwd, env=environment) as process,
        watched(process.pid) as found,
    ):
        try:
            printed, errors = process.communicate(timeout=280)
        finally:
            process.kill()
    if listens is not None:
        listens |= found
    assert process.returncode == 0, errors + printed
    return printed, errors


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    root = tmp_path_factory.mktemp("end-to-end")
    model = sums_model(root / "start", steps=150)
    settings = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    settings |= {**SETTINGS, "model": {"path": str(model)}, "run_dir": str(root / "run")}
    settings["workload"]["options"]["datasets"] = [{"name": "chain_sum", "min_terms": 2, "max_terms": 3, "max_digits": 1}]
    settings["workload"]["holdout"] = 0.2
    settings["rollout"] = {"capacity": 2 * MEMBERS}  # groups wait, so that the policy has something to plan
    settings["sampling"] = {"temperature": 1.0, "max_tokens": 64}
    (root / "config.yaml").write_text(yaml.safe_dump(settings))
    listens: set[tuple[str, str]] = set()
    first = rolloutpipe("train", "config.yaml", "--json", "first.json", cwd=root, listens=listens)
    first_metrics = (root / "run" / "metrics.jsonl").read_text().splitlines()
    second = rolloutpipe("train", "--resume", "run", f"rounds={ROUNDS}", "--json", "second.json", cwd=root)
    run_dir = RunDir(root / "run")
    return Proof(
        run_dir=run_dir,
        printed=(first[0], second[0]),
        errors=(first[1], second[1]),
        result=json.loads((root / "second.json").read_text()),
        first_metrics=first_metrics,
        events=list(read_timeline(run_dir.timeline)),
        groups=[list(read_groups(path)) for path in sorted(run_dir.groups.iterdir())],
        listens=listens,
    )


def test_the_run_directory_holds_what_the_contract_lists(proof: Proof) -> None:
    """Design section 8, and nothing half-written."""
    names = {path.name for path in proof.run_dir.path.iterdir()}
    files = {
        "config.yaml",
        "start.json",
        "timeline.jsonl",
        "metrics.jsonl",
        "eval.jsonl",
        "trace.json",
        "report.html",
        "result.json",
    }
    assert names == files | {"groups", "eval", "tensorboard", "checkpoints", "model", "logs"}


def test_the_terminal_shows_phases_rounds_and_the_table_and_no_library_speaks(proof: Proof) -> None:
    assert proof.errors == ("", "")
    for printed, rounds in zip(proof.printed, ([0, 1], [2]), strict=True):
        lines = printed.splitlines()
        assert [line.split()[1] for line in lines if line.startswith("round ") and "reward" in line and "train end" in line] == [
            str(number) for number in rounds
        ]
        assert "starting Ray ..." in printed and "run directory: " in printed
        assert not [line for line in lines if "it/s" in line or "Warning" in line or "WARN" in line or "INFO" in line]


def test_the_configuration_reads_back_with_the_rounds_of_the_resume(proof: Proof) -> None:
    assert load_config(proof.run_dir.config).rounds == ROUNDS


def test_the_timeline_is_in_order_and_says_how_each_start_ended(proof: Proof) -> None:
    times = [event["t"] for event in proof.events]
    assert times == sorted(times)
    assert [event["status"] for event in proof.of("run_end")] == ["finished", "finished"]
    assert (
        [event["round"] for event in proof.of("round_start")] == [event["round"] for event in proof.of("round_end")] == [0, 1, 2]
    )


def test_no_process_of_a_run_listens_on_more_than_the_loopback_address(proof: Proof) -> None:
    assert {address for _, address in proof.listens} <= LOOPBACK, proof.listens
    names = " ".join(name for name, _ in proof.listens)
    assert "ray::RankProcess" in names and "ray::VllmEngine" in names and "raylet" in names, names


def test_every_request_of_the_timeline_ends(proof: Proof) -> None:
    started = Counter(event["request"] for event in proof.of("dispatch"))
    ended = Counter(event["request"] for event in proof.events if event["kind"] in ("response", "retry"))
    assert started == ended and len(started) == ROUNDS * GROUPS * MEMBERS


def test_the_adaptive_policy_plans_once_it_has_seen_lengths_and_speeds(proof: Proof) -> None:
    plans = proof.of("plan")
    assert {plan["round"] for plan in plans} >= {1}, "the second round of the first process starts with what the first has shown"
    capacity = yaml.safe_load(proof.run_dir.config.read_text())["rollout"]["capacity"]
    for plan in plans:
        assert 1 <= plan["width"]["first"] <= capacity and 1 <= plan["width"]["rest"] <= capacity
        assert plan["order"] and 0 < plan["waiting"] <= GROUPS


def test_a_calibration_reads_the_timeline_of_a_real_run(proof: Proof) -> None:
    assert len(checked_events(proof.run_dir.path, "RUN_DIR")) == len(proof.events)


def test_books_balance(proof: Proof) -> None:
    """Rule 3."""
    for event in proof.of("round_end"):
        books = event["books"]
        assert books["groups"] + books["refilled"] == books["trained"] + books["filtered"] + books["dropped"] == GROUPS
        assert books["requests"] == books["finished"] + books["failed"] + books["cancelled"]


def test_every_response_carries_its_rounds_version(proof: Proof) -> None:
    """Rule 1: round n samples from version n, stamped at both ends."""
    for number, groups in enumerate(proof.groups):
        stamps = {(s.response.version_start, s.response.version_end) for stored in groups for s in stored.group.samples}
        assert stamps == {(number, number)} and {stored.group.weight_version for stored in groups} == {number}


def test_groups_are_whole_and_stored_once(proof: Proof) -> None:
    """Rule 2."""
    for number, groups in enumerate(proof.groups):
        assert sorted(stored.group.group_id for stored in groups) == [f"r{number}/g{order}" for order in range(GROUPS)]
        assert all([sample.request.member for sample in stored.group.samples] == list(range(MEMBERS)) for stored in groups)


def test_no_prompt_is_trained_twice(proof: Proof) -> None:
    """Rule 10: across the resume, within one epoch."""
    prompts = Counter(stored.prompt for groups in proof.groups for stored in groups)
    assert len(prompts) == ROUNDS * GROUPS and max(prompts.values()) == 1


def test_sampler_and_trainer_agree_before_the_first_step_of_each_round(proof: Proof) -> None:
    gaps = [event["metrics"]["logprob_gap_max"] for event in proof.of("update", update=0)]
    assert len(gaps) == ROUNDS and max(gaps) < 1e-4


def test_each_publish_has_its_phases_and_version_0_comes_first(proof: Proof) -> None:
    """Rule 6. The resumed process publishes version 2 once more, to its own engine; the last is transferred to be evaluated."""
    phases = [(event["version"], event["phase"]) for event in proof.of("publish")]
    whole = ["export", "check", "transfer", "probe"]
    versions = [(0, whole), (1, whole), (2, whole), (2, whole), (3, whole)]
    assert phases == [(version, phase) for version, names in versions for phase in names]
    assert proof.of("publish", phase="probe")[0]["t"] <= proof.of("dispatch")[0]["t"]


def test_steps_go_on_across_the_resume(proof: Proof) -> None:
    """An update without any token that has a loss makes no step (all its groups of zero spread)."""
    step = 0
    for event in proof.of("update"):
        step += event["tokens"] > 0
        assert event["optimizer_step"] == step
    assert len(proof.of("update")) == 9 and step >= 3


def test_each_version_due_is_evaluated_once_across_the_resume(proof: Proof) -> None:
    """Round 0, the end of the first process, and the end; round 2 is due, and its version was evaluated before it began."""
    lines = read_evals(proof.run_dir)
    assert [(line["version"], line["round"]) for line in lines] == [(0, 0), (2, None), (3, None)]
    assert [event["version"] for event in proof.of("eval")] == [0, 2, 3]
    assert {line["figures"]["samples"] for line in lines} == {NUM_EVAL} and {line["figures"]["errors"] for line in lines} == {0}
    (event,) = proof.of("eval", round=0)
    assert proof.of("rollout_done", round=0)[0]["t"] <= event["start"]
    assert event["t"] <= proof.of("publish", version=1, phase="export")[0]["start"]


def test_evaluated_problems_are_held_out(proof: Proof) -> None:
    trained = {stored.prompt for groups in proof.groups for stored in groups}
    asked = [{stored.prompt for stored in read_groups(path)} for path in sorted(proof.run_dir.eval_samples.iterdir())]
    assert len(asked) == 3 and asked[0] == asked[1] == asked[2] and len(asked[0]) == NUM_EVAL
    assert not trained & asked[0]


def test_greedy_samples_are_the_models_likeliest_tokens_at_the_version_asked_for(proof: Proof) -> None:
    """Temperature 0 on the engine: against transformers, token by token, of the first and the last weights."""
    import torch
    from transformers import AutoModelForCausalLM

    for number, directory in ((0, proof.run_dir.path.parent / "start"), (ROUNDS, proof.run_dir.model)):
        model = AutoModelForCausalLM.from_pretrained(directory).eval()
        for stored in read_groups(round_path(proof.run_dir.eval_samples, number)):
            (sample,) = stored.group.samples
            prompt, response = sample.request.prompt_ids, sample.response
            assert (response.version_start, response.version_end) == (number, number) and response.token_ids
            with torch.no_grad():
                logprobs = model(torch.tensor([[*prompt, *response.token_ids]])).logits[0].float().log_softmax(-1)
            for place, (token, found) in enumerate(zip(response.token_ids, response.logprobs, strict=True), len(prompt) - 1):
                assert token == int(logprobs[place].argmax()) and abs(found - float(logprobs[place, token])) < 1e-4


def test_metrics_have_each_round_once(proof: Proof) -> None:
    lines = proof.run_dir.metrics.read_text().splitlines()
    assert lines[:2] == proof.first_metrics
    assert {json.loads(line)["schedule"] for line in lines} == {yaml.safe_load(proof.run_dir.config.read_text())["schedule"]}
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2] == [row["round"] for row in proof.result["rounds"]]


def test_the_result_is_that_of_the_whole_run(proof: Proof) -> None:
    assert proof.result == json.loads(proof.run_dir.result.read_text()) and proof.result["weight_version"] == ROUNDS


def test_the_newest_checkpoint_is_of_the_last_round(proof: Proof) -> None:
    path, state = newest_checkpoint(proof.run_dir)
    assert (path.name, state["round"], state["version"]) == ("round-00003", 3, 3)


def test_the_model_loads_in_transformers_with_the_trainers_last_weights(proof: Proof) -> None:
    """Log-probs of the written model equal those of the checkpoint's weights, the trainer's own, token by token."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(proof.run_dir.model)
    tokenizer = AutoTokenizer.from_pretrained(proof.run_dir.model)
    trained = AutoModelForCausalLM.from_pretrained(proof.run_dir.model)
    weights = _checkpoint_weights(proof.run_dir)
    assert set(weights) == set(dict(trained.named_parameters()))
    trained.load_state_dict(weights, strict=False)
    stored = proof.groups[-1][0]
    assert tokenizer(stored.prompt, add_special_tokens=False)["input_ids"] == list(stored.group.samples[0].request.prompt_ids)
    for sample in stored.group.samples:
        ids = torch.tensor([[*sample.request.prompt_ids, *sample.response.token_ids]])
        with torch.no_grad():
            ours, theirs = (m(ids).logits.float().log_softmax(-1) for m in (model, trained))
        assert torch.equal(ours, theirs)


def _checkpoint_weights(run_dir: RunDir) -> dict[str, Any]:
    """Each rank's file has its rows of every tensor, under weight/NAME."""
    import torch

    path, _ = newest_checkpoint(run_dir)
    shards = [load_file(file) for file in sorted(path.rglob("rank-*.safetensors"))]
    assert len(shards) == 2
    names = [name for name in shards[0] if name.startswith("weight/")]
    return {
        name.removeprefix("weight/"): torch.cat([torch.from_numpy(shard[name]) for shard in shards if name in shard])
        for name in names
    }


def test_training_changed_the_weights(proof: Proof) -> None:
    start = load_file(proof.run_dir.path.parent / "start" / "model.safetensors")
    end = load_file(proof.run_dir.model / "model.safetensors")
    assert set(start) == set(end) and any((start[name] != end[name]).any() for name in start)


def test_the_trace_and_the_page_are_whole(proof: Proof) -> None:
    trace = json.loads((proof.run_dir.path / "trace.json").read_text())
    assert len(trace["traceEvents"]) > ROUNDS * GROUPS * MEMBERS
    page = (proof.run_dir.path / "report.html").read_text()
    assert page.startswith("<!") and page.rstrip().endswith("</html>")


def test_tensorboard_reads_every_round(proof: Proof) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = event_accumulator.EventAccumulator(str(proof.run_dir.tensorboard))
    reader.Reload()
    assert {event.step for event in reader.Scalars("round/reward_mean")} == {0, 1, 2}
    assert {event.step for event in reader.Scalars("eval/accuracy")} == {0, 2, 3}


def test_engines_ranks_and_verifier_wrote_to_logs_alone(proof: Proof) -> None:
    names = {path.name for path in proof.run_dir.logs.iterdir()}
    assert {"engine-0.log", "trainer-rank-0.log", "trainer-rank-1.log"} <= names
    assert "driver.log" not in names, "that is for failures"


def test_report_works_on_it_and_resume_has_nothing_left(proof: Proof) -> None:
    root = proof.run_dir.path.parent
    printed, errors = rolloutpipe("report", "run", "--json", "report.json", cwd=root)
    assert "report.html" in printed and errors == ""
    assert [row["round"] for row in json.loads((root / "report.json").read_text())["rounds"]] == [0, 1, 2]
    printed, _ = rolloutpipe("train", "--resume", "run", cwd=root)
    assert printed == "nothing to do: all 3 rounds are done; more: rounds=N\n"
