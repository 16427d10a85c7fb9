"""A rank that tells how it was called."""

import os
import threading
import time
from pathlib import Path

from common.errors import DataError


class TrainerRank:
    def __init__(self, config, model_dir, rank, num_processes):
        self.rank, self.num_processes = rank, num_processes

    def listen(self, address):
        self.listens = address
        return 7

    def join(self, port, host, address):
        assert port == 7
        assert getattr(self, "listens", host) == host
        self.meets = host, address

    def met(self):
        return self.meets

    def process(self):
        return os.getpid()

    def who(self):
        return self.rank, self.num_processes

    def thread(self):
        return threading.get_native_id()

    def deal(self, shares, suffix):
        return [f"{self.rank}{share}{suffix}" for share in shares]

    def take(self, shares, suffix):
        pass

    def wait_for(self, path: Path):
        """Until the file is there; then it fails, if the file says so."""
        deadline = time.monotonic() + 30
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if path.read_text():
            raise OSError(path.read_text())
        return threading.get_native_id()

    def refuse(self):
        raise DataError("bad input")

    def die(self):
        if self.rank == self.num_processes - 1:
            os._exit(1)
        time.sleep(30)
