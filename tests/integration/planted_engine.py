"""An engine actor without vLLM, for what has to do with processes alone. `engine_options` say what it does wrong."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import EngineDiedError, EngineError
from rolloutpipe_torch.rollout.engine import EngineSettings


class PlantedEngine:
    """The calls of `VllmEngine`; options `slow`: seconds that the start of an engine takes, by name; `broken`: names."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings, self._version, self._is_closed = settings, -1, False

    async def start(self) -> int:
        name = self._settings.name
        with Path(self._settings.log_file).open("a", encoding="utf-8") as log:
            log.write(f"{os.getpid()}\n")
        await asyncio.sleep(self._settings.options.get("slow", {}).get(name, 0.0))
        if name in self._settings.options.get("broken", ()):
            raise EngineError("planted failure of the start")
        return os.getpid()

    async def generate(self, request_id: str, prompt_ids: Sequence[int], seed: int, priority: int, sampling: Any) -> Any:
        await asyncio.sleep(0.2)
        return [1, 2], [-0.5, -0.5], "stop", self._version, self._version

    async def abort(self, request_ids: list[str]) -> None:
        pass

    async def publish(self, version: int, spool: str) -> None:
        self._version = version

    async def health(self) -> tuple[bool, int, int, str]:
        return True, self._version, 0, ""

    async def beat(self) -> None:
        """It answers as long as it runs."""

    async def alive(self) -> None:
        while not self._is_closed:
            await asyncio.sleep(0.05)
        raise EngineDiedError("closed")

    async def close(self) -> None:
        self._is_closed = True
