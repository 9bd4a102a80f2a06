"""Mixture of experts in Triton, interpreted, against a loop over tokens in float64.

Bounds: 1e-5 in float32. In bfloat16 and float16 the outputs of both layers and the activation are
rounded, so that sums of values near 1 are off by a few of their roundings.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastgen_kernels.activation import Activation
from fastgen_kernels.torch_twins import experts as twin
from fastgen_kernels.triton_kernels.experts import expert_launches, expert_tiles, pack_experts
from fastgen_kernels.triton_kernels.experts import experts as triton_experts
from fastgen_kernels.triton_kernels.route import route

HIDDEN, INNER = 40, 72
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
FEW = settings(max_examples=15)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights_of(count: int, seed: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    gate_up = random(count, 2 * INNER, HIDDEN, seed=seed) / HIDDEN**0.5
    down = random(count, HIDDEN, INNER, seed=seed + 1) / INNER**0.5
    return list(zip(gate_up.to(dtype), down.to(dtype), strict=True))


def looped(
    x: Tensor, weights: Tensor, indices: Tensor, experts: list[tuple[Tensor, Tensor]]
) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(len(x)):
        for weight, expert in zip(weights[token], indices[token].tolist(), strict=True):
            gate_up, down = experts[expert]
            gates, up = (gate_up.double() @ x[token].double()).chunk(2)
            out[token] += weight.double() * (down.double() @ (gates * gates.sigmoid() * up))
    return out


@FEW
@given(
    num_tokens=st.sampled_from([1, 2, 7, 16, 17, 40]),
    count=st.integers(1, 9),
    top_k=st.integers(1, 4),
    dtype=st.sampled_from(list(BOUNDS)),
    skewed=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_a_loop_over_tokens(
    num_tokens: int, count: int, top_k: int, dtype: torch.dtype, skewed: bool, seed: int
) -> None:
    """Any split of the tokens: skewed, one expert gets all and others none."""
    top_k = min(top_k, count)
    x = random(num_tokens, HIDDEN, seed=seed).to(dtype)
    experts = weights_of(count, seed, dtype)
    logits = random(num_tokens, count, seed=seed + 2)
    logits[:, -1] += 100 * skewed
    weights, indices = twin.route(logits, top_k, True)
    result = triton_experts(x, weights, indices, pack_experts(experts))
    assert result.dtype == dtype
    expected = looped(x, weights, indices, experts)
    torch.testing.assert_close(result.double(), expected, atol=BOUNDS[dtype], rtol=BOUNDS[dtype])


@pytest.mark.parametrize("num_tokens", [40, 300])
def test_tiles_of_many_tokens(num_tokens: int) -> None:
    """Of 64 and 128 rows, the last ones of an expert partly filled."""
    assert {expert_tiles(40 * 2, 2, 4).m, expert_tiles(300 * 2, 2, 4).m} == {64, 128}
    x, experts = random(num_tokens, HIDDEN, seed=3), weights_of(2, 4, torch.float32)
    weights, indices = twin.route(random(num_tokens, 2, seed=5), 2, False)
    indices[: num_tokens // 3] = 1
    result = triton_experts(x, weights, indices, pack_experts(experts))
    expected = twin.experts(x, weights, indices, twin.pack_experts(experts))
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("activation", Activation)
def test_activations_of_experts(activation: Activation) -> None:
    x, experts = random(5, HIDDEN, seed=6), weights_of(3, 7, torch.float32)
    weights, indices = twin.route(random(5, 3, seed=8), 2, True)
    result = triton_experts(x, weights, indices, pack_experts(experts), activation)
    expected = twin.experts(x, weights, indices, twin.pack_experts(experts), activation)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)


def test_a_token_alone_is_as_in_a_batch() -> None:
    """FlashAttention's issue 1897 for experts. Here numpy's products differ by where a row is."""
    x, experts = random(12, HIDDEN, seed=9), pack_experts(weights_of(4, 10, torch.float32))
    weights, indices = route(random(12, 4, seed=11), 2, True)
    together = triton_experts(x, weights, indices, experts)
    for row in (0, 5, 11):
        part = slice(row, row + 1)
        alone = triton_experts(x[part], weights[part], indices[part], experts)
        torch.testing.assert_close(alone[0], together[row], atol=1e-6, rtol=0)


def test_the_expert_that_nobody_chose_is_not_read() -> None:
    x, experts = random(6, HIDDEN, seed=12), weights_of(3, 13, torch.float32)
    weights, indices = torch.ones(6, 2), torch.tensor([[0, 2], [2, 0]] * 3)
    experts[1][0].fill_(torch.nan)
    experts[1][1].fill_(torch.nan)
    assert triton_experts(x, weights, indices, pack_experts(experts)).isfinite().all()


def test_scratch_is_written_before_it_is_read() -> None:
    x, experts = random(9, HIDDEN, seed=14), pack_experts(weights_of(3, 15, torch.float32))
    weights, indices = route(random(9, 3, seed=16), 2, True)
    out = torch.full((9, HIDDEN), torch.nan)
    for launch in expert_launches(x, weights, indices, experts, Activation.SILU, out):
        targets = [launch.arguments["out"]] if "out" in launch.arguments else []
        for target in targets:
            target.fill_(torch.nan)
        launch.run()
        assert all(target.isfinite().all() for target in targets)


def test_no_tokens() -> None:
    experts = pack_experts(weights_of(2, 17, torch.float32))
    empty = torch.empty(0, 2), torch.empty(0, 2, dtype=torch.int64)
    assert triton_experts(torch.empty(0, HIDDEN), *empty, experts).shape == (0, HIDDEN)
    weights, indices = route(torch.empty(0, 5), 2, True)
    assert weights.shape == indices.shape == (0, 2)


@FEW
@given(
    num_tokens=st.integers(1, 20),
    count=st.sampled_from([1, 2, 7, 8, 60, 128, 130]),
    top_k=st.integers(1, 8),
    renormalise=st.booleans(),
    dtype=st.sampled_from(list(BOUNDS)),
    seed=st.integers(0, 1000),
)
def test_routes_as_float64_does(
    num_tokens: int, count: int, top_k: int, renormalise: bool, dtype: torch.dtype, seed: int
) -> None:
    """Within 1e-6; among equals, which bfloat16 makes many of, the smaller expert."""
    top_k = min(top_k, count)
    logits = (3 * random(num_tokens, count, seed=seed)).to(dtype)
    weights, indices = route(logits, top_k, renormalise)
    shares = torch.softmax(logits.double(), -1)
    order = torch.sort(logits.double(), dim=-1, descending=True, stable=True).indices[:, :top_k]
    assert torch.equal(indices, order)
    expected = shares.gather(1, order)
    if renormalise:
        expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN")
def test_a_row_of_no_numbers_gets_experts_that_exist() -> None:
    logits = random(3, 6, seed=18)
    logits[1] = torch.nan
    weights, indices = route(logits, 2, True)
    assert weights[1].isnan().any()
    assert ((indices >= 0) & (indices < 6)).all()
    assert torch.equal(indices[::2], route(logits[::2], 2, True)[1])
