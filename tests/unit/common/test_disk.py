"""A disk that is full: the run ends with one line that names the file, and can be resumed. Faults are planted, and real."""

import builtins
import errno
import io
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from round_lab import RecordingTrainer
from run_lab import Lab, run_run

from common.config import load_config
from common.disk import disk_fault, stopped, writing
from common.disk_space import DiskNeeds, check_space, disk_needs
from common.errors import ConfigError, DataError, DiskError, RunError, TrainerError
from common.plan_given import Given
from common.rundir import RunDir, finished_checkpoints
from common.timeline import Timeline, read_timeline

SETTINGS: dict[str, Any] = {"checkpoint": {"every": 1}, "eval": {"every": 1}, "group_order": "submission"}


def run(root: Path, **more: Any) -> Lab:
    return run_run(root, num_eval=2, **SETTINGS, **more)


class FullDisk:
    """From the `after`-th write on, whatever is written to a file whose path holds `part` fails half-way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, part: str, after: int, code: int = errno.ENOSPC) -> None:
        self.part, self.left, self.code, self.is_full = part, after, code, True
        self.hits = 0
        real = io.open

        def fake(file: Any, mode: str = "r", *args: Any, **settings: Any) -> Any:
            opened = real(file, mode, *args, **settings)
            if isinstance(file, int) or part not in str(file) or not set(mode) & set("wax+"):
                return opened
            write = opened.write

            def torn(data: Any) -> int:
                self.left -= 1
                if self.left >= 0 or not self.is_full:
                    return int(write(data))
                self.hits += 1
                write(data[: len(data) // 2])
                opened.flush()
                raise OSError(self.code, os.strerror(self.code))

            try:
                opened.write = torn
            except AttributeError:  # of a binary file
                return opened
            return opened

        monkeypatch.setattr(io, "open", fake)
        monkeypatch.setattr(builtins, "open", fake)


# The part of a path, and the number of writes that go well before the disk is full.
SITES = {
    "samples": ("groups/", 5),
    "first samples": ("groups/", 0),
    "timeline": ("timeline.jsonl", 90),
    "timeline's start": ("timeline.jsonl", 0),
    "metrics": ("metrics.jsonl", 1),
    "checkpoint": ("state.json", 1),
    "evaluations": ("eval.jsonl", 1),
    "samples of evaluations": ("eval/", 3),
    "spool": ("manifest.json", 2),
    "result": ("result.json", 0),
}


@pytest.mark.parametrize("site", SITES)
def test_a_full_disk_ends_the_run_and_a_resume_ends_it_well(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second half is pain 18: what was half written counts for nothing, and the weights are those of a calm run."""
    part, after = SITES[site]
    calm = run(tmp_path / "calm") if (tmp_path / "calm").mkdir() is None else None
    assert calm is not None and calm.result is not None
    disk = FullDisk(monkeypatch, part, after)
    lab = run(tmp_path)
    assert disk.hits >= 1 and lab.result is None
    assert isinstance(lab.error, DiskError | RunError)
    told = stopped(lab.error, lab.run_dir.path)
    assert told is not None and "No space left on device" in str(told) and "\n" not in str(told)
    assert "free" in str(told) and f"rolloutpipe train --resume {lab.run_dir.path}" in str(told)
    assert part.strip("/") in str(told)
    assert lab.trainer.is_updating is False
    disk.is_full = False
    if finished_checkpoints(lab.run_dir):
        again = run(tmp_path, resume=True)
        assert again.error is None and again.result is not None
        assert again.result.final_weights_sha256 == calm.result.final_weights_sha256
        assert len(again.metrics) == 3 and [line["round"] for line in again.metrics] == [0, 1, 2]
        assert [len(prompts) for prompts in again.trained_problems()] == [4, 4, 4]
        list(read_timeline(lab.run_dir.timeline))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO])
