"""How far `rolloutpipe score` is: counts, the live line on a terminal, and what is told at the end."""

import time
from collections import Counter
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from common.figures import number
from common.protocols import Score

MAX_FAULTS = 100  # told on stderr; all stand in the output
_REPORT_S = 10.0  # between two lines where stderr is no terminal


class Tally:
    """Counts verdicts, and tells of them on stderr. `is_live`: in one line that changes, else in a line now and then."""

    def __init__(self, console: Console, *, is_live: bool) -> None:
        self._console = console
        self._is_live = is_live
        self._start_s = self._told_s = time.monotonic()
        self._statuses: Counter[str] = Counter()
        self._reward_sum, self._num_rewards, self._num_faults = 0.0, 0, 0
        self.num_broken = 0
        self._live = Live(console=console, transient=True, refresh_per_second=4, get_renderable=lambda: Text(self.line()))

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_live:
            self._live.stop()

    @property
    def is_clean(self) -> bool:
        """Every line was scored."""
        return self.num_broken == 0 and self._statuses["error"] == 0

    def add(self, line_number: int, score: Score) -> None:
        """One verdict."""
        self._statuses[score.status.value] += 1
        if score.reward is None:
            self._fault(line_number, f"the verifier failed: {score.reason}")
        else:
            self._reward_sum += score.reward
            self._num_rewards += 1
        self._tell_now_and_then()

    def add_broken(self, line_number: int, message: str) -> None:
        """A line that could not be scored."""
        self.num_broken += 1
        self._fault(line_number, message)
        self._tell_now_and_then()

    def line(self) -> str:
        """`1,200 scored in 3.1 s (387 a second): ok 700, wrong 500; mean reward 0.583; 2 lines broken`."""
        result = self.to_json()
        verdicts = ", ".join(f"{name} {number(count)}" for name, count in result["statuses"].items())
        rate = "" if result["verdicts_per_s"] is None else f" ({result['verdicts_per_s']:.0f} a second)"
        parts = [
            f"{number(result['scored'])} scored in {result['elapsed_s']:.1f} s{rate}" + (f": {verdicts}" if verdicts else "")
        ]
        if result["mean_reward"] is not None:
            parts.append(f"mean reward {result['mean_reward']:.3f}")
        if self.num_broken:
            parts.append(f"{number(self.num_broken)} broken lines")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """The summary of `--json`."""
        elapsed_s, scored = time.monotonic() - self._start_s, self._statuses.total()
        return {
            "lines": scored + self.num_broken,
            "scored": scored,
            "broken": self.num_broken,
            "statuses": dict(sorted(self._statuses.items())),
            "mean_reward": self._reward_sum / self._num_rewards if self._num_rewards else None,
            "elapsed_s": round(elapsed_s, 3),
            "verdicts_per_s": round(scored / elapsed_s, 1) if scored and elapsed_s > 0 else None,
        }

    def tell(self, text: str) -> None:
        """A line on stderr."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _fault(self, line_number: int, message: str) -> None:
        self._num_faults += 1
        if self._num_faults <= MAX_FAULTS:
            self.tell(f"line {line_number}: {message.removeprefix('line: ')}")
        elif self._num_faults == MAX_FAULTS + 1:
            self.tell("further faults are in the output alone")

    def _tell_now_and_then(self) -> None:
        if not self._is_live and time.monotonic() - self._told_s > _REPORT_S:
            self._told_s = time.monotonic()
            self.tell(self.line())
