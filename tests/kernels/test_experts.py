"""Mixture of experts against a loop over tokens in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastgen_kernels.activation import Activation
from fastgen_kernels.dispatch import Device, kernels_for
from fastgen_kernels.torch_twins.experts import Expert

KERNELS = kernels_for(Device("cpu"))
HIDDEN, INNER = 24, 40


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights_of(num_experts: int, seed: int) -> tuple[Tensor, Tensor]:
    gate_up = random(num_experts, 2 * INNER, HIDDEN, seed=seed) / HIDDEN**0.5
    return gate_up, random(num_experts, HIDDEN, INNER, seed=seed + 1) / INNER**0.5


def packed(gate_up: Tensor, down: Tensor) -> list[Expert]:
    return [
        Expert(KERNELS.pack_linear(gate_up[expert], None), KERNELS.pack_linear(down[expert], None))
        for expert in range(len(down))
    ]


def looped(x: Tensor, weights: Tensor, indices: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """One token and one expert at a time."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(len(x)):
        for weight, expert in zip(weights[token], indices[token].tolist(), strict=True):
            gates, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            inner = gates * torch.sigmoid(gates) * up
            out[token] += weight.double() * (down[expert].double() @ inner)
    return out


def assert_equal(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=0)


@settings(max_examples=40)
@given(
    num_tokens=st.integers(1, 30),
    num_experts=st.integers(1, 9),
    top_k=st.integers(1, 4),
    renormalise=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_a_loop_over_tokens(
    num_tokens: int, num_experts: int, top_k: int, renormalise: bool, seed: int
) -> None:
    """Some experts get many tokens, some none."""
    top_k = min(top_k, num_experts)
    x = random(num_tokens, HIDDEN, seed=seed)
    gate_up, down = weights_of(num_experts, seed)
    logits = 3 * random(num_tokens, num_experts, seed=seed + 2)
    weights, indices = KERNELS.route(logits, top_k, renormalise)
    result = KERNELS.experts(x, weights, indices, packed(gate_up, down))
    assert_equal(result, looped(x, weights, indices, gate_up, down))


@pytest.mark.parametrize("favourite", [0, 2, 4])
def test_one_expert_gets_every_token(favourite: int) -> None:
    x, (gate_up, down) = random(17, HIDDEN, seed=1), weights_of(5, seed=2)
    weights, indices = torch.full((17, 1), 0.7), torch.full((17, 1), favourite)
    result = KERNELS.experts(x, weights, indices, packed(gate_up, down))
    assert_equal(result, looped(x, weights, indices, gate_up, down))


def test_an_expert_without_tokens_does_not_compute() -> None:
    experts = packed(*weights_of(3, seed=2))

    def fail(_: Tensor) -> Tensor:
        raise AssertionError

    experts[1] = Expert(fail, fail)
    weights, indices = torch.ones(4, 2), torch.tensor([[0, 2], [2, 0], [0, 2], [2, 0]])
    assert KERNELS.experts(random(4, HIDDEN, seed=3), weights, indices, experts).isfinite().all()


def test_a_token_alone_is_as_in_a_batch() -> None:
    x, experts = random(12, HIDDEN, seed=5), packed(*weights_of(6, seed=6))
    weights, indices = KERNELS.route(random(12, 6, seed=7), 2, True)
    together = KERNELS.experts(x, weights, indices, experts)
    for row in range(12):
        part = slice(row, row + 1)
        alone = KERNELS.experts(x[part], weights[part], indices[part], experts)
        torch.testing.assert_close(alone[0], together[row], atol=1e-6, rtol=0)


def test_experts_keep_their_dtype_and_activation() -> None:
    gate_up, down = weights_of(4, seed=8)
    experts = packed(gate_up.bfloat16(), down.bfloat16())
    x = random(9, HIDDEN, seed=9)
    weights, indices = KERNELS.route(random(9, 4, seed=10), 2, True)
    silu = KERNELS.experts(x.bfloat16(), weights, indices, experts)
    assert silu.dtype == torch.bfloat16
    torch.testing.assert_close(
        silu.double(), looped(x, weights, indices, gate_up, down), atol=3e-2, rtol=3e-2
    )
    relu = KERNELS.experts(x.bfloat16(), weights, indices, experts, Activation.RELU)
    assert not torch.equal(silu, relu)


@pytest.mark.parametrize("renormalise", [False, True])
def test_routes_to_the_likeliest(renormalise: bool) -> None:
    logits = 20 * random(50, 7, seed=11)
    weights, indices = KERNELS.route(logits, 3, renormalise)
    assert weights.dtype == torch.float32
    probabilities = torch.softmax(logits.double(), -1)
    expected, order = probabilities.sort(descending=True)
    assert torch.equal(indices, order[:, :3])
    chosen = expected[:, :3]
    if renormalise:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    assert_equal(weights, chosen)
