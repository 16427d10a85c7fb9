"""A trainer's ranks as plain objects in this process (`common.trainer.RankSet`)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any


class LocalRanks:
    """Calls go to `ranks` one after the other; `calls` are the methods called."""

    def __init__(self, *ranks: Any) -> None:
        self.ranks = ranks
        self.calls: list[str] = []

    async def call(self, method: str, *args: Any) -> list[Any]:
        self.calls.append(method)
        return [getattr(rank, method)(*args) for rank in self.ranks]

    async def scatter(self, method: str, shares: Sequence[Any], *args: Any) -> list[Any]:
        self.calls.append(method)
        cuts = [number * len(shares) // len(self.ranks) for number in range(len(self.ranks) + 1)]
        parts = [
            getattr(rank, method)(list(shares[start:end]), *args)
            for rank, (start, end) in zip(self.ranks, pairwise(cuts), strict=True)
        ]
        return [answer for part in parts if part is not None for answer in part]

    async def call_in_background(self, method: str, *args: Any) -> list[Any]:
        return await self.call(method, *args)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
