"""Reads stored tensors into torch's memory, with no copy in between where the file maps them."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastgen_runtime.models.hf_folder import StoredTensor

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What is wanted of a stored tensor. None: all rows, all columns of a matrix."""

    stored: StoredTensor
    rows: Rows | None = None
    columns: range | None = None

    @property
    def num_rows(self) -> int:
        return self.stored.shape[0] if self.rows is None else len(self.rows)

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """The selected part of the tensor's values: a view where the rows are neighbours."""
        if self.rows is not None:
            first, last = int(self.rows[0]), int(self.rows[-1]) + 1
            neighbours = np.array_equal(self.rows, np.arange(first, last))
            values = values[first:last] if neighbours else values[self.rows]
        if self.columns is not None:
            values = values[:, self.columns.start : self.columns.stop]
        return values


def read_joined(parts: Sequence[Selection], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The parts one after the other along their first dimension; raises ModelError.

    Beside the result there is never more than one part in memory, and none that is mapped: the
    pages of the file are given back as soon as they were read.
    """
    columns = parts[0].columns
    shape = parts[0].stored.shape[1:] if columns is None else (len(columns),)
    rows = sum(part.num_rows for part in parts)
    joined = torch.empty((rows, *shape), dtype=dtype, device=device)
    first = 0
    for part in parts:
        _copy(part, joined[first : first + part.num_rows])
        first += part.num_rows
    return joined


def _copy(part: Selection, target: Tensor) -> None:
    mapped = part.stored.mapped
    if mapped is None:
        target.copy_(_view(part.of(part.stored.read())))
        return
    values = _view(part.of(mapped.values))
    target.copy_(values.view(torch.bfloat16) if mapped.is_bfloat16 else values)
    mapped.release()


def _view(values: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        # It is only read from.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values)
