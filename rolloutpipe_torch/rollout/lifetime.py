"""An engine's child processes end when its actor does, however the actor ended.

The actor puts its process id into the environment; every process that vLLM spawns from it inherits it, imports the
receiver, and with it watches that id. A pidfd is used instead of PR_SET_PDEATHSIG, which follows the *thread* that
spawned the child and reaches no grandchild, and instead of polling the parent id, which races with its reuse.
"""

import os
import select
import threading

_OWNER = "ROLLOUTPIPE_ENGINE_OWNER"


def own_children() -> None:
    """Make this process the owner of all that it starts from now on."""
    os.environ[_OWNER] = str(os.getpid())


def exit_with_owner() -> None:
    """Watch the owner from a daemon thread; ends this process at once where it is gone already. Without owner: nothing."""
    owner = os.environ.get(_OWNER)
    if owner is None or int(owner) == os.getpid():
        return
    try:
        pidfd = os.pidfd_open(int(owner))
    except ProcessLookupError:
        os._exit(1)
    threading.Thread(target=_exit_when_ready, args=(pidfd,), name="exit-with-owner", daemon=True).start()


def _exit_when_ready(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)  # readable once the process has ended, also as a zombie
    poll.poll()
    os._exit(1)
