"""The gate of Llama's feed-forward layer (Shazeer, 2020: SwiGLU)."""

from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of gate_up [T, 2 I], gates first; gives [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
