"""Syncing a file that grows, without waiting for the disk: by a thread, as often as the disk keeps up with."""

import os
import threading
from pathlib import Path

from common.disk import writing


class Syncer:
    """`soon` asks for what is written so far to be brought to the disk; `now` waits for it. Not safe across threads."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path, self._handle = path, handle
        self._wanted, self._lock = threading.Event(), threading.Lock()
        self._error: OSError | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"sync {path.name}", daemon=True)
        self._thread.start()

    def soon(self) -> None:
        """Returns at once. Raises DiskError for what an earlier sync has met."""
        self._check()
        self._wanted.set()

    def now(self) -> None:
        """Returns when all is on the disk. Raises DiskError."""
        self._wanted.clear()
        self._sync()
        self._check()

    def close(self) -> None:
        """Sync what is left, and end the thread; idempotent. What goes wrong here is met by the reader, who trusts no line."""
        if not self._is_closed:
            self._is_closed = True
            self._wanted.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            self._wanted.wait()
            self._wanted.clear()
            self._sync()

    def _sync(self) -> None:
        with self._lock:
            try:
                os.fdatasync(self._handle)
            except OSError as error:
                self._error = self._error or error

    def _check(self) -> None:
        if self._error is not None:
            with writing(self._path):
                raise self._error
