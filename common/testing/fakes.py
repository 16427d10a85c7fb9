"""Fakes with the behaviour that matters: weights that change answers, a prefix cache that can go stale, faults on demand.

The shared "model" is one number w, the weight. A token's log-prob is a function of w and the token (`fake_logprob`), so an
engine that serves other weights than the trainer's is found by the same probe that finds a real one.
"""

import asyncio
import hashlib
import random
import struct
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from safetensors import safe_open

from common.errors import EngineDiedError, EngineError, PublishError, TrainerDiedError
from common.protocols import Health, Problem, Score
from common.records import FinishReason, Group, Request, Response, Sampling, UpdateResult, Verdict
from common.spool import SpoolWriter, TensorLayout, spool_files

FAKE_LAYOUT = {"w": TensorLayout((1,), "float32")}
VOCAB_SIZE = 64


class Fault(StrEnum):
    """What a FakeEngine does wrong with one request."""

    HANG = "hang"  # never returns
    ERROR = "error"  # raises EngineError
    STALE = "stale"  # answers from the version before
    MIXED = "mixed"  # the version changes within the response
    NAN = "nan"  # one log-prob is NaN


def fake_logprob(weight: float, token: int) -> float:
    """Log-prob of a token under the one-number model."""
    return -0.5 - ((token * 0.37 + weight) % 1.0)


def make_problems(num_problems: int, prompt_length: int = 4) -> list[Problem]:
    """Problems whose prompts differ."""
    return [
        Problem(
            problem_id=f"p{i}",
            prompt=f"prompt {i}",
            prompt_ids=tuple(range(i, i + prompt_length)),
            task={"workload": "fake", "gold": i},
        )
        for i in range(num_problems)
    ]


class FakeEngine:
    """Samples for `seconds(request)` of the loop's time.

    `faults` maps request ids to faults, one for each try, in order. `keeps_cache` is the planted bug of a prefix cache that
    outlives a publish: prompts seen before get log-probs of the old weights.
    """

    def __init__(
        self,
        capacity: int = 16,
        *,
        seconds: Callable[[Request], float] = lambda request: 1.0,
        length: Callable[[Request], int] = lambda request: 1 + request.seed % 7,
        faults: dict[Hashable, list[Fault]] | None = None,
        keeps_cache: bool = False,
        name: str = "engine 0",
    ) -> None:
        self._capacity, self._seconds, self._length = capacity, seconds, length
        self._faults = {key: list(value) for key, value in (faults or {}).items()}
        self._keeps_cache, self._name = keeps_cache, name
        self._weight, self._version = random.SystemRandom().random() * 100, -1  # no version is live before the first publish
        self._cache: dict[tuple[int, ...], float] = {}
        self._running: dict[Hashable, asyncio.Event] = {}
        self.started: list[Hashable] = []  # every request, in order
        self.max_running = 0
        self.is_alive = True
        self.is_closed = False
        self._death = asyncio.Event()

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def is_recovering(self) -> bool:
        return False

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def place(self, request: Request) -> int:
        return 0

    async def generate(self, request: Request, sampling: Sampling) -> Response:
        if not self.is_alive:
            raise EngineDiedError(f"{self._name} is dead")
        fault = self._next_fault(request.request_id)
        if fault is Fault.ERROR:
            raise EngineError(f"{self._name} lost {request.request_id}")
        version, weight = self._version, self._cache.setdefault(request.prompt_ids, self._weight)
        self.started.append(request.request_id)
        aborted = self._running[request.request_id] = asyncio.Event()
        self.max_running = max(self.max_running, len(self._running))
        try:
            async with asyncio.timeout(None if fault is Fault.HANG else self._seconds(request)):
                await aborted.wait()
            is_aborted = True
        except TimeoutError:
            is_aborted = False
        finally:
            del self._running[request.request_id]
        if not self.is_alive:
            raise EngineDiedError(f"{self._name} died")
        return self._respond(request, sampling, version, weight, fault, is_aborted)

    async def abort(self, request_ids: Iterable[Hashable]) -> None:
        for request_id in request_ids:
            if request_id in self._running:
                self._running[request_id].set()

    async def publish(self, version: int, spool: Path) -> None:
        if version <= self._version:
            raise PublishError(f"{self._name} serves version {self._version}; version {version} is not newer")
        with safe_open(str(spool_files(spool)[0]), framework="np") as tensors:
            self._weight = float(tensors.get_tensor("w")[0])
        self._version = version
        if not self._keeps_cache:
            self._cache.clear()

    async def health(self) -> list[Health]:
        return [Health(name=self._name, is_alive=self.is_alive, weight_version=self._version, num_running=len(self._running))]

    async def watch(self) -> None:
        await self._death.wait()
        raise EngineDiedError(f"{self._name} died")

    async def beat(self) -> None:
        if not self.is_alive:
            raise EngineDiedError(f"{self._name} is dead")

    async def close(self) -> None:
        self.is_closed = True

    def die(self) -> None:
        """Every running and later call raises EngineDiedError."""
        self.is_alive = False
        self._death.set()
        for event in self._running.values():
            event.set()

    def _next_fault(self, request_id: Hashable) -> Fault | None:
        faults = self._faults.get(request_id)
        return faults.pop(0) if faults else None

    def _respond(
        self, request: Request, sampling: Sampling, version: int, weight: float, fault: Fault | None, is_aborted: bool
    ) -> Response:
        rng = random.Random(request.seed)
        length = min(self._length(request), sampling.max_tokens)
        tokens = tuple(rng.randrange(VOCAB_SIZE) for _ in range(length))
        logprobs = [fake_logprob(weight, token) for token in tokens]
        if fault is Fault.NAN:
            logprobs[0] = float("nan")
        finish = FinishReason.LENGTH if length == sampling.max_tokens else FinishReason.STOP
        return Response(
            request_id=request.request_id,
            token_ids=tokens,
            logprobs=tuple(logprobs),
            finish_reason=FinishReason.ABORT if is_aborted else finish,
            version_start=version - (fault in (Fault.STALE, Fault.MIXED)),
            version_end=version - (fault is Fault.STALE),
        )


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


class FakeVerifier:
    """Rewards by the response's text, after `seconds` of the loop's time. `verdicts` fixes some by (gold, call number)."""

    def __init__(self, *, seconds: float = 0.1, reward: Callable[[dict[str, Any], str], float | None] | None = None) -> None:
        self._seconds = seconds
        self._reward = reward or (lambda task, text: float(hash_of(text) % 2))
        self.calls: Counter[int] = Counter()
        self.is_closed = False

    async def score(self, task: dict[str, Any], response: str) -> Score:
        self.calls[task["gold"]] += 1
        await asyncio.sleep(self._seconds)
        reward = self._reward(task, response)
        if reward is None:
            return Score(reward=None, status=Verdict.ERROR, reason="planted failure")
        return Score(reward=reward, status=Verdict.OK if reward >= 1 else Verdict.WRONG)

    async def close(self) -> None:
        self.is_closed = True


def hash_of(text: str) -> int:
    """The same on every run, unlike `hash`."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
