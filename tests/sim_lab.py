"""Run directories whose every number is known: simulated rounds recorded as a real run leaves them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common.config import Config
from common.config_errors import validate
from common.records import FinishReason, Group, Response, Sample, Times, Verdict
from common.report.groups import GroupWriter
from common.requests import group_name, group_requests
from common.rundir import RunDir, create
from common.simulation.lengths import prompts_of_round
from common.simulation.models import Scenario
from common.simulation.run import lengths_of, simulate


def record(directory: Path, scenario: Scenario) -> None:
    """config.yaml, timeline.jsonl and groups/ of the simulated run."""
    run_dir = RunDir(directory)
    create(run_dir, config_of(scenario))
    simulate(scenario, path=run_dir.timeline, has_detail=True)
    with GroupWriter(run_dir.groups) as writer:
        for index in range(scenario.rounds):
            for order, lengths in enumerate(lengths_of(scenario, index).tolist()):
                writer.write(index, _group(scenario, index, order, lengths), prompt="")


def record_compare(root: Path, scenario: Scenario, schedules: Sequence[str]) -> Path:
    """One run directory a schedule, as `compare` leaves them. `serial` does not know contention: nothing overlaps in it."""
    for schedule in schedules:
        record(root / schedule, replace(scenario, schedule=schedule))
    return root


def config_of(scenario: Scenario) -> Config:
    data = {
        "name": scenario.name,
        "seed": scenario.seed,
        "rounds": scenario.rounds,
        "schedule": scenario.schedule,
        "groups_per_round": scenario.groups_per_round,
        "responses_per_group": scenario.responses_per_group,
        "groups_per_update": scenario.groups_per_update,
        "frontier_width": scenario.frontier_width,
        "request_order": scenario.request_order,
        "group_order": scenario.group_order,
        "filter": "keep",
        "model": {"path": "model"},
        "rollout": {"replicas": scenario.engine.replicas, "capacity": scenario.engine.capacity},
    }
    return validate(Config, data)


def _group(scenario: Scenario, index: int, order: int, lengths: list[int]) -> Group:
    prompt = prompts_of_round(scenario.lengths, index, scenario.groups_per_round, scenario.prompt_tokens)[order]
    requests = group_requests(index, order, prompt, scenario.responses_per_group, scenario.seed)
    samples = []
    for request, num_tokens in zip(requests, lengths, strict=True):
        response = Response(
            request_id=request.request_id,
            token_ids=(1,) * num_tokens,
            logprobs=(-1.0,) * num_tokens,
            finish_reason=FinishReason.STOP,
            version_start=index,
            version_end=index,
            times=Times(admitted_s=0.0, finished_s=0.0, scored_s=0.0),
        )
        samples.append(Sample(request=request, response=response, reward=1.0, status=Verdict.OK, advantage=0.0, text=""))
    return Group(group_id=group_name(index, order), order=order, weight_version=index, samples=tuple(samples))
