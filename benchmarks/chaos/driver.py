"""The driver of a run with fakes: the real command line, with engines, trainer and problems replaced.

    python -m chaos.driver train CONFIG ... | train --resume RUN_DIR ...

Everything between them is the product's: Ray, pool and keeper, ranks, verifiers, publisher, round, journal, checkpoints.
"""

import os
import time
from pathlib import Path
from typing import IO, Any

from chaos import plants
from chaos.fake_engine import FakeVllmEngine
from chaos.moments import append, due, enter, home, kill, reach
from common import cli, journal, prepare, timeline
from common.commands import train
from common.protocols import Problem
from common.records import Group
from common.spool import model_layout
from common.workloads.load import Workload
from rolloutpipe_torch import cluster
from rolloutpipe_torch.rollout import pool

NUM_PROBLEMS = 400
REAL = "CHAOS_REAL"  # set: nothing is replaced, vLLM and FSDP2 run


class _Tokenizer:
    def decode(self, token_ids: Any, skip_special_tokens: bool = True) -> str:
        return " ".join(map(str, token_ids))


def main() -> None:
    """Patch, then run the command."""
    enter("driver")
    if not os.environ.get(REAL):
        replace_parts()
    note_clock()
    strike_at_events()
    strike_in_journal()
    plants.plant(os.environ.get(plants.VARIABLE, ""))
    reach("driver-start")
    cli.main()


def replace_parts() -> None:
    """Engines, trainer, model and problems."""
    pool.ENGINE_CLASS = FakeVllmEngine
    pool._PROCESS_BYTES = 2**28  # a fake is no vLLM
    cluster._ANSWER_S = 60.0  # a cluster of three nodes on two cores is slow to answer
    prepare.TRAINER_ROOMS["torch"] = "chaos.fake_room"
    train.prepare = _prepare


def _prepare(config: Any, *_: object, **__: object) -> prepare.Prepared:
    tasks = [{"workload": "chaos", "gold": number} for number in range(NUM_PROBLEMS)]
    problems = tuple(
        Problem(problem_id=f"p{number}", prompt=f"prompt {number}", prompt_ids=(number % 60, number // 60, 7), task=task)
        for number, task in enumerate(tasks)
    )
    model_dir = Path(config.model.path)
    return prepare.Prepared(
        model_dir=model_dir,
        layout=model_layout(model_dir),
        tokenizer=_Tokenizer(),
        workload=Workload(name="chaos", problems=problems, content_hash="chaos", examples=tuple(tasks[:1])),
        evaluation=None,
        max_model_len=3 + config.sampling.max_tokens,
    )


def note_clock() -> None:
    """Wall-clock time of the timeline's zero, for each start of the driver."""
    initialize = timeline.Timeline.__init__

    def noting(self: timeline.Timeline, *arguments: Any, **settings: Any) -> None:
        initialize(self, *arguments, **settings)
        append(home() / "clocks.jsonl", {"pid": os.getpid(), "zero_s": time.time() - self.now(), "from_s": self.now()})

    timeline.Timeline.__init__ = noting  # type: ignore[method-assign]


def strike_at_events() -> None:
    """Each kind of event of the timeline is a moment: `event-dispatch`, `event-update` ..."""
    emit = timeline.Timeline.emit

    def telling(self: timeline.Timeline, kind: str, **fields: Any) -> timeline.Event:
        event = emit(self, kind, **fields)
        reach(f"event-{kind}")
        return event

    timeline.Timeline.emit = telling  # type: ignore[method-assign]


def strike_in_journal() -> None:
    """A moment before, in the middle of, and after each line of a group."""
    write_group = journal.Journal.group

    def group(self: journal.Journal, group: Group, problem: Problem) -> None:
        reach("before-line")
        for strike in due("half-line"):
            self._file = _Half(self._file, strike)  # type: ignore[assignment,arg-type]
        write_group(self, group, problem)
        reach("after-line")

    journal.Journal.group = group  # type: ignore[method-assign]


class _Half:
    """Writes half of a line, then the process is killed."""

    def __init__(self, file: IO[bytes], strike: dict[str, Any]) -> None:
        self._file, self._strike = file, strike

    def write(self, line: bytes) -> int:
        self._file.write(line[: len(line) // 2])
        self._file.flush()
        os.fsync(self._file.fileno())
        kill(self._strike)
        raise AssertionError("this process should be dead")


if __name__ == "__main__":
    main()
