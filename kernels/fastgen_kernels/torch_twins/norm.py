"""Root mean square layer norm (Zhang and Sennrich, 2019, section 4), with and without residual."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[T, H] normalised over H in float32 and scaled by weight [H]."""
    if x.dtype == torch.float32:
        scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        return (x * scale).mul_(weight)
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).to(x.dtype).mul_(weight)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Norm of x + residual, and that sum, which overwrites residual."""
    residual.add_(x)
    return rms_norm(residual, weight, eps), residual
