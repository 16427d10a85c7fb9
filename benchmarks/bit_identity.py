"""Do schedules leave the result alone? With `group_order: submission`, the final weights under each, on one rank and on two.

python benchmarks/bit_identity.py [--ranks 1,2] [key=value ...]
"""

import argparse

from shared import Marks, rolloutpipe, where

SETTINGS = ("group_order=submission", "rounds=2", "name=identity")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--schedules", default="serial,cgp,fgd,adaptive")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    marks = Marks()
    lines = []
    for ranks in arguments.ranks.split(","):
        settings = (*SETTINGS, f"training.ranks={ranks}", *arguments.overrides)
        data = rolloutpipe("compare", "configs/compare.yaml", "--schedules", arguments.schedules, *settings)
        lines.append((ranks, {row["schedule"]: row["final_weights_sha256"] for row in data["schedules"]}))
    print(f"\n{where()}")
    for ranks, digests in lines:
        for schedule, digest in digests.items():
            print(f"{ranks} ranks, {schedule:10} {digest}")
        is_same = len(set(digests.values())) == 1
        marks.check(f"final weights on {ranks} ranks", "bit-identical" if is_same else "differ", "bit-identical", is_same)
    marks.end()


if __name__ == "__main__":
    main()
