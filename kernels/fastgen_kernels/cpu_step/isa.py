"""What a CPU can do that the step is compiled for."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Isa(StrEnum):
    """AVX512_BF16 multiplies brain floats; AVX2 has them widened. PORTABLE: for tests, slow."""

    AVX512_BF16 = "avx512_bf16"
    AVX2 = "avx2"
    PORTABLE = "portable"


_NEEDED: Final[Mapping[Isa, frozenset[str]]] = {
    Isa.AVX512_BF16: frozenset(
        {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "fma", "avx2"}
    ),
    Isa.AVX2: frozenset({"avx2", "fma"}),
}
"""By the kernel's names, in /proc/cpuinfo. The first that a CPU has is used."""

FLAGS: Final[Mapping[Isa, tuple[str, ...]]] = {
    Isa.AVX512_BF16: (
        "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma",
        "-mprefer-vector-width=512", "-DFASTGEN_AVX512_BF16",
    ),
    Isa.AVX2: ("-mavx2", "-mfma", "-DFASTGEN_AVX2"),
    Isa.PORTABLE: ("-O1",),
}  # fmt: skip
"""The compiler's."""


def isa_of(cpu_flags: frozenset[str]) -> Isa | None:
    """The best of a CPU with these features; None: the step cannot run there."""
    return next((isa for isa, needed in _NEEDED.items() if needed <= cpu_flags), None)
