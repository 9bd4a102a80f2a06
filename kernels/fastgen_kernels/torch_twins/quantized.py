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
    size = group or max(inputs, 1)
    wide = functional.pad(weight.float(), (0, -inputs % size)).view(outputs, -1, size)
    scales = wide.abs().amax(-1) / _LARGEST[form]
    scales = torch.where(scales > 0, scales, 1.0)
    scaled = (wide / scales[..., None]).view(outputs, -1)[:, :inputs]
    if form is WeightFormat.INT8:
        scaled = scaled.round()
    most = _LARGEST[form]  # the division may round beyond it, where fp8 has no numbers
    return QuantizedWeight(scaled.clamp(-most, most).to(_DTYPES[form]), scales, group)


def pack_quantized(weight: QuantizedWeight, bias: Tensor | None) -> Linear:
    """A layer of the weight and bias [out]."""

    offset = None if bias is None else bias.float()

    def quantized_linear(x: Tensor) -> Tensor:
        return functional.linear(x.float(), weight.dequantize(), offset).to(x.dtype)

    return quantized_linear
