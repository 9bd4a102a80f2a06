"""Activations and gated ones, rounded where Hugging Face's models round."""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastgen_kernels.activation import Activation
from fastgen_kernels.triton_kernels.launch import Launch

BLOCK: Final = 1024


@triton.jit
def activated(x, activation: tl.constexpr):
    """Of float32; a NaN stays one."""
    if activation == "silu":
        return x * tl.sigmoid(x)
    if activation == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if activation == "gelu_tanh":
        # (1 + tanh(u)) / 2 is sigmoid(2 u).
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return tl.where(x < 0.0, 0.0, x)


@triton.jit
def activation_kernel(
    x,
    out,
    width,
    row_stride,
    gated: tl.constexpr,
    activation: tl.constexpr,
    block: tl.constexpr,
):
    """x: rows of `width`, or of gates and values, 2 width; out: dense rows of `width`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    mask = column < width
    dtype = out.dtype.element_ty
    source = x + row * row_stride + column
    result = activated(tl.load(source, mask=mask, other=0.0).to(tl.float32), activation)
    if gated:
        up = tl.load(source + width, mask=mask, other=0.0).to(tl.float32)
        result = result.to(dtype).to(tl.float32) * up
    tl.store(out + row * width + column, result.to(dtype), mask=mask)


def activate(x: Tensor, activation: Activation) -> Tensor:
    """As the twin."""
    return _activate(x, x.shape[-1], activation, gated=False)


def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """As the twin."""
    return _activate(gate_up, gate_up.shape[-1] // 2, activation, gated=True)


def _activate(x: Tensor, width: int, activation: Activation, *, gated: bool) -> Tensor:
    out = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
    if out.numel():
        activation_launch(x, activation, out, gated=gated).run()
    return out


def activation_launch(x: Tensor, activation: Activation, out: Tensor, *, gated: bool) -> Launch:
    """Of x […, width], or gates and values […, 2 width], into out."""
    width = out.shape[-1]
    flat = x.reshape(-1, x.shape[-1])
    if flat.stride(-1) != 1:
        flat = flat.contiguous()
    arguments = {
        "x": flat,
        "out": out,
        "width": width,
        "row_stride": flat.stride(0),
        "gated": gated,
        "activation": activation.value,
        "block": BLOCK,
    }
    return Launch(activation_kernel, (len(flat), triton.cdiv(width, BLOCK)), arguments)
