"""Norms, rotary embedding and activations in Triton, interpreted, against float64.

Bounds: 1e-5 in float32; elsewhere one rounding of the result, and of what Hugging Face's models
round on the way.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastgen_kernels.activation import Activation
from fastgen_kernels.torch_twins import activation as activation_twin
from fastgen_kernels.torch_twins import norm as norm_twin
from fastgen_kernels.torch_twins import rotary as rotary_twin
from fastgen_kernels.triton_kernels.activation import activate, gate
from fastgen_kernels.triton_kernels.norm import (
    LARGEST,
    add_layer_norm,
    add_rms_norm,
    layer_norm,
    norm_launch,
    rms_norm,
)
from fastgen_kernels.triton_kernels.rotary import rotary, rotary_launch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""Absolute and relative: two roundings to the nearest."""
TYPES = pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16", "fp16"])
FEW = settings(max_examples=20)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def assert_close(result: Tensor, expected: Tensor, dtype: torch.dtype, share: float = 1.0) -> None:
    assert result.dtype == dtype
    bound = BOUNDS[dtype] * share
    torch.testing.assert_close(result.double(), expected, atol=bound, rtol=bound, equal_nan=True)


def normed(x: Tensor, eps: float, *, centred: bool) -> Tensor:
    wide = x.double()
    if centred:
        wide = wide - wide.mean(-1, keepdim=True)
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()


@FEW
@given(
    rows=st.integers(0, 9),
    size=st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 576, 1023, 1025, 4097])),
    dtype=st.sampled_from(DTYPES),
    centred=st.booleans(),
    affine=st.booleans(),
    add=st.booleans(),
)
def test_norms(
    rows: int, size: int, dtype: torch.dtype, centred: bool, affine: bool, add: bool
) -> None:
    """Any size, and the sum with a residual, which is kept, rounded once."""
    x, residual = random(rows, size, dtype=dtype), random(rows, size, seed=1, dtype=dtype)
    weight = random(size, seed=2, dtype=dtype) if affine or not centred else None
    bias = random(size, seed=3, dtype=dtype) if affine and centred else None
    total = x + residual if add else x
    expected = normed(total, 1e-5, centred=centred)
    if weight is not None:
        expected = expected * weight.double()
    if bias is not None:
        expected = expected + bias.double()
    if centred:
        result = (
            add_layer_norm(x, residual, weight, bias, 1e-5)[0]
            if add
            else layer_norm(x, weight, bias, 1e-5)
        )
    else:
        result = add_rms_norm(x, residual, weight, 1e-5)[0] if add else rms_norm(x, weight, 1e-5)
    assert_close(result, expected, dtype, share=2.0)
    assert not add or torch.equal(residual, total)


@TYPES
def test_rms_norm_rounds_where_hugging_faces_models_do(dtype: torch.dtype) -> None:
    """The twin's bits: normalised, rounded, then scaled; FlagGems' issue 5009 scaled first."""
    x, weight = random(64, 96, dtype=dtype), random(96, seed=1, dtype=dtype)
    result, twin = rms_norm(x, weight, 1e-6), norm_twin.rms_norm(x, weight, 1e-6)
    if dtype == torch.float32:
        torch.testing.assert_close(result, twin, atol=1e-6, rtol=1e-6)
    else:
        different = (result != twin).float().mean()
        assert different < 0.001, "sums in another order may cross a rounding's edge"


def test_a_small_eps_counts() -> None:
    """vLLM's issue 57123: it must not be rounded away, nor be of another type than the sum."""
    x = torch.full((1, 64), 1e-4)
    expected = normed(x, 1e-8, centred=False)
    assert_close(rms_norm(x, torch.ones(64), 1e-8), expected, torch.float32)
    assert abs(float(expected[0, 0]) - 1) > 0.2


def test_a_mean_far_from_zero() -> None:
    x = random(5, 48) + 1000
    expected = normed(x, 1e-5, centred=True)
    assert_close(layer_norm(x, None, None, 1e-5), expected, torch.float32, share=100.0)


@pytest.mark.parametrize("heads", [1, 3])
def test_norm_of_heads_in_the_middle_of_a_packed_layer(heads: int) -> None:
    """As keys lie in fused queries, keys and values."""
    packed, weight = random(4, 8, 48), random(48)
    keys = packed[:, 2 : 2 + heads]
    result = rms_norm(keys, weight, 1e-5)
    assert result.is_contiguous()
    assert_close(result, normed(keys, 1e-5, centred=False) * weight.double(), torch.float32)


def test_a_row_with_a_nan_is_its_own_trouble() -> None:
    x, weight = random(3, 40), random(40)
    alone = rms_norm(x[2:], weight, 1e-5)
    x[1, 7] = torch.nan
    result = rms_norm(x, weight, 1e-5)
    assert result[1].isnan().all()
    assert torch.equal(result[2:], alone)
    assert result[0].isfinite().all()


