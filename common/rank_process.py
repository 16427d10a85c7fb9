"""What runs in each process of a trainer, and what Ray says when one is gone. Ray is imported where it is used."""

import faulthandler
import importlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

from common.network import address_of
from common.process import die_with_parent, log_to

_LONGEST = 300  # characters of what Ray says of a death


class RankProcess:
    """A `TrainerRank` in a process of its own. The driver needs only this shell, so it imports no trainer's framework.

    `call`s run one after the other in one thread, whose settings they share; `background_call`s in another one. SIGUSR1
    writes the stacks of all threads to the log, also where they hang.
    """

    def __init__(self, log_file: Path, room: str, *args: Any) -> None:
        die_with_parent()
        log_to(log_file)
        # All threads, as calls run outside the main one. Reading them while they run is not free of risk (`common.stacks`);
        # where it ends the process, that is a death like any other.
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        self._rank = importlib.import_module(f"{room}.rank").TrainerRank(*args)

    def call(self, method: str, *args: Any) -> Any:
        """What `method` of the rank returns."""
        return getattr(self._rank, method)(*args)

    def background_call(self, method: str, *args: Any) -> Any:
        """The same beside ordinary calls, for a `method` that waits and touches nothing that they use."""
        return getattr(self._rank, method)(*args)

    def watch(self) -> None:
        """Never returns: whoever waits for it learns of this process's end."""
        threading.Event().wait()

    def address(self, host: str | None) -> str:
        """Of this node, for the others: that of the interface `host`, else Ray's. Raises ConfigError."""
        import ray

        return str(ray.util.get_node_ip_address()) if host is None else address_of(host)

    def pid(self) -> int:
        """Process id."""
        return os.getpid()


def is_death(error: BaseException | None) -> bool:
    """Whether it tells that a process, its node or the way there is gone; not where it could not even be made."""
    from ray import exceptions

    if isinstance(error, exceptions.RayActorError):
        return not error.actor_init_failed
    gone = (exceptions.NodeDiedError, exceptions.WorkerCrashedError, exceptions.LocalRayletDiedError)
    return isinstance(error, (*gone, exceptions.OutOfMemoryError, exceptions.OwnerDiedError))


def has_run(error: BaseException | None) -> bool:
    """Whether the process that is gone had been there at all: a node that has just died may still be chosen for one."""
    return "never ran" not in str(error)


def what_failed(error: BaseException | None) -> str:
    """What a process that is not dead raised, in one line."""
    from ray.exceptions import RayActorError, RayTaskError

    if isinstance(error, RayActorError):  # it could not be made; Ray keeps only the text of the cause, which comes last
        return f"failed to start: {str(error).strip().splitlines()[-1].strip()}"
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"failed with {type(cause).__name__}: {' '.join(str(cause).split())}"


def how_it_died(error: BaseException | None) -> str:
    """What Ray knows, in one line."""
    text = " ".join(str(error).split())
    if "its node has died" in text:
        return f"its node is gone: {text.rpartition('terminated')[2].strip(' :') or text}"[:_LONGEST]
    for start, end in (
        ("Worker exit detail: ", " Some common causes"),
        ("The actor is dead because ", "\n"),
        ("unavailable: ", "\n"),
    ):
        if start in text:
            return text.partition(start)[2].partition(end)[0].rstrip(". ")[:_LONGEST]
    return text[:_LONGEST]
