"""Compiles the step of SmolLM2-135M where an image is built: `… .prebuild DIRECTORY`."""

import sys
from pathlib import Path
from typing import Final

from fastgen_kernels.cpu_step.compiler import build
from fastgen_kernels.cpu_step.description import Element, StepModel
from fastgen_kernels.cpu_step.isa import Isa

BLOCK_SIZE: Final = 64
"""Replicas' default; others are compiled when they are first asked for."""
KINDS: Final = (
    (Isa.AVX512_BF16, Element.BF16),
    (Isa.AVX2, Element.FP32),
    (Isa.AVX2, Element.BF16),
)
"""What replicas choose by themselves."""


def smollm2(element: Element, block_size: int = BLOCK_SIZE) -> StepModel:
    """element: of weights and cache."""
    return StepModel(
        num_layers=30,
        hidden_size=576,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        intermediate_size=1536,
        vocab_size=49152,
        norm_eps=1e-5,
        rotary_dim=64,
        block_size=block_size,
        weights=element,
        cache=element,
    )


def main() -> None:
    """Raises CompileError."""
    directory = Path(sys.argv[1])
    for isa, element in KINDS:
        built = build(smollm2(element), isa, directory)
        print(f"{isa} {element}: {built.path.name} in {built.seconds:.1f} s")


if __name__ == "__main__":
    main()
