"""The likeliest experts of each token."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastgen_kernels.triton_kernels.launch import Launch


@triton.jit(do_not_specialize=["num_tokens", "num_experts"])
def route_kernel(
    logits,
    weights,
    indices,
    num_tokens,
    num_experts,
    row_stride,
    top_k: tl.constexpr,
    renormalise: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_experts: tl.constexpr,
    tile_chosen: tl.constexpr,
):
    """tile_rows tokens; tile_experts ≥ num_experts and tile_chosen ≥ top_k are powers of 2."""
    row = (tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)).to(tl.int64)
    expert = tl.arange(0, tile_experts)[None, :]
    mask = (row < num_tokens)[:, None] & (expert < num_experts)
    values = tl.load(logits + row[:, None] * row_stride + expert, mask=mask, other=float("-inf"))
    values = tl.where((row < num_tokens)[:, None], values.to(tl.float32), 0.0)
    shares = tl.exp(values - tl.max(values, 1)[:, None])
    left = shares / tl.sum(shares, 1)[:, None]
    column = tl.arange(0, tile_chosen)[None, :]
    kept = tl.zeros([tile_rows, tile_chosen], tl.float32)
    ids = tl.zeros([tile_rows, tile_chosen], tl.int32)
    for number in tl.static_range(top_k):
        best = tl.max(left, 1)[:, None]
        first = tl.min(tl.where(left == best, expert, tile_experts), 1)
        # Where a NaN made all equal none: no index beyond the experts.
        first = tl.minimum(first, num_experts - 1)[:, None]
        share = tl.sum(tl.where(expert == first, left, 0.0), 1)[:, None]
        kept = tl.where(column == number, share, kept)
        ids = tl.where(column == number, first, ids)
        left = tl.where(expert == first, -1.0, left)
    if renormalise:
        kept = kept / tl.sum(kept, 1)[:, None]
    place = row[:, None] * top_k + column
    mask = (row < num_tokens)[:, None] & (column < top_k)
    tl.store(weights + place, kept, mask=mask)
    tl.store(indices + place, ids.to(tl.int64), mask=mask)


def route(router_logits: Tensor, top_k: int, renormalise: bool) -> tuple[Tensor, Tensor]:
    """As the twin; among equals the smaller index."""
    shape = (len(router_logits), top_k)
    weights = torch.empty(shape, dtype=torch.float32, device=router_logits.device)
    indices = torch.empty(shape, dtype=torch.int64, device=router_logits.device)
    route_launch(router_logits, top_k, renormalise, weights, indices).run()
    return weights, indices


def route_launch(
    router_logits: Tensor, top_k: int, renormalise: bool, weights: Tensor, indices: Tensor
) -> Launch:
    """Of logits [T, experts] into weights and indices [T, top_k]."""
    if router_logits.stride(-1) != 1:
        router_logits = router_logits.contiguous()
    num_tokens, num_experts = router_logits.shape
    block = triton.next_power_of_2(num_experts)
    rows = max(1, 512 // block)
    arguments = {
        "logits": router_logits,
        "weights": weights,
        "indices": indices,
        "num_tokens": num_tokens,
        "num_experts": num_experts,
        "row_stride": router_logits.stride(0),
        "top_k": top_k,
        "renormalise": renormalise,
        "tile_rows": rows,
        "tile_experts": block,
        "tile_chosen": triton.next_power_of_2(top_k),
    }
    return Launch(route_kernel, (triton.cdiv(num_tokens, rows),), arguments, 4)
