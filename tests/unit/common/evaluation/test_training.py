"""`eval.every`: evaluations in the tail of a round, and what they must not change. Fakes in virtual time."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from round_lab import RecordingTrainer
from run_lab import Lab, run_run

from common.commands.train import resolve
from common.errors import ConfigError, EngineError
from common.evaluation.training import read_evals
from common.metrics import collect_rounds
from common.progress import Progress
from common.report.evals import evaluations
from common.report.groups import read_groups
from common.report.html import write_report
from common.report.tensorboard import TensorboardListener
from common.report.trace import trace_records
from common.rundir import RunDir
from common.simulation.event_check import checked_events
from common.testing import FakeEngine, Fault
from common.timeline import Event, Timeline

ON: dict[str, Any] = {"eval": {"every": 2, "samples": 2}}
SLOW = 20.0  # seconds of one group at the trainer: a long tail


def lab_of(root: Path, *, group_s: float = SLOW, num_eval: int = 5, **given: Any) -> Lab:
    trainer = given.pop("trainer", None) or RecordingTrainer(seconds=lambda group: group_s)
    return run_run(root, trainer=trainer, num_eval=num_eval, **{**ON, **given})


def versions(lab: Lab) -> list[int]:
    return [event["version"] for event in lab.of("eval")]


def is_eval(event: Event) -> bool:
    return str(event["kind"]).startswith("eval")


def moments(lab: Lab, index: int) -> dict[str, float]:
    """Of a round: the last update's end, and the start of the publish."""
    return {
        "rollout": lab.of("rollout_done", round=index)[0]["t"],
        "trained": lab.of("update", round=index)[-1]["t"],
        "publish": lab.of("publish", round=index, phase="export")[0]["start"],
    }


def test_every_second_round_and_the_final_version_are_evaluated(tmp_path: Path) -> None:
    lab = lab_of(tmp_path)
    assert [(event["version"], event.get("round")) for event in lab.of("eval")] == [(0, 0), (2, 2), (3, None)]
    assert [line["version"] for line in read_evals(lab.run_dir)] == [0, 2, 3]
    assert all(line["figures"]["samples"] == 10 for line in read_evals(lab.run_dir))


@pytest.mark.parametrize("schedule", ["serial", "cgp", "fgd", "fgd-strict", "adaptive"])
def test_it_runs_in_the_tail_and_holds_up_nothing(tmp_path: Path, schedule: str) -> None:
    lab = lab_of(tmp_path, schedule=schedule)
    for index in (0, 2):
        (event,), moment = lab.of("eval", round=index), moments(lab, index)
        assert moment["rollout"] <= event["start"] < event["t"] < moment["trained"]
        assert event["wait"] == 0.0
        assert moment["publish"] == pytest.approx(moment["trained"])


@pytest.mark.parametrize("schedule", ["serial", "fgd"])
def test_the_publish_waits_for_it_and_the_wait_is_told(tmp_path: Path, schedule: str) -> None:
    lab = lab_of(tmp_path, group_s=0.1, num_eval=200, schedule=schedule)
    for index in (0, 2):
        (event,), moment = lab.of("eval", round=index), moments(lab, index)
        assert event["t"] > moment["trained"] and moment["publish"] >= event["t"]
        assert event["wait"] == pytest.approx(event["t"] - moment["trained"], abs=1e-5) and event["wait"] > 1.0
    assert read_evals(lab.run_dir)[0]["wait_s"] == pytest.approx(lab.of("eval")[0]["wait"], abs=1e-5)


def test_the_final_version_is_published_to_the_engines_before_it_is_asked(tmp_path: Path) -> None:
    lab = lab_of(tmp_path)
    (probe,) = lab.of("publish", version=3, phase="probe")
    assert probe["t"] <= lab.of("eval", version=3)[0]["start"]
    assert not run_run(tmp_path / "off", num_eval=5).of("publish", version=3, phase="transfer")


def test_the_metrics_of_the_rounds_are_those_without_evaluations(tmp_path: Path) -> None:
    on = lab_of(tmp_path)
    assert collect_rounds(on.events) == collect_rounds(event for event in on.events if not is_eval(event))
    off = run_run(tmp_path / "off", trainer=RecordingTrainer(seconds=lambda group: SLOW))
    assert [(m.r2t_end_s, m.rollout_s, m.tokens_generated, m.reward_mean) for m in collect_rounds(on.events)] == [
        (m.r2t_end_s, m.rollout_s, m.tokens_generated, m.reward_mean) for m in collect_rounds(off.events)
    ]
    assert on.result is not None and off.result is not None
    assert on.result.final_weights_sha256 == off.result.final_weights_sha256
    assert on.trainer.trained == off.trainer.trained


