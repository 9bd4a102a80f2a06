"""Root mean square and layer norms, with and without a residual that is added first."""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastgen_kernels.triton_kernels.launch import Launch

LARGEST: Final = 32_768
"""Elements of a row: one program holds a whole one in registers."""


@triton.jit(do_not_specialize=["rows", "heads"])
def norm_kernel(
    x,
    residual,
    weight,
    bias,
    out,
    rows,
    heads,
    row_stride,
    head_stride,
    size,
    eps,
    centred: tl.constexpr,
    add: tl.constexpr,
    has_weight: tl.constexpr,
    has_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_size: tl.constexpr,
):
    """x: row r is at (r // heads) row_stride + (r % heads) head_stride; the others are dense."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    column = tl.arange(0, tile_size)
    inside = (column < size)[None, :]
    mask = (row < rows)[:, None] & inside
    dtype = out.dtype.element_ty
    place = (row // heads).to(tl.int64) * row_stride + (row % heads).to(tl.int64) * head_stride
    wide = tl.load(x + place[:, None] + column[None, :], mask=mask, other=0.0).to(tl.float32)
    dense = row.to(tl.int64)[:, None] * size + column[None, :]
    if add:
        old = tl.load(residual + dense, mask=mask, other=0.0).to(tl.float32)
        total = (wide + old).to(dtype)
        tl.store(residual + dense, total, mask=mask)
        wide = total.to(tl.float32)
    if centred:
        mean = tl.sum(wide, 1) / size
        wide = tl.where(inside, wide - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(wide * wide, 1) / size + eps)
    normed = wide * scale[:, None]
    if not centred:
        normed = normed.to(dtype).to(tl.float32)  # where Hugging Face's models round
    if has_weight:
        factor = tl.load(weight + column, mask=column < size, other=0.0).to(tl.float32)
        normed = normed * factor[None, :]
    if has_bias:
        offset = tl.load(bias + column, mask=column < size, other=0.0).to(tl.float32)
        normed = normed + offset[None, :]
    tl.store(out + dense, normed.to(dtype), mask=mask)


@dataclass(frozen=True, slots=True)
class NormTiles:
    """rows, block: of a program's tile."""

    rows: int
    block: int
    num_warps: int


def norm_tiles(size: int) -> NormTiles:
    """For rows of `size` elements: about 16 elements a thread; raises ValueError above LARGEST."""
    if size > LARGEST:
        raise ValueError(f"a norm over {size} elements; the kernel holds {LARGEST} at most")
    block = triton.next_power_of_2(size)
    rows = max(1, 1024 // block)
    return NormTiles(rows, block, min(16, max(2, rows * block // 512)))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As the twin; x [T, H] or [T, heads, H] may be strided in all but its last dimension."""
    return _norm(x, None, weight, None, eps, centred=False)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As the twin; raises ValueError when residual is not contiguous."""
    return _norm(x, residual, weight, None, eps, centred=False), residual


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """As the twin; x as for `rms_norm`."""
    return _norm(x, None, weight, bias, eps, centred=True)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """As the twin; raises ValueError when residual is not contiguous."""
    return _norm(x, residual, weight, bias, eps, centred=True), residual


def _norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    centred: bool,
) -> Tensor:
    if residual is not None and not (residual.is_contiguous() and residual.shape == x.shape):
        raise ValueError("a residual must be contiguous and of the shape of what is added")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        norm_launch(x, residual, weight, bias, eps, out, centred=centred).run()
    return out


def norm_launch(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out: Tensor,
    *,
    centred: bool,
) -> Launch:
    """Of x [T, H] or [T, heads, H] into out; centred: the layer norm. Raises ValueError."""
    size = x.shape[-1]
    tiles = norm_tiles(size)
    if x.stride(-1) != 1 or x.ndim > 3:
        x = x.contiguous()
    rows = x.numel() // size
    heads, row_stride, head_stride = 1, size, 0
    if x.ndim == 3:
        heads, row_stride, head_stride = x.shape[1], x.stride(0), x.stride(1)
    elif x.ndim == 2:
        row_stride = x.stride(0)
    arguments = {
        "x": x,
        "residual": residual,
        "weight": weight,
        "bias": bias,
        "out": out,
        "rows": rows,
        "heads": heads,
        "row_stride": row_stride,
        "head_stride": head_stride,
        "size": size,
        "eps": eps,
        "centred": centred,
        "add": residual is not None,
        "has_weight": weight is not None,
        "has_bias": bias is not None,
        "tile_rows": tiles.rows,
        "tile_size": tiles.block,
    }
    grid = (triton.cdiv(rows, tiles.rows),)
    return Launch(norm_kernel, grid, arguments, tiles.num_warps)
