"""What a process has had of the cores, and what it has missed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil


@dataclass(frozen=True, slots=True)
class Usage:
    """Of the main thread, since the process began."""

    cpu_s: float = 0.0
    starved_s: float = 0.0  # ready to run, while others ran (Linux; elsewhere 0)

    @classmethod
    def of(cls, pid: int) -> Self:
        """Zeros where the process has just ended."""
        try:
            ran_ns, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
            return cls(int(ran_ns) * 1e-9, int(waited_ns) * 1e-9)
        except (OSError, ValueError):  # no Linux, or none with this file
            return cls._of_psutil(pid)

    @classmethod
    def _of_psutil(cls, pid: int) -> Self:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return cls()
        return cls(times.user + times.system)

    def since(self, before: "Usage") -> "Usage":
        """The difference, never below zero."""
        return Usage(max(0.0, self.cpu_s - before.cpu_s), max(0.0, self.starved_s - before.starved_s))