def test_without_eval_every_nothing_is_evaluated(tmp_path: Path) -> None:
    lab = run_run(tmp_path, num_eval=5)
    assert not any(map(is_eval, lab.events)) and not lab.run_dir.evals.exists() and not lab.run_dir.eval_samples.exists()


def test_samples_are_written_like_a_runs(tmp_path: Path) -> None:
    lab = lab_of(tmp_path)
    files = sorted(lab.run_dir.eval_samples.iterdir())
    assert [path.name for path in files] == ["round-00000.jsonl", "round-00002.jsonl", "round-00003.jsonl"]
    for path, version in zip(files, (0, 2, 3), strict=True):
        stored = list(read_groups(path))
        assert sorted(entry.prompt for entry in stored) == [f"prompt {number}" for number in range(100, 105)]
        assert {entry.group.weight_version for entry in stored} == {version}
        assert all(len(entry.group.samples) == 2 for entry in stored)


def test_training_sees_none_of_it(tmp_path: Path) -> None:
    lab = lab_of(tmp_path)
    assert all(str(group).startswith("r") for group in lab.trainer.trained)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6), group_s=st.sampled_from([0.05, 1.0, 10.0]), capacity=st.integers(1, 20), every=st.integers(1, 3)
)
def test_with_any_latencies_each_sample_is_of_the_version_that_was_asked_for(
    tmp_path_factory: pytest.TempPathFactory, seed: int, group_s: float, capacity: int, every: int
) -> None:
    """Rule 1, and: no evaluation of a version after the next one was handed to the engines."""

    def seconds(request: Any) -> float:
        return 0.05 + (hash((seed, request.request_id)) % 1000) / 100

    root = tmp_path_factory.mktemp("run")
    lab = lab_of(root, group_s=group_s, engine=FakeEngine(capacity, seconds=seconds), eval={"every": every, "samples": 2})
    assert lab.error is None
    assert lab.engine.max_running <= capacity
    assert versions(lab) == [*range(0, 3, every), 3]
    for path in lab.run_dir.eval_samples.iterdir():
        for stored in read_groups(path):
            version = int(path.stem.removeprefix("round-"))
            for sample in stored.group.samples:
                assert (sample.response.version_start, sample.response.version_end) == (version, version)
    for event in lab.of("eval"):
        transfers = lab.of("publish", phase="transfer", version=event["version"] + 1)
        assert all(transfer["start"] >= event["t"] for transfer in transfers)


class DyingEngine(FakeEngine):
    """Dies when it is asked for this request."""

    def __init__(self, last: str) -> None:
        super().__init__(64)
        self._last = last

    async def generate(self, request: Any, sampling: Any) -> Any:
        if request.request_id == self._last:
            self.die()
        return await super().generate(request, sampling)


def test_an_engine_that_dies_during_an_evaluation_ends_the_run(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, engine=DyingEngine("e2/g3/m0"))
    assert isinstance(lab.error, EngineError) and "no engine is alive" in str(lab.error)
    assert not lab.trainer.is_updating, "the open update was left open"
    assert len([group for group in lab.trainer.groups if group.weight_version == 2]) < 4, "the trainer went on with the tail"
    assert versions(lab) == [0] and not lab.of("publish", version=3)


def test_a_trainer_that_fails_in_the_tail_ends_the_evaluation_too(tmp_path: Path) -> None:
    trainer = RecordingTrainer(seconds=lambda group: 2.0)
    trainer.fail_at = "r0/g3"
    lab = lab_of(tmp_path, trainer=trainer, num_eval=2000)
    assert "planted failure" in str(lab.error)
    assert lab.events[-1]["t"] < 20 and not lab.of("eval"), "the evaluation would have gone on for long"


def test_a_dropped_group_does_not_keep_slots_from_the_evaluation(tmp_path: Path) -> None:
    faults: dict[Any, list[Fault]] = {"r0/g1/m0": [Fault.HANG] * 3, "r0/g3/m2": [Fault.ERROR] * 3}
    engine = FakeEngine(16, faults=faults)
    lab = lab_of(tmp_path, engine=engine, limits={"request_timeout_s": 5})
    assert lab.error is None and engine.max_running <= 16
    assert all(line["figures"]["errors"] == 0 for line in read_evals(lab.run_dir))


