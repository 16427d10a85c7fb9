"""`rolloutpipe score`: verdicts on responses that stand in a file, or that come in one by one. docs/rewards.md."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from common.commands.score_lines import GYM, MAX_LINE_BYTES, Line, read_line, write_fault, write_line
from common.commands.score_tally import Tally
from common.config_errors import validate, with_overrides
from common.config_rewards import RewardConfig
from common.config_section import Section
from common.errors import ConfigError, DataError, RunError, explain
from common.protocols import Score
from common.rewards.verifier import StartableVerifier, make_verifier

WINDOW = 64  # lines that are read and not yet answered, for each worker
STDIN = "-"
_START_S = 60.0
_WARM_UP = {"workload": "math500", "gold": "1"}  # imports what any checker needs before the first line's time runs

Entry = tuple[int, bytes] | Exception | None  # a numbered line, what ended the reading, or the end


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
    file = _open(source)
    console = Console(stderr=True)
    with file, Tally(console, is_live=console.is_terminal and not sys.stdout.isatty()) as tally:
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
        self._verifiers: dict[str, asyncio.Task[StartableVerifier]] = {}
        self._window = threading.Semaphore(WINDOW * config.workers)
        self._output = sys.stdout.buffer

    async def run(self, file: IO[bytes]) -> None:
        """Until the file ends."""
        try:
            await self._verifier("")
            await self._pump(file)
        finally:
            for verifier in await asyncio.gather(*self._verifiers.values(), return_exceptions=True):
                if not isinstance(verifier, BaseException):
                    await verifier.close()

    async def _pump(self, file: IO[bytes]) -> None:
        entries: asyncio.Queue[asyncio.Task[bytes] | Exception | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def take(entry: Entry) -> None:  # in the loop's thread
            entries.put_nowait(asyncio.create_task(self._answer(*entry)) if isinstance(entry, tuple) else entry)

        # A thread of our own: the loop waits for its executor's threads at the end, and this one may wait for a typed line.
        threading.Thread(target=_read, args=(file, self._window, lambda entry: _hand(loop, take, entry)), daemon=True).start()
        while (entry := await entries.get()) is not None:
            if isinstance(entry, Exception):
                raise RunError(f"FILE: reading failed ({entry})") from entry
            self._output.write(await entry)
            self._output.flush()
            self._window.release()

    async def _answer(self, number: int, raw: bytes) -> bytes:
        try:
            line = read_line(raw, self._config)
            score = await self._score(line)
            text = write_line(line.row, score)
        except DataError as error:
            self._tally.add_broken(number, str(error))
            return write_fault(number, str(error))
        self._tally.add(number, score)
        return text

    async def _score(self, line: Line) -> Score:
        has_checker = self._config.function is None and self._config.remote is None
        kind = GYM if has_checker and line.task["workload"] == GYM else ""
        verifier = await self._verifier(kind, line.task if kind else None)
        return await verifier.score(line.task, line.response)

    async def _verifier(self, kind: str, example: dict[str, Any] | None = None) -> StartableVerifier:
        """Started. reasoning-gym's scorers have one of their own, made when first needed: they take seconds to import."""
        if kind not in self._verifiers:
            self._verifiers[kind] = asyncio.create_task(self._start(example))
        return await asyncio.shield(self._verifiers[kind])

    async def _start(self, example: dict[str, Any] | None) -> StartableVerifier:
        has_checker = self._config.function is None and self._config.remote is None
        examples = [example or _WARM_UP] if has_checker else []
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
    """Hand over each line that is not blank, with its number; then None, or what ended the reading."""
    number = 0
    try:
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                _skip_line(file)
            if raw.strip(b"\xef\xbb\xbf \t\r\n"):
                window.acquire()
                hand((number, raw))
    except (OSError, ValueError) as error:
        hand(error)
    else:
        hand(None)


def _skip_line(file: IO[bytes]) -> None:
    while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
        pass