def test_every_kind_of_failing_disk_is_told_by_its_own_words(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(monkeypatch, "groups/", 3, code)
    error = run(tmp_path).error
    assert isinstance(error, DiskError) and os.strerror(code) in str(error) and "groups/round-00000.jsonl" in str(error)


def test_the_timeline_itself_never_raises_in_an_odd_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event may come from clean-up; what listens goes on, and the run learns of it when it asks."""
    disk = FullDisk(monkeypatch, "t.jsonl", 2)
    heard: list[str] = []
    timeline = Timeline(tmp_path / "t.jsonl")
    timeline.listen(lambda event: heard.append(event["kind"]))
    for kind in ("run_start", "round_start", "stall", "round_end"):
        timeline.emit(kind)
    assert heard == ["run_start", "round_start", "stall", "round_end"] and disk.hits == 1
    with pytest.raises(DiskError, match=r"t\.jsonl cannot be written: No space left on device"):
        timeline.check()
    timeline.close()
    assert [event["kind"] for event in read_timeline(tmp_path / "t.jsonl")] == ["run_start", "round_start"]


def test_a_listener_that_cannot_write_is_told_by_check_and_left_out(tmp_path: Path) -> None:
    calls: list[str] = []

    def full(event: dict[str, Any]) -> None:
        calls.append(event["kind"])
        with writing(tmp_path / "metrics.jsonl"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DiskError, match=r"metrics\.jsonl"), Timeline(tmp_path / "t.jsonl") as timeline:
        timeline.listen(full)
        timeline.emit("a")
        timeline.emit("b")
    assert calls == ["a"] and len(list(read_timeline(tmp_path / "t.jsonl"))) == 2


def test_what_a_buffer_still_holds_when_the_timeline_ends_is_not_lost_in_silence(tmp_path: Path) -> None:
    """/dev/full takes every open and no byte."""
    timeline = Timeline(tmp_path / "t.jsonl")
    with Path("/dev/full").open("w") as full, pytest.raises(DiskError, match="cannot be written: No space"), timeline:
        timeline._file = full
        timeline.emit("dispatch")


def test_a_model_that_cannot_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`shutil` collects the errors of many files in one, without a number."""

    def copytree(source: Path, target: Path, **_: Any) -> None:
        target.mkdir()
        (target / "config.json").write_text("{")
        raise shutil.Error([(str(source), str(target), "[Errno 28] No space left on device: 'tokenizer.json'")])

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", copytree)
        lab = run(tmp_path)
    assert isinstance(lab.error, DiskError) and f"{lab.run_dir.model} cannot be written: No space left" in str(lab.error)
    assert not lab.run_dir.model.exists() and not lab.run_dir.result.exists()
    again = run(tmp_path, resume=True)
    assert again.error is None and (again.run_dir.model / "config.json").read_text() == "{}"


class RankWithFullDisk(RecordingTrainer):
    """What a rank says, as it arrives: text alone."""

    async def save(self, directory: Path) -> None:
        raise TrainerError(
            "trainer rank 0 failed with SafetensorError: Error while serializing: No space left on device (os error 28);"
            " see /logs/trainer-rank-0.log"
        )


def test_a_rank_whose_disk_is_full_is_told_with_the_way_to_go_on(tmp_path: Path) -> None:
    lab = run(tmp_path, trainer=RankWithFullDisk())
    told = stopped(lab.error, lab.run_dir.path)  # type: ignore[arg-type]
    assert told is not None and str(told).startswith("trainer rank 0 failed with SafetensorError")
    assert "free on its disk" in str(told) and "--resume" in str(told) and lab.run_dir.model.exists() is False


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "No space left on device: /x"),
        (shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")]), "No space left on device"),
        (RuntimeError("[enforce fail] write: No space left on device"), "No space left on device"),
        (TrainerError("rank 1: OSError: [Errno 27] File too large: '/x'"), "File too large"),
        (TrainerError("rank 1 failed with DiskError: /x cannot be written: Read-only file system"), "Read-only file system"),
        (ValueError("payload: File too large"), None),  # a server's answer, not a disk
        (OSError(errno.ECONNRESET, "Connection reset by peer"), None),
    ],
)
def test_what_is_a_disks_fault(error: Exception, fault: str | None) -> None:
    assert disk_fault(error) == fault
    outer = RunError("something else")
    outer.__cause__ = error
    assert disk_fault(outer) == fault


def test_bad_input_is_not_the_disks_fault(tmp_path: Path) -> None:
    error = DataError("state.json cannot be read")
    error.__cause__ = OSError(errno.EIO, "Input/output error")
    assert stopped(error, tmp_path) is None


@pytest.mark.parametrize("what", ["groups", "."])
def test_a_run_directory_that_vanishes_ends_the_run_and_is_named(what: str, tmp_path: Path) -> None:
    """Moved away in the middle of round 1."""

    def vanish(event: dict[str, Any]) -> bool:
        if event["kind"] == "round_end" and event["round"] == 0:
            (tmp_path / "run" / what).rename(tmp_path / "elsewhere")
        return False

    lab = run_run(tmp_path, stop_when=vanish)
    assert isinstance(lab.error, DiskError) and "is gone" in str(lab.error)
    told = str(stopped(lab.error, lab.run_dir.path))
    assert ("--resume" in told) == (what == "groups") and str(tmp_path / "run") in told


# --- a real limit, in a process of its own

CHILD = """
import json, sys
from pathlib import Path
from run_lab import run_run
from common.disk import stopped
root, resume = Path(sys.argv[1]), sys.argv[2] == "resume"
lab = run_run(root, resume=resume, rounds=4, checkpoint={"every": 1}, group_order="submission")
told = stopped(lab.error, lab.run_dir.path) if lab.error else None
print(json.dumps({"error": str(told or lab.error or ""), "sha": lab.result.final_weights_sha256 if lab.result else None}))
"""

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])}


