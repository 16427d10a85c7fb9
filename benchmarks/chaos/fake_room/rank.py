"""One rank: it meets the others in each call, so that a dead one leaves the rest waiting for ever, as a collective may."""

import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.arithmetic import LAYOUT, Row, Weights, group_digest, largest_gap, logprob, row_digest
from chaos.moments import append, enter, home, reach
from common.spool import SpoolWriter

Shares = list[list[list[Any]]]


class TrainerRank:
    """State: the weights, and the digests of the open update."""

    def __init__(self, config: Any, model_dir: Path, rank: int, num_ranks: int) -> None:
        self._rank, self._num_ranks = rank, num_ranks
        self._weights = Weights()
        self._open: list[bytes] = []
        self._gap = 0.0
        self._saving: tuple[Path, str] | None = None
        enter(f"rank-{rank}")

    def listen(self, *where: Any) -> int:
        """Rank 0's port on the loopback address."""
        self._server = socket.create_server(("127.0.0.1", 0))
        port: int = self._server.getsockname()[1]
        return port

    def join(self, port: Any, *more: Any) -> None:
        """Meet the others."""
        number = int(str(port).rpartition(":")[2])
        if self._rank == 0:
            self._files = [self._server.accept()[0].makefile("rwb") for _ in range(self._num_ranks - 1)]
        else:
            self._files = [socket.create_connection(("127.0.0.1", number)).makefile("rwb")]
        self._meet("join")

    def keep_round_weights(self) -> None:
        """Not used."""

    def accumulate(self, shares: list[Shares]) -> None:
        """One group: each rank has some of its rows."""
        rows: list[Row] = [
            (tuple(row.prompt_ids), tuple(row.response_ids), tuple(row.sampler), row.advantage)
            for micro_batches in shares
            for rows in micro_batches
            for row in rows
        ]
        time.sleep(0.004 * len(rows))
        reach("accumulate")
        self._gap = max(self._gap, largest_gap(rows, self._weights.served))
        met = self._meet([row_digest(row).hex() for row in rows])
        digest = group_digest(bytes.fromhex(row) for share in met for row in share)
        self._open.append(digest)
        if self._rank == 0:
            append(home() / "trained.jsonl", {"group": digest.hex(), "wall_s": time.time()})

    def finish_update(self, denominator: float, lr: float) -> tuple[float, dict[str, float]]:
        """Every update steps, whatever it holds: nothing that was trained may go unseen."""
        reach("finish")
        time.sleep(0.01)
        self._meet("finish")
        self._weights, self._open = self._weights.after(self._open), []
        gap, self._gap = self._gap, 0.0
        return 1.0, {"gap_max": gap, "tokens": 1.0}

    def abort_update(self) -> None:
        """Forget the open update."""
        self._open, self._gap = [], 0.0

    def logprobs(self, shares: list[Shares], temperature: float, model: str = "policy") -> list[Any]:
        """Of the served number, as the engines compute it."""
        self._meet("logprobs")
        return [
            [[[logprob(self._weights.served, token) for token in row.response_ids] for row in rows] for rows in share]
            for share in shares
        ]

    def export_weights(self, spool: Path, version: int) -> None:
        """Rank 0 writes."""
        reach("export")
        time.sleep(0.01)
        if self._rank == 0:
            with SpoolWriter(spool, version) as writer:
                for name, data in self._weights.tensors().items():
                    writer.add(name, LAYOUT[name].dtype, LAYOUT[name].shape, data)
        self._meet("export")

    def save(self, directory: Path) -> None:
        """Capture; `saved` writes."""
        assert not self._open, "a checkpoint within an update"
        self._meet("save")
        text = json.dumps({"served": self._weights.served, "chain": self._weights.chain.hex()})
        self._saving = (directory / f"rank-{self._rank}.json", text)

    def saved(self) -> None:
        """Slowly, so that it can be cut off half way."""
        if self._saving is not None:
            (path, text), self._saving = self._saving, None
            with path.open("w") as file:
                file.write(text[:20])
                file.flush()
                time.sleep(0.05)
                reach("save")
                file.write(text[20:])
                file.flush()
                os.fsync(file.fileno())

    def restore(self, directory: Path, saved_ranks: int, num_steps: int) -> None:
        """Its own file."""
        state = json.loads((directory / f"rank-{self._rank}.json").read_text())
        self._weights = Weights(state["served"], bytes.fromhex(state["chain"]))
        self._open, self._saving = [], None
        reach("restore")
        self._meet("restore")

    def close(self) -> None:
        """Nothing to leave."""

    def _meet(self, mine: Any) -> list[Any]:
        """What each rank has brought, in order; for ever where one is gone."""
        if self._rank:
            self._send(self._files[0], mine)
            met: list[Any] = self._receive(self._files[0])
            return met
        met = [mine, *map(self._receive, self._files)]
        for file in self._files:
            self._send(file, met)
        return met

    def _send(self, file: Any, value: Any) -> None:
        try:
            file.write(json.dumps(value).encode() + b"\n")
            file.flush()
        except OSError:
            self._wait_for_ever()

    def _receive(self, file: Any) -> Any:
        try:
            line = file.readline()
        except OSError:
            line = b""
        return json.loads(line) if line.endswith(b"\n") else self._wait_for_ever()

    def _wait_for_ever(self) -> Sequence[Any]:
        while True:
            time.sleep(3600)
