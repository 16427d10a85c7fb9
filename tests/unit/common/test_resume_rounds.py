"""Cut off anywhere, a run goes on inside its round: what is on disk is not sampled again, and is trained once (rule 10)."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from round_lab import RecordingTrainer
from run_lab import Lab, run_run, workload_of

from common.errors import DataError, RunError, TrainerDiedError
from common.journal_lines import seal
from common.records import Group, Request
from common.report.groups import read_groups
from common.testing import FakeEngine, Fault
from common.testing.fakes import hash_of
from common.timeline import Event

SETTINGS: dict[str, Any] = {"rounds": 4, "groups_per_round": 6, "group_order": "submission"}
EVENTS = ("dispatch", "response", "verify", "group_complete", "compute", "update", "publish", "round_end", "round_start", "phase")


def uneven(request: Request) -> float:
    """Seconds of a request: so that groups complete in another order than submitted, and while others are trained."""
    return 0.5 + request.seed % 97 / 20


def nth(kind: str, number: int) -> Callable[[Event], bool]:
    """The event of this kind that comes as number `number`."""
    seen = Counter[str]()

    def is_it(event: Event) -> bool:
        seen[event["kind"]] += 1
        return bool(event["kind"] == kind and seen[kind] == number)

    return is_it


def run(root: Path, **settings: Any) -> Lab:
    root.mkdir(exist_ok=True)
    return run_run(root, seconds=uneven, **{**SETTINGS, **settings})


def recorded_ids(lab: Lab) -> set[str]:
    return {str(stored.group.group_id) for path in lab.run_dir.groups.glob("round-*.jsonl") for stored in read_groups(path)}


def trained_once(lab: Lab) -> Counter[str]:
    """Groups of the last try of each round, as the timeline has them."""
    tries: dict[int, list[str]] = {}
    for event in lab.all_events:
        if event["kind"] == "round_start":
            tries[event["round"]] = []
        elif event["kind"] == "compute" and event["phase"] == "accumulate":
            tries[event["round"]].append(event["group"])
    return Counter(group for groups in tries.values() for group in groups)


def same_end(lab: Lab, whole: Lab) -> None:
    assert lab.error is None and whole.error is None
    assert lab.result is not None and whole.result is not None
    assert lab.trainer.weight == whole.trainer.weight and lab.trainer.step == whole.trainer.step
    assert lab.result.final_weights_sha256 == whole.result.final_weights_sha256
    assert trained_once(lab) == trained_once(whole)
    assert [metrics.round for metrics in lab.result.rounds] == [0, 1, 2, 3]


@pytest.mark.parametrize("every", [None, 2])
@pytest.mark.parametrize("kind", EVENTS)
def test_cut_off_at_any_event_it_ends_like_an_undisturbed_one(tmp_path: Path, kind: str, every: int | None) -> None:
    whole = run(tmp_path / "whole")
    for number in (1, 9, 24):
        root = tmp_path / f"{number}"
        stopped = run(root, stop_when=nth(kind, number), checkpoint={"every": every})
        if stopped.error is None:
            return  # so many of these events there are not
        before = recorded_ids(stopped)
        lab = run(root, resume=True, checkpoint={"every": every})
        same_end(lab, whole)
        assert not before & {event["group"] for event in lab.of("dispatch")}, "a group on disk was sampled again"


@pytest.mark.parametrize("schedule", ["serial", "cgp", "fgd", "fgd-strict", "adaptive"])
@pytest.mark.parametrize("group_order", ["arrival", "submission"])
def test_every_schedule_and_order_trains_what_is_on_disk_as_before(tmp_path: Path, schedule: str, group_order: str) -> None:
    """A run whose groups are all on disk gives the same weights: nothing is sampled."""
    given = {"schedule": schedule, "group_order": group_order}
    whole = run(tmp_path, **given)
    for path in whole.run_dir.checkpoints.iterdir():
        (path / "state.json").unlink()
    again = run(tmp_path, resume=True, **given)
    same_end(again, whole)
    assert again.of("dispatch") == [] and again.of("publish", phase="transfer") == []


def test_pain_18_killed_after_group_3_of_8_in_round_5(tmp_path: Path) -> None:
    """Pain 18: each prompt is trained once an epoch, versions go on, and another data set is an error."""
    given: dict[str, Any] = {"rounds": 7, "groups_per_round": 8, "problems": workload_of(56), "checkpoint": {"every": 2}}
    seen: list[str] = []

    def third(event: Event) -> bool:
        seen.extend([event["group"]] if event["kind"] == "group_complete" and event["round"] == 5 else [])
        return len(seen) == 3

    run(tmp_path, stop_when=third, **given)
    lab = run(tmp_path, resume=True, **given)
    assert lab.error is None and len(seen) == 3
    prompts = Counter(stored.prompt for path in lab.run_dir.groups.glob("round-*") for stored in read_groups(path))
    assert prompts == {f"prompt {i}": 1 for i in range(56)} and set(trained_once(lab).values()) == {1}
    assert not set(seen) & {event["group"] for event in lab.of("dispatch")}
    assert [event["version"] for event in lab.of("round_start")] == [4, 5, 6] and lab.result is not None
    assert lab.result.weight_version == 7
    swapped = run(tmp_path, resume=True, **{**given, "rounds": 8, "problems": workload_of(56, "0ther")})
    assert isinstance(swapped.error, DataError)


def test_several_cuts_in_one_round(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    root = tmp_path / "cut"
    run(root, stop_when=nth("group_complete", 2))
    for _ in range(3):
        run(root, resume=True, stop_when=nth("response", 5))
    same_end(run(root, resume=True), whole)


@pytest.mark.parametrize("kind", EVENTS)
def test_a_trainer_that_dies_starts_again_and_the_rounds_are_replayed(tmp_path: Path, kind: str) -> None:
    """Within one process: the engines go on, and nothing on disk is sampled again."""
    whole = run(tmp_path / "whole")
    for number in (1, 8):
        trainer = RecordingTrainer()
        lab = run_with_deaths(tmp_path / f"{number}", trainer, nth(kind, number), checkpoint={"every": 2})
        same_end(lab, whole)
        assert trainer.num_restarts == len(lab.of("recovered", part="trainer")) == len(lab.of("fault", part="trainer")) <= 1


def run_with_deaths(root: Path, trainer: RecordingTrainer, *moments: Callable[[Event], bool], **settings: Any) -> Lab:
    def die(event: Event) -> bool:
        if any(moment(event) for moment in moments):
            trainer.die()
        return False

    return run(root, trainer=trainer, stop_when=die, **settings)


def test_a_death_while_nothing_is_asked_is_noticed_at_once(tmp_path: Path) -> None:
    """Pain 2, the other way round: all engines still sample when the rank dies."""
    trainer = RecordingTrainer()
    lab = run_with_deaths(tmp_path, trainer, nth("dispatch", 3))
    (fault,) = lab.of("fault")
    assert fault["t"] <= lab.of("dispatch")[2]["t"] + 0.1 and "the fake trainer died" in fault["detail"]


def test_a_trainer_that_dies_again_and_again_ends_the_run_with_its_cause(tmp_path: Path) -> None:
    trainer = RecordingTrainer()
    lab = run_with_deaths(tmp_path, trainer, lambda event: event["kind"] == "update", supervision={"max_restarts": 3})
    assert isinstance(lab.error, RunError) and "trainer died 4 times within 3600 s" in str(lab.error)
    assert trainer.num_restarts == 3
    same_end(run(tmp_path, resume=True), run(tmp_path / "whole"))


def test_the_pause_before_a_restart_is_kept_and_doubles(tmp_path: Path) -> None:
    lab = run_with_deaths(tmp_path, RecordingTrainer(), *(nth("update", n) for n in (1, 2, 3)), supervision={"pause_s": 7})
    assert lab.error is None
    assert [event["t"] - event["start"] for event in lab.of("recovered")] == pytest.approx([7, 14, 28])


@pytest.mark.parametrize(("number", "every"), [(3, None), (30, 1)])
def test_engines_are_probed_anew_after_a_restart(tmp_path: Path, number: int, every: int | None) -> None:
    """Also where they serve what the new trainer has: in round 0, and in the round after a checkpoint."""
    lab = run_with_deaths(tmp_path, RecordingTrainer(), nth("dispatch", number), checkpoint={"every": every})
    (recovered,) = lab.of("recovered", part="trainer")
    after = lab.events[lab.events.index(recovered) :]
    asked = next(index for index, event in enumerate(after) if event["kind"] == "dispatch")
    phases = [(event["phase"], event["version"]) for event in after[:asked] if event["kind"] == "publish"]
    assert phases == [(phase, number // 24) for phase in ("export", "check", "probe")]


def test_without_restarts_a_dead_trainer_ends_the_run(tmp_path: Path) -> None:
    lab = run_with_deaths(tmp_path, RecordingTrainer(), nth("update", 2), supervision={"max_restarts": 0})
    assert isinstance(lab.error, RunError) and isinstance(lab.error.__cause__, TrainerDiedError)


def test_drops_are_replayed_as_they_were(tmp_path: Path) -> None:
    """A group that was dropped stays dropped: updates are made of the same groups."""
    faults = {"r1/g2/m1": [Fault.ERROR] * 3}
    (tmp_path / "whole").mkdir()
    whole = run_run(tmp_path / "whole", engine=FakeEngine(64, seconds=uneven, faults=dict(faults)), **SETTINGS)
    root = tmp_path / "cut"
    root.mkdir()
    run_run(root, engine=FakeEngine(64, seconds=uneven, faults=dict(faults)), stop_when=nth("round_end", 2), **SETTINGS)
    lab = run(root, resume=True)
    same_end(lab, whole)
    assert [event["drops"] for event in lab.of("recorded")] == [0, 1]


@pytest.mark.parametrize("cut", [nth("group_complete", 4), nth("group_complete", 9), nth("update", 2)])
def test_refills_and_filtered_groups_come_back(tmp_path: Path, cut: Callable[[Event], bool]) -> None:
    def reward(task: dict[str, Any], text: str) -> float:
        return 0.0 if task["gold"] % 3 == 0 else float(hash_of(text) % 2)

    given: dict[str, Any] = {"filter": "refill", "rounds": 2, "reward": reward, "problems": workload_of(60)}
    run(tmp_path, stop_when=cut, **given)
    lab = run(tmp_path, resume=True, **given)
    assert lab.error is None
    prompts = Counter(stored.prompt for path in lab.run_dir.groups.glob("round-*") for stored in read_groups(path))
    assert max(prompts.values()) == 1, "a problem was asked twice"
    assert all(event["books"]["refilled"] == event["books"]["filtered"] for event in lab.of("round_end"))


def test_advantages_of_a_batch_need_the_whole_round(tmp_path: Path) -> None:
    given: dict[str, Any] = {"schedule": "serial", "advantage_std": "batch"}
    whole = run(tmp_path / "whole", **given)
    root = tmp_path / "cut"
    stopped = run(root, stop_when=nth("update", 1), **given)
    path = stopped.run_dir.groups / "round-00000.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))  # killed while the batch was written
    lab = run(root, resume=True, **given)
    same_end(lab, whole)
    assert "advantages are of a whole round" in lab.of("left_out")[0]["message"]
    stopped = run(tmp_path / "later", stop_when=nth("update", 1), **given)
    lab = run(tmp_path / "later", resume=True, **given)
    same_end(lab, whole)
    assert lab.of("left_out") == [] and lab.of("dispatch", round=0) == []


# What was written is not what is there: torn, edited, of another round.


def spoil(lab: Lab, number: int, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path = lab.run_dir.groups / f"round-{number:05d}.jsonl"
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def told(lab: Lab) -> str:
    return "\n".join(event["message"] for event in lab.of("left_out"))


def edit(line: bytes) -> bytes:
    return line.replace(b'"reward":1.0', b'"reward":0.5', 1).replace(b'"reward":0.0', b'"reward":0.5', 1)


def reseal(line: bytes, **changes: Any) -> bytes:
    row = json.loads(line)
    number = row.pop("line")
    row.pop("crc32")
    return seal({**row, **changes}, number)


def wrong_advantage(line: bytes) -> bytes:
    row = json.loads(line)
    row["samples"][0]["advantage"] += 0.25
    return reseal(line, samples=row["samples"])


SPOILS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "torn": (lambda lines: [*lines[:-1], lines[-1][:-40]], "is torn: the run ended while it was written"),
    "edited": (lambda lines: [*lines[:2], edit(lines[2]), *lines[3:]], "does not match its checksum"),
    "repeated": (lambda lines: [*lines, lines[2]], "reports its group a second time"),
    "of another problem": (lambda lines: [*lines[:2], reseal(lines[2], problem="p77"), *lines[3:]], "answers another problem"),
    "of another version": (lambda lines: [*lines[:2], reseal(lines[2], weight_version=7), *lines[3:]], "another weight version"),
    "with other advantages": (lambda lines: [*lines[:2], wrong_advantage(lines[2]), *lines[3:]], "other advantages"),
    "not JSON": (lambda lines: [*lines[:2], b"\x00\xff\n", *lines[2:]], "has no checksum"),
    "moved": (lambda lines: [lines[0], *reversed(lines[1:])], "its lines were moved"),
    "taken out": (lambda lines: [*lines[:2], *lines[3:]], "lines 3 were taken out"),
    "of other weights": (lambda lines: [reseal(lines[0], weights="0" * 64), *lines[1:]], "sampled from other weights"),
    "of other problems": (lambda lines: [reseal(lines[0], problems="0" * 16), *lines[1:]], "of another round (problems"),
    "without its head": (lambda lines: lines[1:], "does not name the round"),
    "empty": (lambda lines: [], ""),
    # as an older release wrote them
    "without seals": (lambda lines: [re.sub(rb',"crc32":"\w+"', b"", line) for line in lines[1:]], "first line has no checksum"),
}


@pytest.mark.parametrize("stop", [("group_complete", 10), ("update", 5)], ids=["in part", "whole"])
@pytest.mark.parametrize("how", SPOILS)
def test_what_cannot_be_trusted_is_left_out_named_and_sampled_again(tmp_path: Path, how: str, stop: tuple[str, int]) -> None:
    change, message = SPOILS[how]
    whole = run(tmp_path / "whole")
    root = tmp_path / "cut"
    stopped = run(root, stop_when=nth(*stop), checkpoint={"every": 1})
    spoil(stopped, 1, change)
    lab = run(root, resume=True)
    same_end(lab, whole)
    assert message in told(lab)
    harmless = ("repeated", "not JSON", "torn", "moved")  # of a whole journal, only its last line is torn: that of the end
    assert lab.of("dispatch", round=1) or how in harmless
    if message and how not in ("moved", "taken out"):
        assert (lab.run_dir.groups / "rejected.txt").read_bytes().count(b"\n") >= 2
    run(root, resume=True, rounds=5)  # and what is on disk now is sound
    assert len(list(read_groups(lab.run_dir.groups / "round-00001.jsonl"))) == 6


def test_where_a_replay_comes_out_otherwise_later_groups_are_not_used(tmp_path: Path) -> None:
    """The heart of staying on-policy: round 1 was sampled from weights that do not come again."""

    class Other(RecordingTrainer):
        async def finish_update(self) -> Any:
            result = await super().finish_update()
            self.weight += 1e-3
            return result

    stopped = run(tmp_path, stop_when=nth("update", 5))
    lab = run(tmp_path, resume=True, trainer=Other())
    assert lab.error is None and stopped.run_dir == lab.run_dir
    assert lab.of("dispatch", round=0) == [] and len(lab.of("dispatch", round=1)) == 24
    assert "sampled from other weights than version 1 has" in told(lab)


def test_the_journal_is_on_disk_before_the_trainer_sees_the_group(tmp_path: Path) -> None:
    seen: list[tuple[Any, bool]] = []

    class Looking(RecordingTrainer):
        async def accumulate(self, groups: Any) -> None:
            for group in groups:
                text = (tmp_path / "run/groups" / f"round-{group.weight_version:05d}.jsonl").read_text()
                seen.append((group.group_id, f'"group":"{group.group_id}"' in text))
            await super().accumulate(groups)

    run(tmp_path, trainer=Looking())
    assert len(seen) == 24 and all(found for _, found in seen)


def test_a_resumed_run_keeps_the_figures_of_rounds_that_were_only_replayed(tmp_path: Path) -> None:
    stopped = run(tmp_path, stop_when=nth("update", 8))
    before = stopped.metrics
    lab = run(tmp_path, resume=True)
    assert lab.metrics[: len(before)] == before and len(before) == 2
    assert lab.metrics[2]["groups_recorded"] > 0 and lab.metrics[3]["groups_recorded"] == 0


FIGURES = ("reward_mean", "length_mean", "length_median", "length_max", "cut_off_share", "no_answer_share", "groups_trained")


def test_figures_of_a_resumed_round_count_what_was_on_disk(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", sampling={"max_tokens": 5})
    for number in (1, 4, 9):
        root = tmp_path / f"{number}"
        run(root, stop_when=nth("group_complete", number), sampling={"max_tokens": 5})
        lab = run(root, resume=True, sampling={"max_tokens": 5})
        for row, wanted in zip(lab.metrics, whole.metrics, strict=True):
            assert {name: row[name] for name in FIGURES} == pytest.approx({name: wanted[name] for name in FIGURES})
    (whole.run_dir.metrics).unlink()  # and of rounds that are only replayed
    for path in whole.run_dir.checkpoints.iterdir():
        (path / "state.json").unlink()
    for row, wanted in zip(run(tmp_path / "whole", resume=True, sampling={"max_tokens": 5}).metrics, lab.metrics, strict=True):
        assert {name: row[name] for name in FIGURES} == pytest.approx({name: wanted[name] for name in FIGURES})


def test_a_journal_that_is_gone_is_told(tmp_path: Path) -> None:
    stopped = run(tmp_path, stop_when=nth("update", 5))
    (stopped.run_dir.groups / "round-00000.jsonl").unlink()
    assert "round-00000.jsonl is gone, though later ones are there" in told(run(tmp_path, resume=True))


@pytest.mark.parametrize("state", [None, {}, {"num_problems": 20}, [1]])
def test_a_state_without_its_order_of_problems_is_one_line(tmp_path: Path, state: Any) -> None:
    stopped = run(tmp_path, stop_when=nth("update", 5), checkpoint={"every": 1})
    path = stopped.run_dir.checkpoints / "round-00001" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sampler": state}))
    lab = run(tmp_path, resume=True)
    assert isinstance(lab.error, DataError) and "sampler: must be the state of an order of problems" in str(lab.error)


def test_other_problems_do_not_use_the_journal(tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    lab = run(tmp_path, resume=True, rounds=2, problems=workload_of(20, "0ther"))
    assert isinstance(lab.error, DataError)


def test_a_group_survives_the_journal_bit_for_bit(tmp_path: Path) -> None:
    groups: list[Group] = []

    class Keeping(RecordingTrainer):
        async def accumulate(self, found: Any) -> None:
            await super().accumulate(found)
            groups.extend(found)

    lab = run(tmp_path, trainer=Keeping())
    stored = [each.group for path in sorted(lab.run_dir.groups.glob("round-*")) for each in read_groups(path)]
    assert sorted(map(repr, stored)) == sorted(map(repr, groups))
    assert asyncio.iscoroutinefunction(Keeping().accumulate)
