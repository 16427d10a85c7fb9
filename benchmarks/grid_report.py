"""Tables and marks of `schedule_grid.py`."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedule_grid import Result

MAX_SLOWER = 2.0  # % than the best fixed schedule, in any regime
MIN_GAIN = {"rollout": 6.0, "training": 2.0}  # % over cgp on average, by bottleneck
BOTTLENECKS = ("rollout", "neither", "training")
ORDERS = ("grouped", "interleaved", "shuffled")


def report(results: Sequence["Result"]) -> bool:
    """Print what the cells allow; whether all marks were met."""
    full = [result for result in results if {"cgp", "fgd", "adaptive"} <= set(result.cells) and len(result.fixed) > 2]
    is_met = True
    if full:
        print_regimes(full)
        print_breakdown(full)
        print_first_round(full)
        is_met = print_marks(full)
    else:
        print_cells(results)
    starts = [result for result in results if {"fgd", "fgd-last"} <= set(result.cells)]
    if starts:
        print_starts(starts)
    return is_met


def print_regimes(results: Iterable["Result"]) -> None:
    """One line a regime."""
    print(f"\n{'':58} {'seconds':^50} {'adaptive, %':^15} {'% above bound':^15}")
    columns = f"{'serial':>8} {'cgp':>8} {'fgd':>8} {'best fixed':>8} {'':9} {'adaptive':>8}"
    print(f"{'regime':51} {'waves':>5}  {columns}  {'vs best':>7} {'vs cgp':>7} {'adaptive':>8} {'best':>6}")
    for result in results:
        regime, cells, best = result.regime, result.cells, result.best
        serial = f"{cells['serial'].time_s:8.1f}" if "serial" in cells else f"{'-':>8}"
        times = f"{serial} {cells['cgp'].time_s:8.1f} {cells['fgd'].time_s:8.1f} {cells[best].time_s:8.1f}  {best:9}"
        versus = f"{result.over('adaptive', best):+7.1f} {result.over('adaptive', 'cgp'):+7.1f}"
        above = f"{result.above_bound('adaptive'):8.1f} {result.above_bound(best):6.1f}"
        print(
            f"{regime.number:3} {regime.label:47} {regime.waves:5.1f}  {times} {cells['adaptive'].time_s:8.1f}  {versus} {above}"
        )
    print("waves: requests of a round over all slots; at 1 or below all requests enter at once, and no order is left to choose")
    print("vs: seconds more (+) or less (-) than those of the other")


def print_cells(results: Iterable["Result"]) -> None:
    """What was simulated, where too little was for the table."""
    for result in results:
        cells = "  ".join(f"{name} {cell.time_s:.1f} (+{result.above_bound(name):.1f} %)" for name, cell in result.cells.items())
        print(f"{result.regime.number:3} {result.regime.label}: bound {result.bound_s:.1f} s  {cells}")


def print_breakdown(results: Sequence["Result"]) -> None:
    """Gains of adaptive by bottleneck, and by what else decides."""
    print("\nadaptive, mean % (largest); gain over cgp is negative where adaptive is slower")
    print("room: what a schedule at the bound would gain over cgp")
    columns = f"{'gain over cgp':>14} {'(room)':>7} {'over fgd':>9} {'above bound':>12} {'best':>6}"
    print(f"{'':34} {'regimes':>7} {'vs best fixed':>15} {columns}")
    for bottleneck in BOTTLENECKS:
        these = [result for result in results if result.regime.bottleneck == bottleneck]
        _print_line(f"bottleneck {bottleneck}", these)
        for order in ORDERS:
            _print_line(f"  {order}", [result for result in these if result.regime.order == order])
        _print_line("  more requests than slots", [result for result in these if result.regime.waves > 1])
        _print_line("  all enter at once", [result for result in these if result.regime.waves <= 1])
        _print_line("  one update a round", [result for result in these if not result.regime.update])
    _print_line("all", results)
    kinds = Counter("strict" if result.best.startswith("strict-") else result.best for result in results)
    print("best fixed: " + ", ".join(f"{name} in {count}" for name, count in kinds.most_common()))


def _print_line(name: str, results: Sequence["Result"]) -> None:
    if not results:
        return
    versus = [result.over("adaptive", result.best) for result in results]
    mean = _mean_of(results)
    room = f"({mean(lambda r: r.room('cgp')):.1f})"
    gains = f"{mean(lambda r: r.gain('adaptive', 'cgp')):14.1f} {room:>7} {mean(lambda r: r.gain('adaptive', 'fgd')):9.1f}"
    above = f"{mean(lambda r: r.above_bound('adaptive')):12.1f} {mean(lambda r: r.above_bound(r.best)):6.1f}"
    print(f"{name:34} {len(results):7} {statistics.fmean(versus):+7.1f} ({max(versus):+5.1f}) {gains} {above}")


def _mean_of(results: Sequence["Result"]) -> Callable[[Callable[["Result"], float]], float]:
    return lambda value: statistics.fmean(value(result) for result in results)


def print_first_round(results: Sequence["Result"]) -> None:
    """Before anything is learned."""
    gains = {other: [result.first_gain("adaptive", other) for result in results] for other in ("cgp", "fgd")}
    texts = [f"{statistics.fmean(each):.1f} % over {other} (worst {min(each):.1f})" for other, each in gains.items()]
    print(f"\nfirst round of a run: adaptive gains {', '.join(texts)}")


def print_marks(results: Sequence["Result"]) -> bool:
    """Against the marks."""
    print()
    worst = max(results, key=lambda result: result.over("adaptive", result.best))
    slower = worst.over("adaptive", worst.best)
    where = f"in regime {worst.regime.number} ({worst.regime.label}), there {worst.best}"
    text = f"{slower:+.2f} +- {worst.error('adaptive', worst.best):.2f} % {where}"
    is_met = _mark("worst regime, adaptive vs best fixed", text, f"at most +{MAX_SLOWER:g} %", slower <= MAX_SLOWER)
    for bottleneck, mark in MIN_GAIN.items():
        gains = [result.gain("adaptive", "cgp") for result in results if result.regime.bottleneck == bottleneck]
        if gains:
            gain = statistics.fmean(gains)
            name = f"mean gain over cgp, bottleneck {bottleneck}"
            is_met &= _mark(name, f"{gain:.2f} % ({len(gains)} regimes)", f"at least {mark:g} %", gain >= mark)
    return is_met


def _mark(name: str, value: str, mark: str, is_met: bool) -> bool:
    print(f"{'ok    ' if is_met else 'MISSED'}  {name}: {value} (mark: {mark})")
    return is_met


def print_starts(results: Sequence["Result"]) -> None:
    """Accumulation from the first group of an update, as shipped, against from the U-th."""
    print("\naccumulation from the first complete group of an update instead of the U-th (fgd): time saved, %")
    print(f"{'':24} {'regimes':>7} {'mean':>6} {'least':>6} {'most':>6}")
    for ratio in sorted({result.regime.ratio for result in results}):
        for is_whole in (False, True):
            these = [one for one in results if one.regime.ratio == ratio and (not one.regime.update) == is_whole]
            if gains := [result.gain("fgd", "fgd-last") for result in these]:
                name = f"work ratio {ratio:g}, {'U = R' if is_whole else 'U < R'}"
                print(f"{name:24} {len(gains):7} {statistics.fmean(gains):6.1f} {min(gains):6.1f} {max(gains):6.1f}")
