"""Weights of 8 bits: how near they come, and their linear layers in Triton against float64.

Bounds: what is computed with is the 8-bit weight exactly, so that the layer is as exact as one of
the type of its inputs: 1e-5 in float32, one rounding of the result in bfloat16 and float16.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastgen_kernels.torch_twins import quantized as twin
from fastgen_kernels.torch_twins.quantized import (
    GROUP_SIZES,
    QuantizedWeight,
    WeightFormat,
    pack_quantized,
    quantize,
)
from fastgen_kernels.triton_kernels import quantized as kernel
from fastgen_kernels.triton_kernels.quantized import check_format, linear_launches, linear_tiles

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
FORMS = pytest.mark.parametrize("form", WeightFormat)
GROUPS = st.sampled_from([None, *GROUP_SIZES])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def computed(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, num_sms: int) -> Tensor:
    out = torch.full((len(x), len(weight.values)), torch.nan, dtype=x.dtype)
    for launch in linear_launches(x, weight, bias, out, num_sms):
        launch.run()
    return out


@settings(max_examples=40)
@given(
    form=st.sampled_from(WeightFormat),
    outputs=st.integers(1, 20),
    inputs=st.integers(1, 300),
    group=GROUPS,
    spread=st.sampled_from([1e-30, 1.0, 1e30]),
)
def test_rounds_to_the_nearest_of_256(
    form: WeightFormat, outputs: int, inputs: int, group: int | None, spread: float
) -> None:
    """int8: half a step of the group's largest / 127. fp8: 2^-4 of the value, or of the smallest
    normal one, 2^-6, which stands for the largest / 448 2^-6.
    """
    weight = random(outputs, inputs) * spread
    weight[0] = 0
    result = quantize(weight, form, group)
    size = group or inputs
    assert result.scales.shape == (outputs, -(-inputs // size))
    scales = result.scales.double().repeat_interleave(size, 1)[:, :inputs]
    off = (result.dequantize().double() - weight.double()).abs()
    step = (
        0.5 * scales
        if form is WeightFormat.INT8
        else torch.maximum(weight.double().abs() / 16, scales * 2.0**-10)
    )
    assert (off <= step * (1 + 1e-5)).all()
    assert result.dequantize().isfinite().all()


@FORMS
def test_the_largest_is_exact(form: WeightFormat) -> None:
    """Dividing may round beyond what 8 bits hold: it must not wrap around or become NaN."""
    weight = random(500, 3)
    kept = quantize(weight, form).dequantize()
    largest = weight.abs().argmax(1, keepdim=True)
    torch.testing.assert_close(
        kept.gather(1, largest), weight.gather(1, largest), atol=0, rtol=1e-6
    )


@FORMS
@pytest.mark.parametrize("at_once", [1, 700])
def test_a_layer_may_be_widened_in_parts(
    form: WeightFormat, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One output at a time, and several with a rest."""
    weight, bias, x = random(11, 100), random(11), random(3, 100)
    whole = quantize(weight, form, 32)
    expected = pack_quantized(whole, bias)(x)
    monkeypatch.setattr(twin, "WIDE_WEIGHTS", at_once)
    parts = quantize(weight, form, 32)
    assert torch.equal(parts.values.float(), whole.values.float())
    assert torch.equal(parts.scales, whole.scales)
    torch.testing.assert_close(pack_quantized(parts, bias)(x), expected, atol=1e-5, rtol=0)


def test_groups_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="a group of 48 inputs; possible: 32, 64, 128, 256"):
        quantize(torch.zeros(2, 96), WeightFormat.INT8, 48)


@settings(max_examples=25)
@given(
    form=st.sampled_from(WeightFormat),
    num_tokens=st.sampled_from([0, 1, 3, 16, 17, 65]),
    inputs=st.sampled_from([1, 40, 127, 128, 129, 300, 640]),
    outputs=st.sampled_from([1, 56, 64, 65, 130]),
    group=GROUPS,
    dtype=st.sampled_from(list(BOUNDS)),
    num_sms=st.sampled_from([1, 132]),
    biased=st.booleans(),
)
def test_layer_against_float64(
    form: WeightFormat,
    num_tokens: int,
    inputs: int,
    outputs: int,
    group: int | None,
    dtype: torch.dtype,
    num_sms: int,
    biased: bool,
) -> None:
    """Inputs that are no multiple of tile, split or group (SGLang's issue 39626, FBGEMM's 6159)."""
    x = random(num_tokens, inputs).to(dtype)
    weight = quantize(random(outputs, inputs, seed=1) / inputs**0.5, form, group)
    bias = random(outputs).to(dtype) if biased else None
    expected = x.double() @ weight.dequantize().double().T
    if bias is not None:
        expected = expected + bias.double()
    for result in (computed(x, weight, bias, num_sms), pack_quantized(weight, bias)(x)):
        assert result.dtype == dtype
        bound = BOUNDS[dtype]
        torch.testing.assert_close(result.double(), expected, atol=bound, rtol=bound)


def test_packed_layers_compute_what_launches_do() -> None:
    weight = quantize(random(24, 70), WeightFormat.INT8)
    x = random(5, 80)[:, :70]
    assert torch.equal(kernel.pack_quantized(weight, None)(x), computed(x, weight, None, 1))


@FORMS
def test_constants_add_up(form: WeightFormat) -> None:
    """Over 8192 inputs (Triton's issue 5065, DeepGEMM's 37): the sum is not kept in few bits."""
    x = torch.ones(1, 8192, dtype=torch.bfloat16)
    weight = quantize(torch.full((16, 8192), 0.75), form, 128)
    assert torch.equal(
        computed(x, weight, None, 132), torch.full((1, 16), 6144.0, dtype=torch.bfloat16)
    )


def test_a_nan_stays_in_its_token() -> None:
    x, weight = random(20, 70), quantize(random(24, 70), WeightFormat.INT8, 32)
    expected = computed(x, weight, None, 132)
    x[3, 69] = torch.nan
    result = computed(x, weight, None, 132)
    assert result[3].isnan().all()
    rest = [row for row in range(20) if row != 3]
    assert torch.equal(result[rest], expected[rest])


@given(
    st.integers(1, 5000),
    st.integers(1, 30_000),
    st.integers(1, 200_000),
    GROUPS,
    st.sampled_from([2, 4]),
    st.integers(1, 160),
)
def test_tiles(
    num_tokens: int, inputs: int, outputs: int, group: int | None, item: int, num_sms: int
) -> None:
    """A tile's inputs share their scale; splits begin with a tile, cover all and none is empty."""
    tiles = linear_tiles(num_tokens, inputs, outputs, group, item, num_sms)
    assert (group or tiles.k) % tiles.k == 0
    assert tiles.split % tiles.k == 0
    splits = -(-inputs // tiles.split)
    assert splits * tiles.split >= inputs > (splits - 1) * tiles.split
    assert splits <= kernel.MOST_SPLITS


@pytest.mark.parametrize("capability", [(8, 0), (8, 6)])
def test_fp8_is_refused_where_the_gpu_has_none(capability: tuple[int, int]) -> None:
    with pytest.raises(
        ValueError, match=r"fp8 weights need .* 8\.9 or newer, .*has 8\..: use int8"
    ):
        check_format(torch.float8_e4m3fn, capability)
    check_format(torch.int8, capability)


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0), None])
def test_fp8_runs_where_the_gpu_has_it(capability: tuple[int, int] | None) -> None:
    check_format(torch.float8_e4m3fn, capability)
