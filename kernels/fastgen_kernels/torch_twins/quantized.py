"""Linear layers whose weights alone are held in 8 bits; what is computed with is not rounded more.

Symmetric, with a scale for each output, or for each group of inputs of an output (Dettmers et al.,
2022, section 3; Micikevicius et al., 2022, for fp8 E4M3).
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional

from fastgen_kernels.torch_twins.linear import Linear

GROUP_SIZES = (32, 64, 128, 256)
WIDE_WEIGHTS = 1 << 20
"""Most that are in float32 at a time, so that a large output layer takes no large memory."""


class WeightFormat(StrEnum):
    INT8 = "int8"
    FP8 = "fp8"


_DTYPES = {WeightFormat.INT8: torch.int8, WeightFormat.FP8: torch.float8_e4m3fn}
_LARGEST = {WeightFormat.INT8: 127.0, WeightFormat.FP8: 448.0}


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """values: [out, in] int8 or float8_e4m3fn. scales: [out, groups] float32.

    group: inputs that share a scale, of GROUP_SIZES; None: all, in one group.
    """

    values: Tensor
    scales: Tensor
    group: int | None = None

    def rows(self, some: slice) -> "QuantizedWeight":
        """Of these outputs; it shares the memory."""
        return QuantizedWeight(self.values[some], self.scales[some], self.group)

    def dequantize(self) -> Tensor:
        """[out, in] in float32."""
        size = self.values.shape[1]
        scales = self.scales.repeat_interleave(self.group or max(size, 1), dim=1)[:, :size]
        return self.values.float() * scales


def quantize(weight: Tensor, form: WeightFormat, group: int | None = None) -> QuantizedWeight:
    """Rounds weight [out, in] to the nearest; raises ValueError for a group of another size."""
    if group is not None and group not in GROUP_SIZES:
        raise ValueError(f"a group of {group} inputs; possible: {', '.join(map(str, GROUP_SIZES))}")
    outputs, inputs = weight.shape
    values = torch.empty((outputs, inputs), dtype=_DTYPES[form], device=weight.device)
    groups = -(-inputs // (group or max(inputs, 1)))
    scales = torch.empty((outputs, groups), device=weight.device)
    for some in _slices(outputs, inputs):
        values[some], scales[some] = _quantized_rows(weight[some], form, group)
    return QuantizedWeight(values, scales, group)


def _quantized_rows(weight: Tensor, form: WeightFormat, group: int | None) -> tuple[Tensor, Tensor]:
    """Values [out, in] and scales [out, groups] of weight [out, in]."""
    outputs, inputs = weight.shape
    size = group or max(inputs, 1)
    wide = functional.pad(weight.float(), (0, -inputs % size)).view(outputs, -1, size)
    scales = wide.abs().amax(-1) / _LARGEST[form]
    scales = torch.where(scales > 0, scales, 1.0)
    scaled = (wide / scales[..., None]).view(outputs, -1)[:, :inputs]
    if form is WeightFormat.INT8:
        scaled = scaled.round()
    most = _LARGEST[form]  # the division may round beyond it, where fp8 has no numbers
    return scaled.clamp(-most, most).to(_DTYPES[form]), scales


def _slices(outputs: int, inputs: int) -> list[slice]:
    """Of the outputs, in order, each of up to WIDE_WEIGHTS weights, or of one output."""
    each = max(1, WIDE_WEIGHTS // max(inputs, 1))
    return [slice(first, min(first + each, outputs)) for first in range(0, outputs, each)]


def pack_quantized(weight: QuantizedWeight, bias: Tensor | None) -> Linear:
    """A layer of the weight and bias [out]."""

    offset = None if bias is None else bias.float()
    slices = _slices(*weight.values.shape)

    def quantized_linear(x: Tensor) -> Tensor:
        wide = x.float()
        parts = [
            functional.linear(
                wide, weight.rows(some).dequantize(), None if offset is None else offset[some]
            )
            for some in slices
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)).to(x.dtype)

    return quantized_linear
