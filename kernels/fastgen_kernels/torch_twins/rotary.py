"""Rotary position embedding (Su et al., 2021, section 3.2) of the pairs (i, i + D/2)."""

import torch
from torch import Tensor


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x [T, heads, D] by cos, sin [T, 1, D/2]; x may be strided, the result is not."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    rotated = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.mul(first, cos, out=rotated[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=rotated[..., half:]).addcmul_(first, sin)
    return rotated
