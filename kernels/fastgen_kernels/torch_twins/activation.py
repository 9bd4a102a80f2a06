"""Activations, and gated ones (Shazeer, 2020, section 2)."""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional

from fastgen_kernels.activation import Activation

_FUNCTIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.SILU: functional.silu,
    Activation.GELU: functional.gelu,
    Activation.GELU_TANH: partial(functional.gelu, approximate="tanh"),
    Activation.RELU: functional.relu,
}


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The activation of each element of x."""
    return _FUNCTIONS[activation](x)


def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """activation(gate) · up of gate_up [T, 2 I], gates first; gives [T, I]."""
    gates, up = gate_up.chunk(2, dim=-1)
    return activate(gates, activation).mul_(up)
