"""TPU slices by name, what their chips hold, and meshes over them as a person writes them. No JAX is imported.

A chip is one device. Families whose chips are two devices (v4 and before, v7) are not among them.
"""

from dataclasses import dataclass
from math import prod

from common.errors import ConfigError, explain

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")
_SLICES = {"v5e": _FLAT, "v6e": _FLAT, "v5p": _CUBES}
# What the compiler says is available on one chip (in its message when it runs out of memory), not what is soldered on.
_HBM_GIB = {"v5e": 15.75, "v6e": 31.24, "v5p": 95.73}


@dataclass(frozen=True, slots=True)
class Topology:
    """A slice, such as v5e:2x4."""

    family: str
    grid: str

    @property
    def name(self) -> str:
        """As the compiler knows it."""
        return f"{self.family}:{self.grid}"

    @property
    def num_chips(self) -> int:
        """In all."""
        return prod(int(side) for side in self.grid.split("x"))

    @property
    def hbm_gib(self) -> float:
        """Usable memory of one chip."""
        return _HBM_GIB[self.family]

    def larger(self) -> tuple["Topology", ...]:
        """Slices of the same family with more chips, smallest first."""
        every = (Topology(self.family, grid) for grid in _SLICES[self.family])
        return tuple(each for each in every if each.num_chips > self.num_chips)


def parse_topology(text: str) -> Topology:
    """A known slice. Raises ConfigError."""
    family, _, grid = text.partition(":")
    if grid not in _SLICES.get(family, ()):
        known = "; ".join(f"{name}:{', '.join(grids)}" for name, grids in _SLICES.items())
        raise ConfigError(explain("--topology", "must be a known TPU slice", text, f"use one of {known}"))
    return Topology(family, grid)


def parse_mesh(text: str | None, num_chips: int) -> tuple[int, int]:
    """Sizes of the axes (fsdp, tp) from `fsdp=8,tp=1`; an axis left out takes the chips that the other leaves, tp at most 1.

    Raises ConfigError unless they use every chip.
    """
    sizes = {} if text is None else dict(_axis(part, text) for part in text.split(","))
    if text is not None and len(sizes) != len(text.split(",")):
        raise ConfigError(explain("--mesh", "must give each axis once", text, "write fsdp=N,tp=M"))
    tp = sizes.get("tp", 1)
    fsdp = sizes.get("fsdp", max(1, num_chips // tp))
    if fsdp * tp != num_chips:
        remedy = f"use fsdp={num_chips // tp},tp={tp}" if num_chips % tp == 0 else f"use fsdp={num_chips},tp=1"
        raise ConfigError(explain("--mesh", f"must use the topology's {num_chips} chips", f"fsdp={fsdp},tp={tp}", remedy))
    return fsdp, tp


def _axis(part: str, text: str) -> tuple[str, int]:
    name, _, size = part.strip().partition("=")
    if name not in ("fsdp", "tp") or not (size.isascii() and size.isdigit()) or int(size) == 0:
        raise ConfigError(explain("--mesh", "must be axes and their sizes, of 1 or more", text, "write fsdp=N,tp=M"))
    return name, int(size)
