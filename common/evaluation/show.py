"""What `rolloutpipe eval` shows: progress while it runs, tables at its end."""

from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from common.evaluation.evaluator import Evaluation
from common.evaluation.figures import Estimate, Figures
from common.figures import DASH, number, percent
from common.timeline import Event, Timeline


class EvalDisplay:
    """A bar of the samples at hand; where the console is no terminal, a line for each phase. Faults in either case."""

    def __init__(self, timeline: Timeline, console: Console, num_samples: int) -> None:
        self._console, self._num_samples = console, num_samples
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=num_samples)
        self._unlisten = timeline.listen(self._listen)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._unlisten()
        if self._console.is_terminal:
            self._progress.stop()

    def _listen(self, event: Event) -> None:
        if event["kind"] == "phase":
            self._progress.update(self._task, description=event["name"])
            if not self._console.is_terminal:
                self._console.print(f"{event['name']} ...", markup=False, highlight=False)
        elif event["kind"] in ("fault", "recovered"):
            self._console.print(f"{event['kind']}: {event['part']}: {event['detail']}", markup=False, highlight=False)
        elif event["kind"] == "eval_response":
            self._progress.advance(self._task)


def figures_table(evaluation: Evaluation) -> Table:
    """All figures, one a line."""
    figures = evaluation.figures
    table = Table(box=box.SIMPLE_HEAD, show_header=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    rows: list[tuple[str, str, str]] = [("accuracy", _value(figures.accuracy), _interval(figures.accuracy))]
    rows += [(f"pass@{k}", _value(found), _interval(found)) for k, found in figures.pass_at.items() if k > 1]
    rows += [
        ("reward", number(figures.reward_mean, 3), "mean over scored samples"),
        ("length", number(figures.length_mean, 1), "tokens, mean over responses"),
        ("cut off", percent(figures.cut_off_share), "of responses ran into the token limit"),
        ("no answer", percent(figures.no_answer_share), "of scored samples"),
        ("samples", str(figures.samples), f"of {figures.problems} problems"),
        ("time-outs", str(figures.timeouts), "of the verifier; counted as wrong"),
        ("errors", str(figures.errors), f"without a verdict, left out; {figures.lost} of them without a response"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def category_table(evaluation: Evaluation) -> Table:
    """One category a line."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("category")
    for title in ("problems", "accuracy", "95 % interval", *_pass_titles(evaluation.figures), "length", "cut off", "no answer"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, figures in evaluation.categories.items():
        table.add_row(
            Text(name or DASH),  # whatever it holds, it is no markup
            str(figures.problems),
            _value(figures.accuracy),
            _interval(figures.accuracy).removeprefix("95 % interval "),
            *(_value(found) for k, found in figures.pass_at.items() if k > 1),
            number(figures.length_mean, 1),
            percent(figures.cut_off_share),
            percent(figures.no_answer_share),
        )
    return table


def _pass_titles(figures: Figures) -> list[str]:
    return [f"pass@{k}" for k in figures.pass_at if k > 1]


def _value(found: Estimate | None) -> str:
    return DASH if found is None else percent(found.value)


def _interval(found: Estimate | None) -> str:
    return DASH if found is None else f"95 % interval {percent(found.low)} to {percent(found.high)}"