def test_norms_refuse_what_they_cannot_hold() -> None:
    with pytest.raises(ValueError, match=rf"a norm over {LARGEST + 1} elements.* {LARGEST} at"):
        rms_norm(torch.zeros(1, LARGEST + 1), torch.ones(LARGEST + 1), 1e-5)
    strided = torch.zeros(2, 9)[:, :8]
    with pytest.raises(ValueError, match="residual must be contiguous"):
        add_rms_norm(torch.zeros(2, 8), strided, torch.ones(8), 1e-5)


@FEW
@given(
    num_tokens=st.integers(0, 4),
    heads=st.integers(1, 9),
    sizes=st.sampled_from(
        [(64, 32), (80, 16), (96, 48), (128, 64), (20, 5), (128, 32), (256, 128), (8, 1)]
    ),
    dtype=st.sampled_from(DTYPES),
    strided=st.booleans(),
)
def test_rotary(
    num_tokens: int, heads: int, sizes: tuple[int, int], dtype: torch.dtype, strided: bool
) -> None:
    """As complex numbers; dimensions that are not rotated are copied (vLLM's issue 43676)."""
    size, half = sizes
    packed = random(num_tokens, heads + 3, size, dtype=dtype)
    x = packed[:, 1 : heads + 1] if strided else packed[:, :heads].contiguous()
    angles = 3 * random(num_tokens, 1, half)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    wide = x.double()
    expected = torch.complex(wide[..., :half], wide[..., half : 2 * half]) * torch.complex(
        cos.double(), sin.double()
    )
    result = rotary(x, cos, sin)
    assert result.is_contiguous()
    turned = torch.cat([expected.real, expected.imag], -1)
    assert_close(result[..., : 2 * half], turned, dtype)
    assert torch.equal(result[..., 2 * half :], x[..., 2 * half :])
    twin = rotary_twin.rotary(x, cos, sin)
    torch.testing.assert_close(result, twin, atol=4 * BOUNDS[dtype], rtol=4 * BOUNDS[dtype])


def test_rotary_of_queries_and_keys_of_different_numbers() -> None:
    """ColossalAI's issue 6428: as views of one packed tensor, with their own strides and heads."""
    packed = random(5, 8 + 2 + 2, 64)
    cos, sin = random(5, 1, 32, seed=1), random(5, 1, 32, seed=2)
    queries, keys, _ = packed.split([8, 2, 2], dim=1)
    both = rotary(packed[:, :10], cos, sin)
    assert torch.equal(rotary(queries, cos, sin), both[:, :8])
    assert torch.equal(rotary(keys, cos, sin), both[:, 8:])


def activated(x: Tensor, activation: Activation) -> Tensor:
    match activation:
        case Activation.SILU:
            return x * torch.sigmoid(x)
        case Activation.GELU:
            return torch.nn.functional.gelu(x)
        case Activation.GELU_TANH:
            return torch.nn.functional.gelu(x, approximate="tanh")
        case Activation.RELU:
            return torch.relu(x)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@FEW
@given(
    rows=st.integers(0, 5),
    width=st.one_of(st.integers(1, 60), st.sampled_from([1023, 1024, 1025, 2049])),
    activation=st.sampled_from(Activation),
    dtype=st.sampled_from(DTYPES),
)
def test_activations_and_gates(
    rows: int, width: int, activation: Activation, dtype: torch.dtype
) -> None:
    x = 4 * random(rows, 2 * width, dtype=dtype)
    gates, up = x.double().chunk(2, -1)
    assert_close(activate(x, activation), activated(x.double(), activation), dtype)
    assert_close(gate(x, activation), activated(gates, activation) * up, dtype, share=2.0)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_activations_at_the_ends_of_their_range(activation: Activation) -> None:
    x = torch.tensor([[-1e30, -200.0, -20.0, -0.0, 0.0, 20.0, 200.0, 1e10, torch.nan]])
    result, expected = activate(x, activation), activation_twin.activate(x, activation)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_launches_do_not_depend_on_what_lies_behind_a_row() -> None:
    """Rows end where they end: what follows may be NaN, and stays as it is."""
    x, out = torch.full((4, 50), torch.nan), torch.full((4, 40), torch.nan)
    x[:3, :40] = random(3, 40)
    norm_launch(x[:3, :40], None, random(40), None, 1e-5, out[:3], centred=False).run()
    assert out[:3].isfinite().all()
    assert out[3].isnan().all()
    packed = torch.full((3, 2, 40), torch.nan)
    packed[:, 0] = random(3, 40, seed=1)
    turned = torch.full((4, 1, 40), torch.nan)
    rotary_launch(packed[:, :1], random(3, 1, 20), random(3, 1, 20, seed=1), turned[:3]).run()
    assert turned[:3].isfinite().all()
    assert turned[3].isnan().all()
