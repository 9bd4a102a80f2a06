"""Root mean square norm (Zhang and Sennrich, 2019, section 4) and layer norm (Ba et al., 2016)."""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[…, H] normalised over H in float32 and scaled by weight [H]."""
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


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """[…, H] with mean 0 and variance 1 over H, times weight [H], plus bias [H]; in float32."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Norm of x + residual, and that sum, which overwrites residual."""
    residual.add_(x)
    return layer_norm(residual, weight, bias, eps), residual
