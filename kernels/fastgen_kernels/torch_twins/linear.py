"""Linear layers with their weights laid out once for the machine."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Linear = Callable[[Tensor], Tensor]
"""[T, in] to [T, out]."""


def pack_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """A layer of weight [out, in] and bias [out]; the caller need not keep the weight.

    oneDNN with weights in its own order is up to twice as fast on CPUs as torch's linear, which
    reorders in each call. The operator is private to the pinned torch, hence the probe.
    """
    if can_pack(weight):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)

        def packed_linear(x: Tensor) -> Tensor:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
            return result

        return packed_linear
    return lambda x: functional.linear(x, weight, bias)


def can_pack(weight: Tensor) -> bool:
    """Whether `pack_linear` makes a copy of such a weight; only type and device are looked at."""
    return (
        weight.device.type == "cpu"
        and torch._C._has_mkldnn
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (
            weight.dtype == torch.float32
            or (weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )
    )
