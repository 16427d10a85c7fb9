"""What a process has had of the cores, and what it has missed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil


@dataclass(frozen=True, slots=True)
class Usage:
    """Of the main thread, since the process began."""

    cpu_s: float = 0.0
    starved_s: float = 0.0  # ready to run, while others ran (Linux; elsewhere 0); a wait counts once it is over
    is_ready: bool = False  # it runs, or waits for a core, now (Linux; elsewhere never)

    @classmethod
    def of(cls, pid: int) -> Self:
        """Zeros where the process has just ended."""
        try:
            ran_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
            return cls(int(ran_ns) * 1e-9, int(waited_ns) * 1e-9, state == b"R")
        except (OSError, ValueError, IndexError):  # no Linux, or none with this file
            return cls._of_psutil(pid)

    @classmethod
    def _of_psutil(cls, pid: int) -> Self:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return cls()
        return cls(times.user + times.system)

    def since(self, before: "Usage", elapsed_s: float) -> "Usage":
        """The difference, never below zero. `elapsed_s`: between the two.

        One that is ready has starved for all the time that it did not run: the kernel counts a wait only at its end, and a
        demoted process on a busy machine may wait for seconds. (What it slept before counts too then; that is not known.)
        """
        cpu_s, starved_s = max(0.0, self.cpu_s - before.cpu_s), max(0.0, self.starved_s - before.starved_s)
        return Usage(cpu_s, max(starved_s, elapsed_s - cpu_s) if self.is_ready else starved_s, self.is_ready)
