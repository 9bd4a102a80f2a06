"""Chooses tokens as the twin does, without a sort and without waiting for the device.

What top-k and top-p keep is told by a threshold, found by bisection over the bits of the logits:
three bits a pass, for every row in its own program. The sums are added up in the same order
whatever the batch, so a row's token is its own. The token that wins the exponential race is drawn.
"""

from collections.abc import Sequence
from typing import Final

import torch
import triton
from torch import Tensor

from fastgen_kernels.torch_twins.sampling import Draw
from fastgen_kernels.triton_kernels.choice_kernel import choose_kernel, edit_kernel
from fastgen_kernels.triton_kernels.draw_table import DrawTable
from fastgen_kernels.triton_kernels.launch import Launch
from fastgen_kernels.triton_kernels.upload import upload

BLOCK: Final = 1024
EDITS: Final = 256


def sample(
    logits: Tensor, draws: Sequence[Draw], vocabulary: int | None = None
) -> list[int | None]:
    """As the twin; waits for the device once, for the tokens."""
    size = logits.shape[1] if vocabulary is None else vocabulary
    tokens = sample_tokens(logits, DrawTable.of(draws, size), size).tolist()
    return [None if token < 0 else token for token in tokens]


def sample_tokens(logits: Tensor, table: DrawTable, size: int) -> Tensor:
    """[R] int64 token ids of the first `size` logits [R, V], -1 for none; waits for nothing."""
    out = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for launch in sample_launches(logits, table, size, out):
        launch.run()
    return out


def sample_launches(logits: Tensor, table: DrawTable, size: int, out: Tensor) -> list[Launch]:
    """Of the edits, where there are any, and of the choice."""
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    reals, integers, edits, biases, masks = upload(
        (table.reals, table.integers, table.edits, table.biases, table.masks), logits.device
    )
    adjusted, launches = logits, []
    if len(table.edits):
        adjusted = logits[:, :size].to(torch.float32, copy=True)
        arguments = {
            "logits": adjusted,
            "reals": reals,
            "edits": edits,
            "biases": biases,
            "num_edits": len(table.edits),
            "row_stride": adjusted.stride(0),
            "block": EDITS,
        }
        launches.append(Launch(edit_kernel, (triton.cdiv(len(table.edits), EDITS),), arguments, 4))
    arguments = {
        "raw": logits,
        "adjusted": adjusted,
        "reals": reals,
        "integers": integers,
        "masks": masks,
        "out": out,
        "size": size,
        "raw_stride": logits.stride(0),
        "adjusted_stride": adjusted.stride(0),
        "num_words": table.masks.shape[1],
        "edited": bool(len(table.edits)),
        "has_masks": bool(len(table.masks)),
        "block": BLOCK,
    }
    return [*launches, Launch(choose_kernel, (len(logits),), arguments, 8)]
