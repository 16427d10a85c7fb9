"""On which addresses a process and all that it started listen, looked at again and again while it runs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
_PERIOD_S = 0.5


def listening(process: psutil.Process) -> set[tuple[str, str]]:
    """(name of the process, address)"""
    found: set[tuple[str, str]] = set()
    try:
        tree = [process, *process.children(recursive=True)]
    except psutil.Error:
        return found
    for each in tree:
        try:
            connections = each.net_connections()
            found |= {(_name(each), one.laddr.ip) for one in connections if one.status == psutil.CONN_LISTEN}
        except psutil.Error:  # it has just ended
            continue
    return found


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    return words[0].rpartition("/")[2] if words else process.name()


@contextmanager
def watched(pid: int) -> Iterator[set[tuple[str, str]]]:
    """All that was found until the block ends."""
    found: set[tuple[str, str]] = set()
    has_ended, process = threading.Event(), psutil.Process(pid)

    def look() -> None:
        while not has_ended.wait(_PERIOD_S):
            found.update(listening(process))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        has_ended.set()
        thread.join()
