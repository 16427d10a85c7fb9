"""How figures are written for people, the same in the terminal and on pages. None is a dash."""

import math

DASH = "–"
_BLOCKS = "▁▂▃▄▅▆▇█"


def seconds(value: float | None) -> str:
    """`12.3 s`, or `123 s`."""
    if value is None:
        return DASH
    return f"{value:,.1f} s" if value < 100 else f"{value:,.0f} s"


def percent(value: float | None) -> str:
    """`12.3 %`."""
    return DASH if value is None else f"{100 * value:.1f} %"


def number(value: float | None, digits: int = 0) -> str:
    """`1,234`, or `0.123` with three digits."""
    return DASH if value is None else f"{value:,.{digits}f}"


def small(value: float | None) -> str:
    """Two significant digits, for gaps and norms: `2.4e-6`."""
    return DASH if value is None else f"{value:.2g}".replace("e-0", "e-").replace("e+0", "e+")


def sparkline(values: list[float]) -> str:
    """One block per value, from the lowest to the highest of them."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in values)
