"""Heat map of `schedule_grid.py`: regimes by schedules, the colour is the time over that of the best fixed schedule."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from schedule_grid import Result

MAX_SHOWN = 100.0  # %; beyond it all is the same colour
LEAST_SHOWN = -20.0


def draw(results: Sequence["Result"], path: Path) -> None:
    """Write the figure; rows by work ratio, then in the order of the grid."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "schedule_grid", "font.size": 7}
    from matplotlib import pyplot

    rows = sorted(results, key=lambda result: (result.regime.ratio, result.regime.number))
    columns = _columns(rows)
    over = np.array([[_over(result, column) for column in columns] for result in rows])
    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.16 * len(rows)), layout="constrained")
    norm = matplotlib.colors.TwoSlopeNorm(0.0, LEAST_SHOWN, MAX_SHOWN)
    colours = matplotlib.colormaps["RdBu_r"].with_extremes(bad="0.9")
    image = axes.imshow(np.ma.masked_invalid(over), aspect="auto", cmap=colours, norm=norm, interpolation="nearest")
    for (row, column), value in np.ndenumerate(over):
        if np.isfinite(value):
            ink = "white" if abs(norm(value) - 0.5) > 0.35 else "black"
            axes.text(column, row, f"{value:+.0f}", ha="center", va="center", fontsize=5, color=ink)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="left")
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set_yticks(range(len(rows)), [f"{result.regime.label}  {result.regime.number}" for result in rows])
    for row in range(1, len(rows)):
        if rows[row].regime.ratio != rows[row - 1].regime.ratio:
            axes.axhline(row - 0.5, color="black", linewidth=1)
    bar = figure.colorbar(image, shrink=min(1.0, 12 / len(rows)), extend="max")
    bar.set_label("time over the best\nfixed schedule, %")
    bar.set_ticks([LEAST_SHOWN, 0, 25, 50, MAX_SHOWN])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _columns(results: Sequence["Result"]) -> list[str]:
    names = {name for result in results for name in result.cells} - {"fgd-last"}
    strict = sorted((name for name in names if _is_power(name)), key=lambda name: int(name.removeprefix("strict-")))
    ends = [name for name in ("adaptive",) if name in names]
    return [name for name in ("serial", "cgp", "fgd") if name in names] + strict + ends + ["bound"]


def _is_power(name: str) -> bool:
    """Widths of only some regimes, as the one that just fills the engines, have no column."""
    if not name.startswith("strict-"):
        return False
    width = int(name.removeprefix("strict-"))
    return width & (width - 1) == 0


def _over(result: "Result", column: str) -> float:
    best_s = result.cells[result.best].time_s
    if column == "bound":
        return 100 * (result.bound_s / best_s - 1)
    return 100 * (result.cells[column].time_s / best_s - 1) if column in result.cells else float("nan")