def test_a_verifier_that_fails_in_an_evaluation_does_not_end_the_run(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, reward=lambda task, text: None if task["gold"] >= 100 else float(len(text) % 2))
    assert lab.error is None
    assert [line["figures"]["errors"] for line in read_evals(lab.run_dir)] == [10, 10, 10]
    assert lab.of("eval")[0]["accuracy"] is None


def test_stopped_in_an_evaluation_nothing_runs_on(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, stop_when=lambda event: event["kind"] == "eval_response" and event["round"] == 2)
    assert not lab.of("eval", round=2) and not lab.engine._running


def end_of(kind: str, number: int) -> Callable[[Event], bool]:
    return lambda event: event["kind"] == kind and event.get("round") == number


@pytest.mark.parametrize(
    ("stop", "again"),
    [
        (end_of("round_end", 1), [2, 3]),  # the evaluation of round 0 is not repeated
        (end_of("update", 2), [3]),  # round 2 goes on from disk, from the same weights: so its evaluation stands
        (end_of("eval", 2), [3]),
        (end_of("round_start", 2), [2, 3]),
    ],
)
def test_a_resume_repeats_no_evaluation_and_skips_none(tmp_path: Path, stop: Callable[[Event], bool], again: list[int]) -> None:
    given: dict[str, Any] = {"checkpoint": {"every": 1}}
    (tmp_path / "whole").mkdir()
    whole = lab_of(tmp_path / "whole", **given)
    lab_of(tmp_path, stop_when=stop, **given)
    resumed = lab_of(tmp_path, resume=True, **given)
    assert resumed.error is None and versions(resumed) == again
    lines, wanted = read_evals(resumed.run_dir), read_evals(whole.run_dir)
    assert [(line["version"], line["round"], line["figures"]) for line in lines] == [
        (line["version"], line["round"], line["figures"]) for line in wanted
    ]
    for path in resumed.run_dir.eval_samples.iterdir():
        assert sorted(stored.group.order for stored in read_groups(path)) == [0, 1, 2, 3, 4]
    assert [event["version"] for event in evaluations(resumed.all_events)] == [0, 2, 3]


def test_a_finished_run_that_goes_on_does_not_repeat_its_final_evaluation(tmp_path: Path) -> None:
    lab_of(tmp_path, rounds=2)
    more = lab_of(tmp_path, rounds=4, resume=True)
    assert versions(more) == [4]  # version 2 was the final one of the first part
    assert [line["version"] for line in read_evals(more.run_dir)] == [0, 2, 4]


def test_a_torn_line_of_a_killed_run_is_forgotten(tmp_path: Path) -> None:
    lab_of(tmp_path, rounds=2, checkpoint={"every": 1})
    with RunDir(tmp_path / "run").evals.open("a") as file:
        file.write('{"version": 7, "rou')
    more = lab_of(tmp_path, rounds=3, resume=True)
    assert [line["version"] for line in read_evals(more.run_dir)] == [0, 2, 3]
    assert all(json.loads(line) for line in more.run_dir.evals.read_text().splitlines())


def test_a_line_says_how_its_figures_were_made(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, eval={"every": 2, "samples": 3, "temperature": 0.5, "top_p": 0.9, "seed": 7})
    wanted = {
        "samples": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "max_tokens": 16,
        "seed": 7,
        "problems": 5,
    }
    for line in read_evals(lab.run_dir):
        assert {name: line["settings"][name] for name in wanted} == wanted


OTHERS = [
    ({"samples": 1}, {}, "eval.samples: must be what the run's evaluations were made with (2), got 1; set it back"),
    ({"seed": 3}, {}, "eval.seed: "),
    ({"max_problems": 2}, {}, "eval.max_problems: must be what the run's evaluations were made with (None), got 2; "),
    ({"workload": {"size": 9}}, {}, "eval.workload: must be what the run's evaluations were made with (None), got {'size': 9}; "),
    ({"temperature": 0.5}, {}, "eval.temperature: must be what the run's evaluations were made with (1.0), got 0.5; "),
    ({"top_p": 0.5}, {}, "eval.top_p: "),
    ({"max_tokens": 4}, {}, "eval.max_tokens: "),
]


