"""Small host arrays to the device in one copy that nothing waits for."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT: Final = 16
"""Bytes: Triton's loads are widest from such addresses."""


def upload(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Tensors of the same shapes and types on the device, each aligned to 16 bytes."""
    ends = np.cumsum([-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]).tolist()
    starts = [0, *ends[:-1]]
    buffer = torch.empty(max(ends[-1], 1), dtype=torch.uint8, pin_memory=device.type == "cuda")
    bytes_of = buffer.numpy()
    for array, start in zip(arrays, starts, strict=True):
        bytes_of[start : start + array.nbytes] = (
            np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        )
    copied = buffer.to(device, non_blocking=True)
    return [
        copied[start : start + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
        for array, start in zip(arrays, starts, strict=True)
    ]


_DTYPES: Final = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
}
