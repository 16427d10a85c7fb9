"""Does `simulate paper` come as near to the paper as its marks ask, on several seeds, and are its constants what the fit gives?

python benchmarks/paper_marks.py
"""

import math

from shared import Marks, rolloutpipe, where

from common.simulation.paper import FITTED, ORDER_SPREAD
from common.simulation.paper_fit import fit_engine, fit_error, fit_order_spread

SEEDS = (0, 1, 2)
MAX_SPREAD_DIFFERENCE = 2.0  # groups: what a few seconds of cgp's total come to


def main() -> None:
    """Run and print."""
    checked = Marks()
    print(where())
    for seed in SEEDS:
        data = rolloutpipe("simulate", "paper", f"seed={seed}", "--schedules", "serial,cgp,fgd")
        print(f"\nseed {seed}")
        for one in data["marks"]:
            checked.check(one["name"], one["value"], one["mark"], one["is_met"])
    fit, error = fit_engine(fit_error)
    is_same = fit.capacity == FITTED.capacity and all(
        math.isclose(getattr(fit, name), getattr(FITTED, name), rel_tol=1e-6) for name in ("group_s", "cap_ratio")
    )
    print()
    checked.check("refitted engine and lengths", f"{fit}, error {error:.2%}", f"as stored: {FITTED}", is_same)
    spread = fit_order_spread(FITTED)
    is_near = abs(spread - ORDER_SPREAD) <= MAX_SPREAD_DIFFERENCE
    checked.check("refitted order_spread", f"{spread:g}", f"within {MAX_SPREAD_DIFFERENCE:g} of {ORDER_SPREAD:g}", is_near)
    checked.end()


if __name__ == "__main__":
    main()
