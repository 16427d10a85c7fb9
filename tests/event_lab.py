"""Events of every kind, as rounds with fakes emit them that meet all there is to meet."""

from pathlib import Path

from round_lab import RecordingTrainer
from run_lab import Lab, run_run

from common.testing import FakeEngine, Fault
from common.timeline import Event

# Written by `train` itself, around the rounds.
OF_THE_COMMAND: list[Event] = [
    {"t": 0.0, "kind": "run_start", "name": "lab", "schedule": "adaptive", "rounds": 4, "is_simulated": False},
    {"t": 1e4, "kind": "run_end", "status": "finished", "detail": ""},
]
_SETTINGS = {"schedule": "adaptive", "rounds": 4, "eval": {"every": 1, "samples": 2}, "limits": {"stall_s": 30}}


def eventful_run(root: Path) -> list[Event]:
    """Of two tries: lost requests, a dropped group, a trainer that dies, a silence, a damaged journal; `run_end` is added."""
    root.mkdir(parents=True, exist_ok=True)
    first = _try(root, stop_at=2)
    journal = first.run_dir.groups / "round-00002.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"damaged": 1}\n')
    second = _try(root, resume=True)
    assert second.error is None, second.error
    return [OF_THE_COMMAND[0], *second.all_events, {**OF_THE_COMMAND[1], "t": second.all_events[-1]["t"]}]


def _try(root: Path, *, stop_at: int | None = None, resume: bool = False) -> Lab:
    trainer, completed = RecordingTrainer(), []
    lost = {"r0/g0/m0": [Fault.ERROR], "r1/g1/m1": [Fault.ERROR] * 9, "e1/g0/m0": [Fault.ERROR]}

    def look(event: Event) -> bool:
        if event["kind"] == "update" and event["round"] == 1 and not trainer.num_restarts:
            trainer.die()
        completed.extend([event] if event["kind"] == "group_complete" and event["round"] == stop_at else [])
        return len(completed) == 2

    engine = FakeEngine(8, seconds=lambda request: 100.0 if request.request_id == "r0/g1/m0" else 1.0, faults=lost)
    return run_run(root, engine=engine, trainer=trainer, num_eval=3, resume=resume, stop_when=look, **_SETTINGS)
