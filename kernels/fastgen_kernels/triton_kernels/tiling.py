"""Sizes of the tiles that attention works in: found by compiling, see `kernels/BUDGET.md`."""

from dataclasses import dataclass
from typing import Final

from fastgen_kernels.heads import Heads

HOPPER: Final = 90
_LEAST_DOT: Final = 16
"""Rows and columns that a tensor core takes at least."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """architecture: 80 for compute capability 8.0. multiprocessors: how many it has."""

    architecture: int
    multiprocessors: int


@dataclass(frozen=True, slots=True)
class Tiling:
    """rows: queries × the heads that share keys. keys: positions. stages: of prefetching."""

    rows: int
    keys: int
    warps: int
    stages: int


def padded(size: int) -> int:
    """Tiles have powers of two as sizes."""
    return max(_LEAST_DOT, 1 << (size - 1).bit_length())


def decode_tiling(heads: Heads) -> Tiling:
    """The query heads that share keys are the rows."""
    rows = padded(heads.group)
    if heads.size <= 128:
        return Tiling(rows, 64, 4 if rows < 128 else 8, 3)
    return Tiling(rows, 32, 8, 3 if rows < 64 else 2)


def prefill_tiling(heads: Heads, architecture: int) -> Tiling:
    """Hopper's tensor cores read keys from shared memory, older ones from registers."""
    if architecture >= HOPPER:
        return Tiling(128, 64, 8, 3) if heads.size <= 128 else Tiling(128, 32, 8, 3)
    return Tiling(128, 32, 8, 3) if heads.size <= 128 else Tiling(64, 16, 8, 3)
