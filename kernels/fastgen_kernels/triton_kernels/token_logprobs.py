"""Log probabilities of tokens, of the chosen one and of the likeliest."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from fastgen_kernels.torch_twins.token_logprobs import Logprobs
from fastgen_kernels.triton_kernels.launch import Launch
from fastgen_kernels.triton_kernels.upload import upload

BLOCK: Final = 1024
_NONE: Final = tl.constexpr(2147483647)


@triton.jit(do_not_specialize=["num_top"])
def logprobs_kernel(
    logits,
    chosen,
    values,
    ids,
    size,
    row_stride,
    num_top,
    block: tl.constexpr,
):
    """One row. values, ids: [R, 1 + num_top], log probability and rank of the chosen token, then
    log probabilities and ids of the likeliest, falling, among equals by id.
    """
    row = tl.program_id(0).to(tl.int64)
    source = logits + row * row_stride
    token = tl.load(chosen + row)
    inside = token < size
    value = tl.load(source + token, mask=inside, other=float("-inf")).to(tl.float32)
    largest = tl.full([block], float("-inf"), tl.float32)
    ahead = tl.zeros([block], tl.int32)
    for start in range(0, size, block):
        column = start + tl.arange(0, block)
        known = tl.load(source + column, mask=column < size, other=float("-inf")).to(tl.float32)
        largest = tl.maximum(largest, known)
        before = (known > value) | ((known == value) & (column < token))
        ahead += (before & (column < size)).to(tl.int32)
    best = tl.max(largest, 0)
    sums = tl.zeros([block], tl.float32)
    for start in range(0, size, block):
        column = start + tl.arange(0, block)
        known = tl.load(source + column, mask=column < size, other=float("-inf")).to(tl.float32)
        sums += tl.exp(known - best)
    total = tl.log(tl.sum(sums, 0))
    target = row * (1 + num_top)
    tl.store(values + target, value - best - total)
    tl.store(ids + target, tl.where(inside, tl.sum(ahead, 0) + 1, size + 1))
    last = tl.full([], float("inf"), tl.float32)
    last_id = tl.full([], -1, tl.int32)
    for number in range(num_top):
        highest = tl.full([block], float("-inf"), tl.float32)
        tokens = tl.full([block], _NONE, tl.int32)
        for start in range(0, size, block):
            column = start + tl.arange(0, block)
            known = tl.load(source + column, mask=column < size, other=0.0).to(tl.float32)
            left = ((known < last) | ((known == last) & (column > last_id))) & (column < size)
            better = left & ((known > highest) | (tokens == _NONE))
            highest = tl.where(better, known, highest)
            tokens = tl.where(better, column, tokens)
        last = tl.max(highest, 0)
        last_id = tl.min(tl.where(highest == last, tokens, _NONE), 0)
        tl.store(values + target + 1 + number, last - best - total)
        tl.store(ids + target + 1 + number, last_id)


def logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: int, vocabulary: int | None = None
) -> list[Logprobs]:
    """As the twin, in float32; waits for the device once, for the results."""
    size = vocabulary or logits.shape[1]
    num_top = min(num_top, size)
    (chosen,) = upload([np.asarray(token_ids, np.int64)], logits.device)
    shape = (len(logits), 1 + num_top)
    values = torch.empty(shape, dtype=torch.float32, device=logits.device)
    ids = torch.empty(shape, dtype=torch.int32, device=logits.device)
    logprobs_launch(logits, chosen, size, values, ids).run()
    return [
        Logprobs(of_row[0], ids_of_row[0], tuple(zip(ids_of_row[1:], of_row[1:], strict=True)))
        for of_row, ids_of_row in zip(values.tolist(), ids.tolist(), strict=True)
    ]


def logprobs_launch(
    logits: Tensor, chosen: Tensor, size: int, values: Tensor, ids: Tensor
) -> Launch:
    """Of the first `size` logits [R, V] and chosen tokens [R] into values and ids [R, 1 + n]."""
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    arguments = {
        "logits": logits,
        "chosen": chosen,
        "values": values,
        "ids": ids,
        "size": size,
        "row_stride": logits.stride(0),
        "num_top": values.shape[1] - 1,
        "block": BLOCK,
    }
    return Launch(logprobs_kernel, (len(logits),), arguments, 8)
