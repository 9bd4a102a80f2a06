"""Hands out a checkpoint's tensors by name, and remembers which nobody has asked for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fastgen_kernels.dispatch import Kernels
from fastgen_kernels.torch_twins.linear import Linear
from fastgen_kernels.torch_twins.quantized import WeightFormat, quantize
from fastgen_runtime.device.tensor_reader import Rows, Selection, read_joined
from fastgen_runtime.models.capacity import WEIGHT_GROUP
from fastgen_runtime.models.hf_folder import StoredTensor
from fastgen_runtime.models.model_config import invalid
from fastgen_runtime.models.tensor_names import TensorNames


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """`rows` of a stored linear layer that has `outputs` of them; None: all."""

    name: str
    outputs: int
    rows: Rows | None = None


class WeightReader:
    """base, head: names before the decoder's tensors and of its output layer, in this file."""

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        names: TensorNames,
        kernels: Kernels,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._tensors = tensors
        self._kernels = kernels
        self._dtype = dtype
        self._device = device
        self.base, self.head = _prefixes(tensors, names)
        self.unread = {name for name in tensors if not name.endswith(names.ignored)}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A whole tensor; raises ModelError, also for another shape."""
        return self._read([Selection(self._stored(name, shape))])

    def ones(self, shape: tuple[int, ...]) -> Tensor:
        """What stands for the weights of a norm that has none."""
        return torch.ones(shape, dtype=self._dtype, device=self._device)

    def linear(
        self,
        parts: Sequence[Part],
        inputs: int,
        *,
        bias: bool = False,
        columns: range | None = None,
        add_bias: bool = True,
        form: WeightFormat | None = None,
    ) -> Linear:
        """One layer of the parts, their outputs side by side; raises ModelError.

        columns: the inputs that are ours, where other ranks have the rest. add_bias: false leaves
        a stored bias out, since one of those ranks adds it. form: what the weights are rounded to;
        None: not at all.
        """
        biases = [
            Selection(self._stored(f"{part.name}.bias", (part.outputs,)), part.rows)
            for part in parts
            if bias
        ]
        weight = self.weight(parts, inputs, columns)
        offset = self._read(biases) if biases and add_bias else None
        return self.packed(weight, offset, form)

    def packed(self, weight: Tensor, bias: Tensor | None, form: WeightFormat | None) -> Linear:
        """A layer of weight [outputs, inputs] and bias [outputs]; form: as `linear` has it."""
        if form is None:
            return self._kernels.pack_linear(weight, bias)
        return self._kernels.pack_quantized(quantize(weight, form, WEIGHT_GROUP), bias)

    def weight(self, parts: Sequence[Part], inputs: int, columns: range | None = None) -> Tensor:
        """Weights [outputs, inputs] of a layer, as `linear` has them; raises ModelError."""
        return self._read(
            [
                Selection(
                    self._stored(f"{part.name}.weight", (part.outputs, inputs)), part.rows, columns
                )
                for part in parts
            ]
        )

    def stacked(
        self,
        name: str,
        shape: tuple[int, int, int],
        rows: Rows | None = None,
        columns: range | None = None,
    ) -> Iterator[Tensor]:
        """The matrices of a tensor, of these rows and columns of it, read one at a time."""
        stored = self._stored(name, shape)
        return (self._read([Selection(matrix, rows, columns)]) for matrix in _matrices(stored))

    def _stored(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        stored = self._tensors.get(name)
        if stored is None:
            raise invalid(f"the checkpoint has no tensor {name}")
        if stored.shape != shape:
            raise invalid(
                f"tensor {name} has the shape {list(stored.shape)}; "
                f"the configuration says {list(shape)}"
            )
        self.unread.discard(name)
        return stored

    def _read(self, parts: Sequence[Selection]) -> Tensor:
        return read_joined(parts, self._dtype, self._device)


def _matrices(stored: StoredTensor) -> list[StoredTensor]:
    shape, mapped = stored.shape[1:], stored.mapped
    if mapped is not None:
        return [
            StoredTensor(shape, stored.read, replace(mapped, values=matrix))
            for matrix in mapped.values
        ]
    return [StoredTensor(shape, partial(np.asarray, matrix)) for matrix in stored.read()]


def _prefixes(tensors: Mapping[str, StoredTensor], names: TensorNames) -> tuple[str, str]:
    """Files of the decoder alone leave its prefix out, others put one more before it."""
    embedding = f"{names.embedding}.weight"
    found = [name for name in tensors if name == embedding or name.endswith(f".{embedding}")]
    base = found[0].removesuffix(embedding) if len(found) == 1 else names.base
    outer = base.removesuffix(names.base) if base.endswith(names.base) else ""
    return base, outer + names.head
