"""Reads stored tensors into torch's memory, with no copy in between where the file maps them."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fastgen_runtime.hf_folder import StoredTensor


def read_joined(parts: Sequence[StoredTensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The parts one after the other along their first dimension; raises ModelError.

    Beside the result there is never more than one part in memory, and none that is mapped: the
    pages of the file are given back as soon as they were read.
    """
    rows = sum(part.shape[0] for part in parts)
    joined = torch.empty((rows, *parts[0].shape[1:]), dtype=dtype, device=device)
    first = 0
    for part in parts:
        _copy(part, joined[first : first + part.shape[0]])
        first += part.shape[0]
    return joined


def _copy(stored: StoredTensor, target: Tensor) -> None:
    if stored.mapped is None:
        target.copy_(_view(stored.read()))
        return
    values = _view(stored.mapped.values)
    target.copy_(values.view(torch.bfloat16) if stored.mapped.is_bfloat16 else values)
    stored.mapped.release()


def _view(values: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        # It is only read from.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values)
