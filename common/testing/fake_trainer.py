"""A trainer of one number: what it is after an update tells which groups it was given, and in which order."""

import asyncio
import hashlib
import struct
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from common.errors import TrainerDiedError
from common.records import Group, UpdateResult
from common.spool import SpoolWriter
from common.testing.fakes import fake_logprob


class FakeTrainer:
    """Trains the one number: each update adds a hash of the groups, so another order or group is another weight.

    `seconds(group)` is the loop's time of one accumulate, `finish_s` that of a step, `write_s` that from a save until it
    is durable.
    """

    def __init__(
        self, *, seconds: Callable[[Group], float] = lambda group: 1.0, finish_s: float = 0.5, write_s: float = 0.0
    ) -> None:
        self._seconds, self._finish_s, self._write_s = seconds, finish_s, write_s
        self._open_save: tuple[Path, str] | None = None
        self.weight = 1.0
        self.step = 0
        self._open: list[Group] | None = None
        self.trained: list[Hashable] = []  # group ids, in order
        self.versions: list[int] = []  # of each trained response
        self.num_aborted = 0
        self.fail_at: Hashable | None = None  # raises when this group is accumulated
        self.is_closed = False
        self.num_restarts = 0
        self._death = asyncio.Event()

    @property
    def is_updating(self) -> bool:
        """An update is open: neither finished nor aborted."""
        return self._open is not None

    async def begin_round(self) -> None:
        pass

    async def begin_update(self) -> None:
        self._check_alive()
        assert self._open is None, "begin_update within an update"
        self._open = []

    async def accumulate(self, groups: Sequence[Group]) -> None:
        assert self._open is not None, "accumulate outside an update"
        for group in groups:
            await asyncio.sleep(self._seconds(group))
            self._check_alive()
            if group.group_id == self.fail_at:
                raise RuntimeError(f"planted failure at {group.group_id}")
            self._open.append(group)

    async def finish_update(self) -> UpdateResult:
        assert self._open is not None, "finish_update outside an update"
        await asyncio.sleep(self._finish_s)
        self._check_alive()
        groups, self._open = self._open, None
        gap = self._gap(groups)
        digest = hashlib.sha256(repr([self._content(group) for group in groups]).encode()).digest()
        self.weight += (1 + int.from_bytes(digest[:2], "big")) / 2**16
        self.step += 1
        self.trained += [group.group_id for group in groups]
        self.versions += [s.response.version_end for group in groups for s in group.samples]
        return UpdateResult(
            update_index=0,
            optimizer_step=self.step,
            loss=0.0,
            grad_norm=1.0,
            num_groups=len(groups),
            num_tokens=sum(group.num_tokens for group in groups),
            metrics={"logprob_gap_max": gap, "logprob_gap_mean": gap, "lr": 0.0, "denominator": float(len(groups))},
        )

    async def abort_update(self) -> None:
        self.num_aborted += self._open is not None
        self._open = None

    async def logprobs(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float) -> list[list[float]]:
        return [[fake_logprob(self._served_weight(), token) for token in response] for _, response in sequences]

    async def export_weights(self, spool: Path, version: int) -> None:
        self._check_alive()
        with SpoolWriter(spool, version) as writer:
            writer.add("w", "float32", (1,), struct.pack("<f", self.weight))

    async def save(self, directory: Path) -> None:
        await self.saved()
        self._check_alive()
        assert not directory.exists(), "save into a directory that exists"
        self._open_save = (directory, f"{self.weight!r} {self.step}")

    async def saved(self) -> None:
        if (save := self._open_save) is None:
            return
        if self._write_s:
            await asyncio.sleep(self._write_s)
        self._open_save = None
        directory, state = save
        directory.mkdir(parents=True)
        (directory / "fake.txt").write_text(state)

    async def restore(self, directory: Path) -> None:
        weight, step = (directory / "fake.txt").read_text().split()
        self.weight, self.step = float(weight), int(step)

    async def watch(self) -> None:
        await self._death.wait()
        raise TrainerDiedError("the fake trainer died")

    async def restart(self) -> None:
        self.weight, self.step, self._open, self._open_save = 1.0, 0, None, None
        self._death.clear()
        self.num_restarts += 1

    def die(self) -> None:
        """Every later call raises TrainerDiedError, until `restart`."""
        self._death.set()

    def _check_alive(self) -> None:
        if self._death.is_set():
            raise TrainerDiedError("the fake trainer died")

    async def close(self) -> None:
        self.is_closed = True

    def _served_weight(self) -> float:
        return float(struct.unpack("<f", struct.pack("<f", self.weight))[0])

    def _gap(self, groups: Sequence[Group]) -> float:
        weight = self._served_weight()
        pairs = ((s.response.token_ids, s.response.logprobs) for group in groups for s in group.samples)
        gaps = [abs(fake_logprob(weight, t) - lp) for tokens, lps in pairs for t, lp in zip(tokens, lps, strict=True)]
        return max(gaps, default=0.0)

    @staticmethod
    def _content(group: Group) -> tuple[object, ...]:
        return (group.group_id, [(s.response.token_ids, s.reward, s.advantage) for s in group.samples])
