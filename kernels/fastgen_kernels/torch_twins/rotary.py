"""Rotary position embedding (Su et al., 2021, section 3.2) of the pairs (i, i + R/2)."""

import torch
from torch import Tensor


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first R dimensions of x [T, heads, D] by cos, sin [T, 1, R/2]; copies the rest.

    x may be strided, the result is not.
    """
    half = cos.shape[-1]
    first, second, rest = x.tensor_split((half, 2 * half), dim=-1)
    rotated = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.mul(first, cos, out=rotated[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=rotated[..., half : 2 * half]).addcmul_(first, sin)
    if rest.shape[-1]:
        rotated[..., 2 * half :] = rest
    return rotated
