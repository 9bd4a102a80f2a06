"""What attention on GPUs is made for; known before Triton is imported."""

from typing import Final

import torch

from fastgen_kernels.heads import Heads

BLOCK_SIZES: Final = (16, 32, 64, 128)
LARGEST_HEAD: Final = 256
LARGEST_GROUP: Final = 128
"""Half as many for heads of more than 128 dimensions."""


def check(heads: Heads, block_size: int, dtype: torch.dtype) -> None:
    """dtype: of the queries. Raises ValueError for what no kernel is made for."""
    if dtype not in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        raise ValueError(f"the dtype {name}: on GPUs it is bfloat16 or float16")
    if block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise ValueError(f"a block of {block_size} tokens: on GPUs it has one of {sizes}")
    most = LARGEST_GROUP if heads.size <= 128 else LARGEST_GROUP // 2
    if heads.size > LARGEST_HEAD or heads.size % 8 or heads.group > most:
        raise ValueError(
            f"heads of size {heads.size} in groups of {heads.group}: on GPUs the size is a "
            f"multiple of 8 up to {LARGEST_HEAD}, and a group has up to {most}"
        )
