"""The terminal's view of a run, fed by its timeline. On a terminal a live panel; elsewhere one plain line per round.

The listener only counts; drawing happens at most twice a second, whatever the number of events.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from common.figures import DASH, number, percent, seconds, small, sparkline
from common.metrics import RoundCollector, RoundMetrics
from common.progress import Progress, RoundProgress
from common.timeline import Event, Timeline

_REFRESHES_PER_S = 2
_TOLD = frozenset({"stall", "fault", "recovered", "recorded", "left_out"})
_TABLE_ROWS = 40  # of the final table; the page has all
_ROLLOUT, _TRAIN, _WAIT, _REWARD, _BAD = "dodger_blue2", "green3", "dark_goldenrod", "orange_red1", "red"


class LiveDisplay:
    """Use as a context manager around the run."""

    def __init__(self, timeline: Timeline, console: Console | None = None) -> None:
        self._timeline = timeline
        self._console = console or Console()
        self._lock = threading.Lock()  # events come from the run's thread, drawing from rich's
        self._progress = Progress()
        self._collector = RoundCollector(self._on_round)
        self._live = (
            Live(
                console=self._console,
                get_renderable=self.render,
                refresh_per_second=_REFRESHES_PER_S,
                transient=True,
                vertical_overflow="crop",
            )
            if self._console.is_terminal
            else None
        )
        timeline.listen(self._listen)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def _listen(self, event: Event) -> None:
        with self._lock:
            self._progress.listen(event)
        self._collector.listen(event)
        if self._live is None:
            self._say(event)

    def _say(self, event: Event) -> None:
        """Plain lines of what must not wait for the end of the round."""
        kind = event["kind"]
        if kind == "phase":
            self._line(f"[{event['t']:8.1f} s] {event['name']} ...")
        elif kind in _TOLD or (kind == "group_drop" and event.get("reason") != "filtered"):
            self._line(f"[{event['t']:8.1f} s] {self._progress.notes[-1]}")

    def _on_round(self, metrics: RoundMetrics) -> None:
        self._collector.rounds.clear()  # they are shown
        if self._live is None:
            self._line(round_line(metrics, self._progress))

    def _line(self, text: str) -> None:
        with suppress(OSError):  # a terminal that is gone ends no run
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def render(self) -> RenderableType:
        """The panel as it stands now."""
        with self._lock:
            progress, now_s = self._progress, self._timeline.now()
            started = progress.round
            body = _startup(progress, now_s) if started is None else _round(progress, started, now_s)
            return Panel(body, title=_title(progress), title_align="left", border_style="bright_black", padding=(0, 1))


def round_line(metrics: RoundMetrics, progress: Progress) -> str:
    """A round in one line of plain text."""
    of = f" ({metrics.round + 1} of {progress.num_rounds})" if progress.num_rounds else ""
    groups = f"{metrics.groups_trained} groups trained, {metrics.groups_filtered} filtered, {metrics.groups_dropped} dropped"
    return (
        f"round {metrics.round}{of}: reward {number(metrics.reward_mean, 3)}, {seconds(metrics.r2t_end_s)} to train end, "
        f"trainer waits {percent(metrics.waiting_ratio)}, {groups}, log-prob gap {small(metrics.logprob_gap_max)}, "
        f"step {DASH if metrics.optimizer_step is None else metrics.optimizer_step}"
    )


def _title(progress: Progress) -> Text:
    title = Text(" RolloutPipe", style="bold")
    for part in (progress.name, progress.schedule):
        if part:
            title.append(f" · {part}", style="not bold")
    if progress.round is not None:
        of = f" ({progress.round.number + 1} of {progress.num_rounds})" if progress.num_rounds else ""
        title.append(f" · round {progress.round.number}{of}", style="not bold")
    title.append(" ")
    return title


def _startup(progress: Progress, now_s: float) -> RenderableType:
    """One line per phase, with its seconds."""
    table = Table.grid(padding=(0, 1))
    for name, start, end in progress.phases:
        mark = Text("✓", style=_TRAIN) if end is not None else Text("●", style=_WAIT)
        table.add_row(mark, Text(name), Text(f"{(now_s if end is None else end) - start:.1f} s", style="bright_black"))
    if not progress.phases:
        table.add_row(Text("●", style=_WAIT), Text("starting"), Text(""))
    return table


def _round(progress: Progress, current: RoundProgress, now_s: float) -> RenderableType:
    parts: list[RenderableType] = [_bars(progress, current, now_s), _facts(progress, current), _now(progress, now_s)]
    parts += [Text(f"! {note}", style=_BAD, overflow="ellipsis", no_wrap=True) for note in progress.notes]
    return Group(*parts)


def _bars(progress: Progress, current: RoundProgress, now_s: float) -> Table:
    rollout_s = (now_s if current.rollout_done_s is None else current.rollout_done_s) - current.start_s
    out = current.tokens_out / rollout_s if rollout_s > 0 else None
    into = current.tokens_in / current.compute_s if current.compute_s else None
    total = current.num_groups
    members = progress.responses_per_group or 0
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, justify="right", min_width=13)
    rows = (
        ("generated", current.num_responses, total * members, "responses", _ROLLOUT, f"{number(out)} tok/s"),
        ("complete", current.num_complete, total, "groups", _ROLLOUT, _losses(current)),
        (
            "trained",
            current.num_trained,
            total - current.num_filtered - current.num_dropped,
            "groups",
            _TRAIN,
            f"{number(into)} tok/s",
        ),
    )
    for name, done, whole, unit, style, note in rows:
        bar = ProgressBar(total=max(1, whole), completed=done, complete_style=style, finished_style=style)
        table.add_row(name, bar, f"{done}/{whole} {unit}" if whole else f"{done} {unit}", Text(note, style="bright_black"))
    return table


def _losses(current: RoundProgress) -> str:
    named = (("filtered", current.num_filtered), ("dropped", current.num_dropped))
    return ", ".join(f"{count} {name}" for name, count in named if count)


def _facts(progress: Progress, current: RoundProgress) -> Text:
    """Reward, waiting ratio, gap and step on one line."""
    busy = current.wait_s + current.compute_s
    gap, limit = current.logprob_gap, progress.gap_limit
    is_over = gap is not None and limit is not None and gap > limit
    text = Text(overflow="ellipsis", no_wrap=True)
    text.append("reward ").append(number(current.reward, 2), style=f"bold {_REWARD}")
    if progress.rewards:
        text.append(f" {sparkline(progress.rewards[-16:])}", style=_REWARD)
    text.append("  waits ").append(percent(current.wait_s / busy if busy else None), style=f"bold {_WAIT}")
    text.append("  log-prob gap ").append(small(gap), style=f"bold {_BAD}" if is_over else "bold")
    if limit is not None:
        text.append(f"/{small(limit)}", style="bright_black")
    if progress.accuracy is not None:
        text.append("  eval ").append(percent(progress.accuracy), style="bold")
    text.append("  step ").append(str(progress.optimizer_step), style="bold")
    if current.num_retries:
        text.append(f"  {current.num_retries} retries", style=_WAIT)
    return text


def _now(progress: Progress, now_s: float) -> Text:
    words = progress.who_waits(now_s)
    waits = words.startswith("trainer waits")
    return Text.assemble(("● ", _WAIT if waits else _TRAIN), words)


def final_table(rounds: Sequence[RoundMetrics], run_dir: Path) -> Table:
    """The run's rounds, and where it lies; fits 80 columns. A star marks a round that did not finish."""
    words = "times in seconds; groups: trained of all; gap: largest log-prob gap of the first update"
    caption = Text(f"{words}\nrun directory: {run_dir}", style="default", overflow="fold")
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", padding=(0, 1, 0, 0), show_edge=False)
    for title, _ in _COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    if len(rounds) > _TABLE_ROWS:
        table.title = f"last {_TABLE_ROWS} of {len(rounds)} rounds"
    for metrics in rounds[-_TABLE_ROWS:]:
        table.add_row(*(show(metrics) for _, show in _COLUMNS))
    return table


_COLUMNS: tuple[tuple[str, Callable[[RoundMetrics], str]], ...] = (
    ("round", lambda m: f"{m.round}{'' if m.is_finished else '*'}"),
    ("reward", lambda m: number(m.reward_mean, 3)),
    ("train\nend", lambda m: number(m.r2t_end_s, 1)),
    ("rollout", lambda m: number(m.rollout_s, 1)),
    ("first\ndispatch", lambda m: number(m.first_dispatch_s, 1)),
    ("waits", lambda m: percent(m.waiting_ratio)),
    ("tok/s\nout", lambda m: number(m.rollout_tokens_per_s)),
    ("tok/s\nin", lambda m: number(m.train_tokens_per_s)),
    ("groups", lambda m: f"{m.groups_trained}/{m.groups_trained + m.groups_filtered + m.groups_dropped}"),
    ("gap", lambda m: small(m.logprob_gap_max)),
)
