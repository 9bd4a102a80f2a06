"""The other torch twins against float64, and the table that chooses them."""

import pytest
import torch

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


@DTYPES
def test_silu_mul(dtype: torch.dtype, tolerance: float) -> None:
    gate_up = random(4, 24, dtype=dtype)
    gate, up = gate_up.double().chunk(2, -1)
    expected = gate * torch.sigmoid(gate) * up
    torch.testing.assert_close(
        KERNELS.silu_mul(gate_up).double(), expected, atol=tolerance, rtol=tolerance
    )


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


def test_a_device_without_kernels_is_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedDeviceError, match=r"rms_norm runs on cuda 9\.0; it runs on: cpu"
    ):
        kernels_for(Device("cuda", (9, 0)))
