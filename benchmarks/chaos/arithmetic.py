"""The model of the fakes: one number that is served, and a chain of hashes over everything that was ever trained.

Any group trained twice, left out, trained in another update or sampled from other weights gives another chain, so the final
weights alone tell. The judge computes them again from the journals, with nothing of the product in between.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.spool import TensorLayout

VOCABULARY = 64
LAYOUT = {"served": TensorLayout((1,), "float32"), "chain": TensorLayout((32,), "float32")}

Row = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], float]  # prompt, response, log-probs, advantage


@dataclass(frozen=True, slots=True)
class Weights:
    """After some number of updates. `served` is a multiple of 2**-16 below 64, so float32 holds it exactly."""

    served: float = 1.0
    chain: bytes = bytes(32)

    def after(self, groups: Iterable[bytes]) -> "Weights":
        """One update of the groups with these digests, in this order."""
        chain = hashlib.sha256(self.chain + b"".join(groups)).digest()
        return Weights((self.served + (1 + int.from_bytes(chain[:2], "big")) / 2**16) % 64, chain)

    def tensors(self) -> dict[str, bytes]:
        """Little-endian float32, by name."""
        return {"served": struct.pack("<f", self.served), "chain": struct.pack("<32f", *self.chain)}


def group_digest(rows: Iterable[bytes]) -> bytes:
    """Of a group, whatever rank had which row."""
    return hashlib.sha256(b"".join(sorted(rows))).digest()


def row_digest(row: Row) -> bytes:
    """Of one trained sequence."""
    return hashlib.sha256(repr(row).encode()).digest()


def answer(seed: int, weight: float, longest: int) -> tuple[int, ...]:
    """The response that an engine with this weight gives to this seed: another one with other weights."""
    drawn = hashlib.sha256(f"{seed} {weight!r}".encode()).digest()
    length = 1 + drawn[0] % longest
    return tuple(byte % VOCABULARY for byte in (drawn * (1 + length // 32))[:length])


def logprob(weight: float, token: int) -> float:
    """Of a token; it says which weights it came from."""
    return -0.5 - ((token * 0.37 + weight) % 1.0)


def largest_gap(rows: Sequence[Row], weight: float) -> float:
    """Between the log-probs of the sampler and those of these weights."""
    gaps = [
        abs(value - logprob(weight, token)) for _, tokens, values, _ in rows for token, value in zip(tokens, values, strict=True)
    ]
    return max(gaps, default=0.0)