def child(root: Path, mode: str, *before: str, limit: Callable[[], None] | None = None) -> dict[str, Any]:
    root.mkdir(exist_ok=True)
    command = [*before, sys.executable, "-c", CHILD, str(root), mode]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=limit,
        env=ENV,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def calm_run(root: Path) -> tuple[str, int]:
    """Final weights and size of the timeline of the same run where nothing is amiss."""
    (root / "calm").mkdir()
    lab = run_run(root / "calm", rounds=4, checkpoint={"every": 1}, group_order="submission")
    assert lab.result is not None
    return lab.result.final_weights_sha256, lab.run_dir.timeline.stat().st_size


def test_a_process_that_may_write_no_more_stops_and_is_resumed(tmp_path: Path) -> None:
    """RLIMIT_FSIZE, a quota of each file: the kernel itself cuts the timeline in the middle of a write."""
    sha, num_bytes = calm_run(tmp_path)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes * 2 // 3, num_bytes * 2 // 3))

    stopped_run = child(tmp_path / "a", "new", limit=limit)
    assert "timeline.jsonl cannot be written: File too large" in stopped_run["error"] and stopped_run["sha"] is None
    assert child(tmp_path / "a", "resume")["sha"] == sha


def test_a_disk_of_128_kb_is_full_and_the_run_goes_on_when_it_has_grown(tmp_path: Path) -> None:
    """A tmpfs in a name space of its own; on machines where nobody may mount one, the test above stands alone."""
    may_mount = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0
    if not may_mount:
        pytest.skip("no right to mount a file system here")
    sha, _ = calm_run(tmp_path)
    place = tmp_path / "small"
    place.mkdir()
    script = f'mount -t tmpfs -o size=128k none {place} && {{ "$@" new; mount -o remount,size=64m {place}; "$@" resume; }}'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", sys.executable, "-c", CHILD, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENV, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "cannot be written: No space left on device (0.0 MB free" in first and '"sha": null' in first
    assert sha in second


# --- before the run

GIVEN = Given(
    model="m", num_params=1_000_010, model_bytes=4_000_020, shape=None, workload=None, longest_prompt=100, max_model_len=300
)
SMALL = {"groups_per_round": 2, "responses_per_group": 5, "sampling__max_tokens": 50}  # 10 x (500 + 8 x 100 + 36 x 50) a round


def config(tmp_path: Path, **settings: Any) -> Any:
    file = tmp_path / "config.yaml"
    file.write_text("model: {path: x}\n")
    return load_config(file, [f"{name.replace('__', '.')}={value}" for name, value in settings.items()])


def test_the_needs_of_a_run_are_counted(tmp_path: Path) -> None:
    needs = disk_needs(config(tmp_path, rounds=10, checkpoint__every=2, **SMALL), GIVEN)
    assert needs == DiskNeeds(
        checkpoint=12 * 1_000_010, num_checkpoints=3, journal=31_000, num_journals=10, spool=2 * 4_000_020, model=4_000_020
    )
    assert needs.kept == 3 * 12 * 1_000_010 + 10 * 31_000 + 4_000_020
    assert disk_needs(config(tmp_path, rounds=10), GIVEN).num_checkpoints == 1
    assert disk_needs(config(tmp_path, rounds=2, checkpoint__every=1, checkpoint__keep=5), GIVEN).num_checkpoints == 2
    assert disk_needs(config(tmp_path, rounds=10, retention__groups=4), GIVEN).num_journals == 4


def test_a_resume_counts_only_the_samples_that_are_not_there(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.groups.mkdir()
    for index in range(3):
        (run_dir.groups / f"round-{index:05d}.jsonl").touch()
    assert disk_needs(config(tmp_path, rounds=10), GIVEN, run_dir).num_journals == 7


def test_too_little_room_is_refused_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"now": 48_000_000}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 0, free["now"]))  # type: ignore[attr-defined]
    needs = disk_needs(config(tmp_path, rounds=10, checkpoint__every=2, **SMALL), GIVEN)
    with pytest.raises(ConfigError) as error:
        check_space(needs, tmp_path / "not" / "yet", tmp_path / "not" / "yet")
    assert str(error.value).startswith(
        "run_dir: must have 48.0 MB free (3 checkpoints 36.0 MB, samples of a round, at most 0.0 MB, model 4.0 MB, "
        "spool 8.0 MB), got '48.0 MB free'"
    )
    free["now"] = 49_000_000
    check_space(needs, tmp_path, tmp_path)


def test_a_spool_on_another_disk_is_counted_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("/dev/shm is no file system of its own here")
    free = {shared: 7_000_000, tmp_path: 41_000_000}
    monkeypatch.setattr(
        shutil,
        "disk_usage",
        lambda path: shutil._ntuple_diskusage(10**12, 0, free[path]),  # type: ignore[attr-defined]
    )
    needs = disk_needs(config(tmp_path, rounds=10, checkpoint__every=2, **SMALL), GIVEN)
    with pytest.raises(ConfigError, match=r"cluster\.spool_dir: must have 8\.0 MB free \(spool 8\.0 MB\), got '7\.0 MB free'"):
        check_space(needs, tmp_path, shared)
    free[shared] = 9_000_000
    check_space(needs, tmp_path, shared)
