"""The other torch twins against float64, and the table that chooses them."""

import math

import pytest
import torch

from fastgen_kernels.activation import Activation
from fastgen_kernels.dispatch import TABLE, Device, Op, UnsupportedDeviceError, kernels_for, select

KERNELS = kernels_for(Device("cpu"))
DTYPES = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"]
)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@DTYPES
def test_rms_norm(dtype: torch.dtype, tolerance: float) -> None:
    x, weight = random(5, 48, dtype=dtype), random(48, dtype=dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    result = KERNELS.rms_norm(x, weight, 1e-5)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)


def test_add_rms_norm_keeps_the_sum() -> None:
    x, residual, weight = random(3, 16), random(3, 17)[:, :16].contiguous(), random(16)
    total = x + residual
    normed, kept = KERNELS.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(kept, total)
    assert torch.equal(normed, KERNELS.rms_norm(total, weight, 1e-6))


def test_rotary_turns_pairs_by_their_angle() -> None:
    """As complex numbers (x_i, x_{i + D/2}), in float64; a strided input, as fused qkv gives."""
    x = random(6, 5, 16)[:, 1:4]
    angles = random(6, 1, 8).double()
    expected = torch.complex(x[..., :8].double(), x[..., 8:].double()) * torch.exp(1j * angles)
    result = KERNELS.rotary(x, angles.cos().float(), angles.sin().float())
    assert result.is_contiguous()
    torch.testing.assert_close(
        result.double(), torch.cat([expected.real, expected.imag], -1), atol=1e-5, rtol=1e-5
    )


def test_partial_rotary_copies_the_rest() -> None:
    """10 of 20 dimensions, as in Phi or GPT-NeoX; the pairs are (i, i + 5)."""
    x, angles = random(6, 3, 20), random(6, 1, 5)
    cos, sin = angles.cos(), angles.sin()
    result = KERNELS.rotary(x, cos, sin)
    assert torch.equal(result[..., :10], KERNELS.rotary(x[..., :10], cos, sin))
    assert torch.equal(result[..., 10:], x[..., 10:])


@DTYPES
@pytest.mark.parametrize("affine", ["weight and bias", "weight", "none"])
def test_layer_norm(dtype: torch.dtype, tolerance: float, affine: str) -> None:
    """A mean far from 0, which naive variances do not survive."""
    x = random(5, 48, dtype=dtype) + 100
    weight = random(48, dtype=dtype) if "weight" in affine else None
    bias = random(49, dtype=dtype)[1:] if "bias" in affine else None
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    if weight is not None:
        expected = expected * weight.double()
    if bias is not None:
        expected = expected + bias.double()
    result = KERNELS.layer_norm(x, weight, bias, 1e-5)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, atol=10 * tolerance, rtol=tolerance)


def test_add_layer_norm_keeps_the_sum() -> None:
    x, residual, weight, bias = random(3, 16), random(3, 16) * 2, random(16), random(17)[1:]
    total = x + residual
    normed, kept = KERNELS.add_layer_norm(x, residual, weight, bias, 1e-6)
    assert torch.equal(kept, total)
    assert torch.equal(normed, KERNELS.layer_norm(total, weight, bias, 1e-6))


def activated(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """By the definitions, in float64."""
    match activation:
        case Activation.SILU:
            return x / (1 + torch.exp(-x))
        case Activation.GELU:
            return x * (1 + torch.special.erf(x / math.sqrt(2))) / 2
        case Activation.GELU_TANH:
            return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        case Activation.RELU:
            return torch.where(x > 0, x, torch.zeros_like(x))


@DTYPES
@pytest.mark.parametrize("activation", Activation)
def test_activations_and_gates(
    dtype: torch.dtype, tolerance: float, activation: Activation
) -> None:
    x = 4 * random(4, 24, dtype=dtype)
    before = x.clone()
    alone, gated = KERNELS.activate(x, activation), KERNELS.gate(x, activation)
    assert torch.equal(x, before)
    gates, up = x.double().chunk(2, -1)
    for result, expected in (
        (alone, activated(x.double(), activation)),
        (gated, activated(gates, activation) * up),
    ):
        torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)


def test_an_unknown_activation_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"quick_gelu is not supported; supported: .*relu, silu"):
        Activation.named("quick_gelu")


def test_kv_write_touches_its_slots_only() -> None:
    cache = torch.full((2, 10, 2, 4), torch.nan)
    keys, values = random(3, 2, 4), random(3, 3, 4)[:, :2]
    KERNELS.kv_write(keys, values, cache, torch.tensor([9, 0, 4]))
    assert torch.equal(cache[0, [9, 0, 4]], keys)
    assert torch.equal(cache[1, [9, 0, 4]], values)
    assert cache[:, [1, 2, 3, 5, 6, 7, 8]].isnan().all()


@pytest.mark.parametrize("rows", [1, 2, 17])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear(rows: int, bias: bool, dtype: torch.dtype) -> None:
    x, weight = random(rows, 40, dtype=dtype), random(56, 40, dtype=dtype)
    offset = random(56, dtype=dtype) if bias else None
    expected = x.double() @ weight.double().T + (offset.double() if offset is not None else 0)
    result = KERNELS.pack_linear(weight, offset)(x)
    assert result.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 0.15
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=1e-2)


def test_every_operation_has_an_implementation_for_cpus() -> None:
    assert set(TABLE) == set(Op)
    assert all(select(op, Device("cpu")).name == "torch" for op in Op)


def test_every_operation_has_an_implementation_for_gpus() -> None:
    """In Triton, but for whole matrices, which cuBLAS multiplies."""
    names = {op: select(op, Device("cuda", (8, 0))).name for op in Op}
    assert names.pop(Op.PACK_LINEAR) == "torch"
    assert set(names.values()) == {"triton"}
    assert all(callable(getattr(kernels_for(Device("cuda", (9, 0))), op.value)) for op in Op)


def test_a_device_without_kernels_is_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedDeviceError, match=r"rms_norm runs on xpu; it runs on: cpu, cuda"
    ):
        kernels_for(Device("xpu"))


def test_an_old_gpu_is_refused_in_words() -> None:
    with pytest.raises(UnsupportedDeviceError) as refused:
        kernels_for(Device("cuda", (7, 5)))
    assert str(refused.value) == (
        "the GPU has compute capability 7.5, and the kernels need 8.0 (NVIDIA Ampere) or newer: "
        "use another GPU, or set CUDA_VISIBLE_DEVICES to nothing to compute on the CPU"
    )


def test_an_old_driver_is_refused_in_words() -> None:
    with pytest.raises(UnsupportedDeviceError) as refused:
        kernels_for(Device("cuda", (9, 0), driver=(12, 4), toolkit=(13, 0)))
    assert str(refused.value) == (
        "the GPU's driver knows CUDA 12.4, and CUDA 13.0 is needed: update the driver, or set "
        "CUDA_VISIBLE_DEVICES to nothing to compute on the CPU"
    )
    kernels_for(Device("cuda", (9, 0), driver=(13, 0), toolkit=(13, 1)))