@pytest.mark.parametrize(("section", "sampling", "message"), OTHERS)
def test_a_resume_makes_no_other_evaluations(
    tmp_path: Path, section: dict[str, Any], sampling: dict[str, Any], message: str
) -> None:
    run_dir = lab_of(tmp_path, rounds=2).run_dir
    words = [f"eval.{name}={json.dumps(value)}" for name, value in section.items()]
    words += [f"sampling.{name}={value}" for name, value in sampling.items()]
    with pytest.raises(ConfigError) as caught:
        resolve(None, ["rounds=4", *words], run_dir.path)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    run_dir.evals.unlink()  # as of a run that has made none
    assert resolve(None, ["rounds=4", *words], run_dir.path)[0].rounds == 4


def test_a_resume_may_evaluate_more_often(tmp_path: Path) -> None:
    run_dir = lab_of(tmp_path, rounds=2).run_dir
    assert resolve(None, ["rounds=4", "eval.every=1"], run_dir.path)[0].eval.every == 1


def test_the_final_evaluation_that_fails_loses_neither_checkpoint_nor_model(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, engine=DyingEngine("e3/g0/m0"))
    assert isinstance(lab.error, EngineError) and lab.run_dir.model.is_dir() and not lab.run_dir.result.exists()
    again = lab_of(tmp_path, resume=True)
    assert versions(again) == [3] and again.run_dir.result.exists()


def test_readers_of_a_timeline_take_its_events(tmp_path: Path) -> None:
    lab = lab_of(tmp_path)
    assert checked_events(lab.run_dir.path, "RUN_DIR") == lab.all_events
    records = list(trace_records(lab.events))
    bars = [record for record in records if record["ph"] == "X" and record["args"].get("is_eval")]
    assert len(bars) == 3 * 10 and {bar["args"]["ended_by"] for bar in bars} == {"eval_response"}
    names = {record["args"].get("name") for record in records if record["ph"] == "M"}
    assert "evaluation" in names
    counts = [record["args"]["requests"] for record in records if record["name"] == "in flight"]
    assert min(counts) == 0 and counts[-1] == 0


def test_the_display_says_when_the_publish_waits_for_it(tmp_path: Path) -> None:
    progress, words = Progress(), set()
    for event in lab_of(tmp_path, group_s=0.1, num_eval=200).events:
        progress.listen(event)
        words.add(progress.who_waits(event["t"]).partition(" (")[0])
    assert "publish waits for the evaluation" in words and progress.accuracy is not None


def page_data(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    return dict(json.loads(found[1]))


def test_the_report_has_table_curve_and_bars(tmp_path: Path) -> None:
    lab = lab_of(tmp_path, eval={"every": 2, "samples": 2, "pass_at": [1, 2]})
    page = write_report(lab.run_dir.path).read_text()
    data = page_data(page)
    assert [row["version"] for row in data["evals"]] == [0, 2, 3]
    table = re.search(r'id="evaluations">.*?</section>', page, re.S)
    assert table is not None and table[0].count("<tr><td>") == 3 and "after the last" in table[0] and "@2 " in table[0]
    assert 'id="evals"' in page and "evaluation</li>" in page
    charts = {chart["round"]: chart for chart in data["charts"]}
    orders = [bar[3] for engine in charts[2]["engines"] for bar in engine["bars"]]
    assert orders.count(-1) == 10 and charts[2]["orders"] == 4 == max(orders) + 1
    assert len(charts[2]["evaluation"]) == 1 and charts[1]["evaluation"] == []


def test_the_report_of_a_run_without_evaluations_says_nothing_of_them(tmp_path: Path) -> None:
    page = write_report(run_run(tmp_path).run_dir.path).read_text()
    assert 'id="evaluations"' not in page and "evaluation</li>" not in page and page_data(page)["evals"] == []


def test_tensorboard_has_the_figures_by_version(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    lab = lab_of(tmp_path, eval={"every": 2, "samples": 2, "pass_at": [1, 2]})
    timeline = Timeline(None)
    listener = TensorboardListener(timeline, tmp_path / "board")
    for event in lab.events:
        timeline.emit(event["kind"], **{name: value for name, value in event.items() if name not in ("t", "kind")})
    listener.close()
    read = accumulator.EventAccumulator(str(tmp_path / "board"))
    read.Reload()
    for tag, name in (("eval/accuracy", "accuracy"), ("eval/length_mean", "length_mean"), ("eval/wait", "wait")):
        assert [(point.step, pytest.approx(point.value)) for point in read.Scalars(tag)] == [
            (event["version"], event[name]) for event in lab.of("eval")
        ]
    assert [point.value for point in read.Scalars("eval/pass_at_2")] == pytest.approx(
        [event["pass_at"]["2"] for event in lab.of("eval")]
    )
