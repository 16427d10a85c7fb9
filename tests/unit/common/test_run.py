"""A run: publish before anything is asked, rounds, checkpoints, resume (rules 1, 6, 10), with fakes in virtual time."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from round_lab import RecordingTrainer
from run_lab import Lab, run_run, workload_of
from safetensors.numpy import load_file

from common.errors import DataError, PublishError, TrainerError
from common.rundir import finished_checkpoints
from common.testing import FakeEngine
from common.testing.fakes import hash_of
from common.timeline import Event


def end_of_round(number: int) -> Callable[[Event], bool]:
    return lambda event: event["kind"] == "round_end" and event["round"] == number


def first_update_of_round(number: int) -> Callable[[Event], bool]:
    return lambda event: event["kind"] == "update" and event["round"] == number


def start_of_save(number: int) -> Callable[[Event], bool]:
    """When the checkpoint after round `number` begins."""
    seen: list[int] = []

    def is_it(event: Event) -> bool:
        if event["kind"] == "round_end":
            seen.append(event["round"])
        return event["kind"] == "phase" and event["name"] == "saving a checkpoint" and seen[-1] == number

    return is_it


class SlowSaver(RecordingTrainer):
    """Can be interrupted while it captures what it saves."""

    async def save(self, directory: Path) -> None:
        await super().save(directory)
        await asyncio.sleep(5)


class SlowWriter(RecordingTrainer):
    """Needs `write_s` until a save is durable; the last one then fails, where `error` is given."""

    def __init__(self, write_s: float, error: str | None = None) -> None:
        super().__init__(write_s=write_s)
        self.error = error
        self.written_s: list[float] = []

    async def saved(self) -> None:
        is_open = self._open_save is not None
        await super().saved()
        if is_open:
            self.written_s.append(asyncio.get_running_loop().time())
            if self.error is not None:
                raise TrainerError(self.error)


def resumed(root: Path, trainer: RecordingTrainer | None = None, **settings: object) -> Lab:
    return run_run(root, resume=True, trainer=trainer, **settings)  # type: ignore[arg-type]


def test_version_0_is_published_and_verified_before_the_first_request(tmp_path: Path) -> None:
    """Pain 22, rule 6."""
    lab = run_run(tmp_path)
    probes = [event for event in lab.events if event["kind"] == "publish" and event["phase"] == "probe"]
    assert probes[0]["version"] == 0 and probes[0]["t"] <= lab.of("dispatch")[0]["t"]
    assert lab.engine.started[0].startswith("probe/v0/")  # type: ignore[union-attr]


def test_an_engine_that_serves_other_weights_gets_no_request(tmp_path: Path) -> None:
    class Deaf(FakeEngine):
        async def publish(self, version: int, spool: Path) -> None:
            self._version = version  # the random weights of its start stay

    lab = run_run(tmp_path, engine=Deaf(64))
    assert isinstance(lab.error, PublishError) and "does not serve" in str(lab.error)
    assert lab.of("dispatch") == [] and lab.of("round_start") == []


def test_each_round_samples_from_the_version_before_it(tmp_path: Path) -> None:
    lab = run_run(tmp_path)
    assert [event["version"] for event in lab.of("round_start")] == [0, 1, 2]
    assert [event["version"] for event in lab.of("response")] == [0] * 16 + [1] * 16 + [2] * 16
    assert lab.result is not None and lab.result.weight_version == 3


def test_a_publish_follows_the_last_update_of_its_round(tmp_path: Path) -> None:
    """Rule 6."""
    lab = run_run(tmp_path)
    for number in range(3):
        updates = [event["t"] for event in lab.of("update", round=number)]
        assert len(updates) == 2
        assert all(event["start"] >= updates[-1] for event in lab.of("publish", round=number))


def test_no_request_starts_before_the_publish_is_verified(tmp_path: Path) -> None:
    """Rule 6: the first request of a round comes after the probe of its version."""
    lab = run_run(tmp_path)
    for number in range(3):
        (probe,) = lab.of("publish", phase="probe", version=number)
        assert lab.of("dispatch", round=number)[0]["t"] >= probe["t"]


def test_the_last_version_is_exported_and_checked_but_not_transferred(tmp_path: Path) -> None:
    lab = run_run(tmp_path)
    assert [event["phase"] for event in lab.of("publish", version=3)] == ["export", "check"]
    (health,) = asyncio.run(lab.engine.health())
    assert health.weight_version == 2


def test_the_model_holds_the_last_weights_and_the_start_models_other_files(tmp_path: Path) -> None:
    lab = run_run(tmp_path)
    model = lab.run_dir.model
    assert sorted(path.name for path in model.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert load_file(model / "model.safetensors")["w"].tolist() == pytest.approx([lab.trainer.weight])
    assert json.loads(lab.run_dir.result.read_text())["final_weights_sha256"] == lab.result.final_weights_sha256  # type: ignore[union-attr]
    assert not (lab.run_dir.path / ".model.partial").exists()


def test_wrap_goes_on_into_the_next_epoch(tmp_path: Path) -> None:
    """6 problems, R=4: rounds of 4, with each problem once an epoch."""
    lab = _short(tmp_path, "wrap")
    assert [event["num_groups"] for event in lab.of("round_start")] == [4, 4, 4]
    assert Counter(problem for found in lab.trained_problems() for problem in found) == {f"prompt {i}": 2 for i in range(6)}


def test_short_takes_what_is_left(tmp_path: Path) -> None:
    assert [event["num_groups"] for event in _short(tmp_path, "short").of("round_start")] == [4, 2, 4]


def test_stop_ends_the_run_with_a_checkpoint_and_its_model(tmp_path: Path) -> None:
    lab = _short(tmp_path, "stop")
    assert [event["num_groups"] for event in lab.of("round_start")] == [4]
    assert [path.name for path in finished_checkpoints(lab.run_dir)] == ["round-00001"]
    assert lab.result is not None and lab.result.weight_version == 1 and lab.run_dir.model.is_dir()


def _short(root: Path, when_short: str) -> Lab:
    return run_run(root, problems=workload_of(6), workload={"when_short": when_short})


def test_refills_come_from_the_same_epoch_and_are_not_drawn_again(tmp_path: Path) -> None:
    """Every third problem has no reward, so no spread: others take its place, and none stands twice in the epoch."""
    lab = run_run(
        tmp_path, filter="refill", rounds=2, reward=lambda task, text: float(task["gold"] % 3 != 0 and hash_of(text) % 2)
    )
    books = [event["books"] for event in lab.of("round_end")]
    assert sum(one["refilled"] for one in books) > 0
    seen = Counter(problem for found in lab.trained_problems() for problem in found)
    assert max(seen.values()) == 1


@pytest.mark.parametrize(
    ("checkpoint", "names"),
    [
        ({}, ["round-00005"]),
        ({"every": 1}, ["round-00004", "round-00005"]),
        ({"every": 2}, ["round-00004", "round-00005"]),
        ({"every": 1, "keep": 1}, ["round-00005"]),
        ({"every": 3, "keep": 9}, ["round-00003", "round-00005"]),
    ],
)
def test_checkpoints_come_every_n_rounds_and_at_the_end_and_old_ones_go(
    tmp_path: Path, checkpoint: dict[str, int], names: list[str]
) -> None:
    lab = run_run(tmp_path, rounds=5, checkpoint=checkpoint)
    assert sorted(path.name for path in lab.run_dir.checkpoints.iterdir()) == names


STOPS = [
    pytest.param(end_of_round(2), id="at the end of a round"),
    pytest.param(first_update_of_round(2), id="between two updates"),
    pytest.param(start_of_save(3), id="while a checkpoint is captured"),
    pytest.param(lambda event: event["kind"] == "publish" and event["version"] == 3, id="in a publish"),
    pytest.param(lambda event: event["kind"] == "response" and event["round"] == 2, id="in a rollout"),
]


@pytest.mark.parametrize("stop_when", STOPS)
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    "make_trainer",
    [
        pytest.param(SlowSaver, id="slow to capture"),
        pytest.param(lambda: SlowWriter(0.5), id="written soon"),
        pytest.param(lambda: SlowWriter(100), id="written late"),
    ],
)
def test_a_resumed_run_ends_like_an_undisturbed_one(
    tmp_path: Path, stop_when: Callable[[Event], bool], every: int, make_trainer: Callable[[], RecordingTrainer]
) -> None:
    """Rule 10: killed anywhere, resumed from the newest checkpoint, the same weights and samples in the end.

    All fakes are equally fast, and one timer more lets others of the same moment change places: hence the fixed order.
    """
    settings = {"rounds": 5, "checkpoint": {"every": every}, "group_order": "submission"}
    undisturbed = run_run(_root(tmp_path, "a"), **settings)  # type: ignore[arg-type]
    stopped = run_run(_root(tmp_path, "b"), trainer=make_trainer(), stop_when=stop_when, **settings)  # type: ignore[arg-type]
    assert isinstance(stopped.error, asyncio.CancelledError)
    again = resumed(_root(tmp_path, "b"), **settings)
    assert again.trainer.weight == undisturbed.trainer.weight and again.trainer.step == undisturbed.trainer.step
    assert again.result is not None and undisturbed.result is not None
    assert again.result.final_weights_sha256 == undisturbed.result.final_weights_sha256
    assert again.result.weight_version == 5
    assert again.trained_problems() == undisturbed.trained_problems()


def test_the_next_round_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    trainer = SlowWriter(3.0)
    settings: dict[str, object] = {"checkpoint": {"every": 2}, "group_order": "submission"}
    lab = run_run(tmp_path, trainer=trainer, **settings)  # type: ignore[arg-type]
    undisturbed = run_run(_root(tmp_path, "plain"), **settings)  # type: ignore[arg-type]
    assert len(trainer.written_s) == 2
    (start,), (end,) = lab.of("round_start", round=2), lab.of("round_end", round=2)
    assert start["t"] < trainer.written_s[0] < end["t"]
    assert end["t"] == undisturbed.of("round_end", round=2)[0]["t"]
    assert lab.trainer.weight == undisturbed.trainer.weight
    assert [path.name for path in finished_checkpoints(lab.run_dir)] == ["round-00002", "round-00003"]


def test_a_checkpoint_holds_the_moment_of_its_capture(tmp_path: Path) -> None:
    """Rule 10: what the next round draws while it is written is not part of it."""
    settings: dict[str, object] = {"rounds": 4, "checkpoint": {"every": 2}, "group_order": "submission"}
    undisturbed = run_run(_root(tmp_path, "a"), **settings)  # type: ignore[arg-type]
    run_run(_root(tmp_path, "b"), trainer=SlowWriter(3.0), stop_when=first_update_of_round(3), **settings)  # type: ignore[arg-type]
    again = resumed(_root(tmp_path, "b"), **settings)
    assert [event["round"] for event in again.of("round_start")] == [2, 3]
    assert again.trained_problems() == undisturbed.trained_problems()
    assert again.trainer.weight == undisturbed.trainer.weight


def test_the_next_checkpoint_waits_for_the_one_before(tmp_path: Path) -> None:
    trainer = SlowWriter(50.0)
    lab = run_run(tmp_path, trainer=trainer, checkpoint={"every": 1, "keep": 9})
    assert [later - former for former, later in pairwise(trainer.written_s)] == pytest.approx([50.0, 50.0])
    assert [path.name for path in finished_checkpoints(lab.run_dir)] == ["round-00001", "round-00002", "round-00003"]


@pytest.mark.parametrize(("write_s", "names"), [(7.0, ["round-00001"]), (9.0, [])])
def test_a_run_that_is_stopped_gives_an_open_checkpoint_the_deadline_of_closing(
    tmp_path: Path, write_s: float, names: list[str]
) -> None:
    """limits.close_timeout_s is 8 s. A checkpoint that is not durable by then is none."""
    stop = lambda event: event["kind"] == "round_start" and event["round"] == 1  # noqa: E731
    lab = run_run(tmp_path, trainer=SlowWriter(write_s), checkpoint={"every": 1}, stop_when=stop)
    assert isinstance(lab.error, asyncio.CancelledError)
    assert [path.name for path in finished_checkpoints(lab.run_dir)] == names
    assert (lab.run_dir.checkpoints / "round-00001").is_dir()
    if not names:
        again = resumed(tmp_path, checkpoint={"every": 1})
        assert [event["is_whole"] for event in again.of("recorded")] == [True]  # round 0 is trained again, from disk


def test_a_run_that_fails_keeps_the_checkpoint_that_was_being_written(tmp_path: Path) -> None:
    trainer = SlowWriter(6.0)
    trainer.fail_at = "r1/g0"
    lab = run_run(tmp_path, trainer=trainer, checkpoint={"every": 1}, group_order="submission")
    assert "planted failure at r1/g0" in str(lab.error)
    assert [path.name for path in finished_checkpoints(lab.run_dir)] == ["round-00001"]


@pytest.mark.parametrize(("write_s", "every", "rounds"), [(0.0, 3, 4), (2.0, 3, 4), (50.0, 3, 5), (50.0, 1, 2)])
def test_a_checkpoint_that_cannot_be_written_stops_the_run_at_the_next_boundary(
    tmp_path: Path, write_s: float, every: int, rounds: int
) -> None:
    """Known soon: when the next round is done; known late: when it is waited for, at the end or by the next save."""
    lab = run_run(tmp_path, trainer=SlowWriter(write_s, error="disk full"), checkpoint={"every": every}, rounds=5)
    assert isinstance(lab.error, TrainerError) and "disk full" in str(lab.error)
    assert len(lab.of("round_end")) == rounds
    assert finished_checkpoints(lab.run_dir) == [] and not lab.run_dir.model.exists()


def test_the_error_of_the_run_is_told_not_that_of_its_open_checkpoint(tmp_path: Path) -> None:
    trainer = SlowWriter(3.0, error="disk full")
    trainer.fail_at = "r1/g0"
    lab = run_run(tmp_path, trainer=trainer, checkpoint={"every": 1}, group_order="submission")
    assert "planted failure at r1/g0" in str(lab.error)


def test_each_prompt_is_trained_once_an_epoch_across_a_resume(tmp_path: Path) -> None:
    """Pain 18: 20 problems, 5 rounds of 4."""
    run_run(tmp_path, rounds=5, checkpoint={"every": 1}, stop_when=first_update_of_round(2))
    lab = resumed(tmp_path, rounds=5, checkpoint={"every": 1})
    assert Counter(problem for found in lab.trained_problems() for problem in found) == {f"prompt {i}": 1 for i in range(20)}


def test_a_resumed_run_goes_on_with_version_step_and_time(tmp_path: Path) -> None:
    stopped = run_run(tmp_path, checkpoint={"every": 1}, stop_when=first_update_of_round(1))
    lab = resumed(tmp_path, checkpoint={"every": 1})
    assert [event["round"] for event in lab.of("round_start")] == [1, 2]
    assert lab.of("publish")[0]["version"] == 1 and [event["version"] for event in lab.of("round_start")] == [1, 2]
    assert lab.of("update")[0]["optimizer_step"] == 3
    assert lab.events[0]["t"] >= stopped.events[-1]["t"]
    times = [event["t"] for event in lab.all_events]
    assert times == sorted(times)


def test_no_round_stands_twice_in_metrics_and_groups_after_a_resume(tmp_path: Path) -> None:
    run_run(tmp_path, rounds=4, checkpoint={"every": 2}, stop_when=end_of_round(2))
    lab = resumed(tmp_path, rounds=4, checkpoint={"every": 2})
    assert [row["round"] for row in lab.metrics] == [0, 1, 2, 3]
    assert [path.name for path in sorted(lab.run_dir.groups.iterdir())] == [f"round-0000{i}.jsonl" for i in range(4)]
    assert all(len(found) == 4 for found in lab.trained_problems())
    assert lab.result is not None and [metrics.round for metrics in lab.result.rounds] == [0, 1, 2, 3]


def test_a_torn_last_line_of_metrics_is_forgotten(tmp_path: Path) -> None:
    stopped = run_run(tmp_path, checkpoint={"every": 1}, stop_when=first_update_of_round(2))
    with stopped.run_dir.metrics.open("a") as file:
        file.write('{"round": 2, "ver')
    assert [row["round"] for row in resumed(tmp_path, checkpoint={"every": 1}).metrics] == [0, 1, 2]


def test_a_resumed_run_may_have_more_rounds(tmp_path: Path) -> None:
    run_run(tmp_path, rounds=2)
    lab = resumed(tmp_path, rounds=4)
    assert [event["round"] for event in lab.of("round_start")] == [2, 3]


def test_a_finished_run_that_is_resumed_trains_nothing_more(tmp_path: Path) -> None:
    first = run_run(tmp_path)
    lab = resumed(tmp_path)
    assert lab.of("round_start") == [] and lab.trainer.weight == first.trainer.weight


def test_other_problems_are_refused_before_anything_is_published(tmp_path: Path) -> None:
    """Pain 18: a dataset swap is an error."""
    run_run(tmp_path, rounds=2)
    lab = resumed(tmp_path, problems=workload_of(20, "0ther"))
    assert isinstance(lab.error, DataError) and "the problems that the run was trained on (content c0ffee)" in str(lab.error)
    assert lab.of("publish") == []


def test_a_run_without_checkpoint_is_trained_again_from_disk(tmp_path: Path) -> None:
    undisturbed = run_run(_root(tmp_path, "a"), group_order="submission")
    run_run(_root(tmp_path, "b"), group_order="submission", stop_when=first_update_of_round(1))
    lab = resumed(_root(tmp_path, "b"), group_order="submission")
    assert [event["round"] for event in lab.of("recorded")] == [0, 1] and lab.of("dispatch", round=0) == []
    assert lab.trainer.weight == undisturbed.trainer.weight


def test_a_failing_round_keeps_what_was_recorded(tmp_path: Path) -> None:
    trainer = RecordingTrainer()
    trainer.fail_at = "r1/g2"
    lab = run_run(tmp_path, trainer=trainer, checkpoint={"every": 1}, group_order="submission")
    assert "planted failure at r1/g2" in str(lab.error)
    assert [row["round"] for row in lab.metrics] == [0]
    assert [path.name for path in finished_checkpoints(lab.run_dir)] == ["round-00001"]
    assert not lab.run_dir.model.exists() and not lab.run_dir.result.exists()


def _root(tmp_path: Path, name: str) -> Path:
    root = tmp_path / name
    root.mkdir(exist_ok=True)
    return root
