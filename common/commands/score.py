"""`rolloutpipe score`: verdicts on responses that stand in a file, or that come in one by one. docs/rewards.md."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from common.commands.score_lines import GYM, MAX_LINE_BYTES, Line, read_line, write_fault, write_line
from common.commands.score_tally import Tally
from common.config_errors import validate, with_overrides
from common.config_rewards import RewardConfig
from common.config_section import Section
from common.errors import ConfigError, DataError, RolloutPipeError, RunError, explain
from common.protocols import Score
from common.rewards.verifier import StartableVerifier, make_verifier

WINDOW = 64  # lines that are read and not yet answered, for each worker
STDIN = "-"
_START_S = 60.0
_WARM_UP: dict[
    str, dict[str, Any]
] = {  # of each kind of verifier: imports what any line may need before the time of the first one runs
    "": {"workload": "math500", "gold": "1"},
    GYM: {"workload": GYM, "dataset": "chain_sum", "options": {}},
}

Entry = tuple[int, bytes] | Exception | None  # a numbered line, what ended the reading, or the end


@dataclass(frozen=True, slots=True)
class _Answer:
    """Of one line: its verdict, or what is wrong with it, and the line to write."""

    number: int
    outcome: Score | str
    text: bytes


class ScoreConfig(Section):
    """Settings of the command."""

    rewards: RewardConfig = RewardConfig()


def settings(overrides: list[str], workers: int | None, timeout_s: float | None) -> RewardConfig:
    """`rewards.*` as given; by default a worker for each core. Raises ConfigError."""
    data = with_overrides({}, overrides)
    given = data.get("rewards") or {}
    if isinstance(given, dict):
        options = {"workers": workers, "timeout_s": timeout_s}
        given = {"workers": len(os.sched_getaffinity(0)), **given, **{k: v for k, v in options.items() if v is not None}}
    return validate(ScoreConfig, {**data, "rewards": given}).rewards


def score(source: str, config: RewardConfig) -> tuple[dict[str, Any], bool]:
    """Verdicts on stdout; the summary, and whether every line was scored. Raises ConfigError, RunError."""
    if sys.stdout is None:  # closed by the shell: >&-
        raise ConfigError(explain("stdout", "must be open: the verdicts are written there", None, "redirect it to a file"))
    file = _open(source)
    console = Console(stderr=True)
    with Tally(console, is_live=console.is_terminal and not sys.stdout.isatty()) as tally:
        try:
            asyncio.run(_Stream(config, tally).run(file))
        except BrokenPipeError:  # whoever read the verdicts has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return tally.to_json(), False
    tally.tell(tally.line())
    return tally.to_json(), tally.is_clean


def _open(source: str) -> IO[bytes]:
    if source == STDIN:
        return open(0, "rb", closefd=False)
    try:
        return Path(source).open("rb")
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        remedy = f"check the path ({cause}), or give - for stdin"
        raise ConfigError(explain("FILE", "must be a readable file of JSON lines", source, remedy)) from error


class _Stream:
    """Lines in, verdicts out in the same order, with a window of them in between."""

    def __init__(self, config: RewardConfig, tally: Tally) -> None:
        self._config, self._tally = config, tally
        self._has_checkers = config.function is None and config.remote is None
        self._verifiers: dict[str, asyncio.Task[StartableVerifier]] = {}
        self._window = threading.Semaphore(WINDOW * config.workers)
        self._entries: asyncio.Queue[asyncio.Task[_Answer] | Exception | None] = asyncio.Queue()
        self._is_over = False
        self._output = sys.stdout.buffer

    async def run(self, file: IO[bytes]) -> None:
        """Until the file ends."""
        try:
            await self._verifier("")
            await self._pump(file)
        finally:
            self._cancel()
            for verifier in await asyncio.gather(*self._verifiers.values(), return_exceptions=True):
                if not isinstance(verifier, BaseException):
                    await verifier.close()

    async def _pump(self, file: IO[bytes]) -> None:
        loop = asyncio.get_running_loop()

        def take(entry: Entry) -> None:  # in the loop's thread
            if not self._is_over:
                self._entries.put_nowait(asyncio.create_task(self._answer(*entry)) if isinstance(entry, tuple) else entry)

        # A thread of our own: the loop waits for its executor's threads at the end, and this one may wait for a typed line.
        threading.Thread(target=_read, args=(file, self._window, lambda entry: _hand(loop, take, entry)), daemon=True).start()
        while (entry := await self._entries.get()) is not None:
            if isinstance(entry, Exception):
                raise RunError(f"FILE: reading failed ({entry})") from entry
            answer = await entry
            self._output.write(answer.text)
            self._output.flush()
            self._tally.add(answer.number, answer.outcome)
            self._window.release()

    def _cancel(self) -> None:
        self._is_over = True
        while not self._entries.empty():
            entry = self._entries.get_nowait()
            if isinstance(entry, asyncio.Task):
                entry.cancel()

    async def _answer(self, number: int, raw: bytes) -> _Answer:
        try:
            line = read_line(raw, self._config)
            score = await self._score(line)
            return _Answer(number, score, write_line(line.row, score))
        except DataError as error:
            fault = str(error)
        except RolloutPipeError:  # of the run
            raise
        except Exception as error:  # whatever one line makes our code raise, the others are scored
            cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            fault = explain("line", "must be one that can be checked", raw[:60].decode(errors="replace"), f"correct it ({cause})")
        return _Answer(number, fault, write_fault(number, fault))

    async def _score(self, line: Line) -> Score:
        kind = GYM if self._has_checkers and line.task["workload"] == GYM else ""
        return await (await self._verifier(kind)).score(line.task, line.response)

    async def _verifier(self, kind: str) -> StartableVerifier:
        """Started. reasoning-gym's scorers have one of their own, made when first needed: they take seconds to import."""
        if kind not in self._verifiers:
            self._verifiers[kind] = asyncio.create_task(self._start(kind))
        return await asyncio.shield(self._verifiers[kind])

    async def _start(self, kind: str) -> StartableVerifier:
        examples = [_WARM_UP[kind]] if self._has_checkers else []
        verifier = make_verifier(self._config, examples=examples, log=Path(os.devnull))
        try:
            await verifier.start(_START_S)
        except BaseException:
            await verifier.close()
            raise
        return verifier


def _hand(loop: asyncio.AbstractEventLoop, take: Callable[[Entry], None], entry: Entry) -> None:
    try:
        loop.call_soon_threadsafe(take, entry)
    except RuntimeError:  # the loop has ended before the file
        return


def _read(file: IO[bytes], window: threading.Semaphore, hand: Callable[[Entry], None]) -> None:
    """Hand over each line that is not blank, with its number; then None, or what ended the reading.

    Closes the file itself: for anyone else `close` would wait until the read that may be going on here ends.
    """
    try:
        with file:
            _read_lines(file, window, hand)
    except (OSError, ValueError) as error:
        hand(error)
    else:
        hand(None)


def _read_lines(file: IO[bytes], window: threading.Semaphore, hand: Callable[[Entry], None]) -> None:
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
            _skip_line(file)
        if raw.strip(b"\xef\xbb\xbf \t\r\n"):
            window.acquire()
            hand((number, raw))


def _skip_line(file: IO[bytes]) -> None:
    while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
        pass
