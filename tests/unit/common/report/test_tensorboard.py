"""TensorBoard reads what was written."""

from pathlib import Path

import pytest
import synthetic

from common.errors import DiskError
from common.metrics import collect_rounds
from common.report.tensorboard import TensorboardListener

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def test_tensorboard_reads_rounds_updates_and_lengths(tmp_path) -> None:
    simulation = synthetic.Simulation(synthetic.Plan(rounds=3), None)
    events: list = []
    simulation.timeline.listen(events.append)
    listener = TensorboardListener(simulation.timeline, tmp_path)
    simulation.run()
    listener.close()
    listener.close()
    read = accumulator.EventAccumulator(str(tmp_path), size_guidance={"histograms": 0})
    read.Reload()
    rounds = collect_rounds(events)
    rewards = read.Scalars("round/reward_mean")
    assert [point.step for point in rewards] == [0, 1, 2]
    assert [point.value for point in rewards] == pytest.approx([metrics.reward_mean for metrics in rounds])
    losses = read.Scalars("update/loss")
    assert [point.step for point in losses] == list(range(1, rounds[-1].optimizer_step + 1))
    assert "update/logprob_gap_max" in read.Tags()["scalars"]
    lengths = read.Histograms("round/response_length")
    assert [point.histogram_value.num for point in lengths] == [64, 64, 64]


def test_numbers_that_are_not_finite_are_left_out(tmp_path) -> None:
    simulation = synthetic.Simulation(synthetic.Plan(), None)
    listener = TensorboardListener(simulation.timeline, tmp_path)
    simulation.timeline.emit("update", update=0, optimizer_step=1, loss=float("nan"), grad_norm=1.0, metrics=None)
    listener.close()
    read = accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    assert read.Tags()["scalars"] == ["update/grad_norm"]


def test_a_full_disk_is_told_and_holds_nothing_up(tmp_path) -> None:
    """tensorboardX's own writer loses its thread there, and then waits for it for ever: 20 events are more than its queue."""
    simulation = synthetic.Simulation(synthetic.Plan(), None)
    timeline = simulation.timeline
    listener = TensorboardListener(timeline, tmp_path)
    with Path("/dev/full").open("wb", buffering=0) as full:
        listener._writer._file._py_recordio_writer._writer = full
        for step in range(20):
            timeline.emit("update", update=0, optimizer_step=step, loss=1.0, grad_norm=1.0, metrics=None)
        with pytest.raises(DiskError, match="cannot be written: No space left on device"):
            timeline.check()


def test_a_clock_that_was_set_back_does_not_write_over_an_earlier_file(tmp_path, monkeypatch) -> None:
    """A resumed process that starts in the same second of the clock: both files stay."""
    monkeypatch.setattr("time.time", lambda: 1.0e9)
    for pid in (1, 2):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        listener = TensorboardListener(synthetic.Simulation(synthetic.Plan(), None).timeline, tmp_path)
        listener.close()
    assert len(list(tmp_path.iterdir())) == 2
