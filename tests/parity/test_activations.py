"""Activations by the names in configurations are those of transformers."""

import pytest
import torch
from transformers.activations import ACT2FN

from fastgen_kernels.activation import Activation
from fastgen_kernels.dispatch import Device, kernels_for

KERNELS = kernels_for(Device("cpu"))


@pytest.mark.parametrize(
    "name",
    ["silu", "swish", "gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu"],
)
def test_activation_by_name(name: str) -> None:
    x = torch.linspace(-6, 6, 200)
    result = KERNELS.activate(x, Activation.named(name))
    torch.testing.assert_close(result, ACT2FN[name](x), atol=1e-6, rtol=1e-6)
