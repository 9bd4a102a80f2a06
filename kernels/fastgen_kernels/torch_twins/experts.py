"""A mixture of experts (Shazeer et al., 2017, section 2; Jiang et al., 2024, section 2.1)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastgen_kernels.activation import Activation
from fastgen_kernels.torch_twins.activation import gate
from fastgen_kernels.torch_twins.linear import Linear, pack_linear


@dataclass(frozen=True, slots=True, eq=False)
class Expert:
    """gate_up: [n, H] to [n, 2 I], gates first; down: [n, I] to [n, H]."""

    gate_up: Linear
    down: Linear


def pack_experts(weights: Iterable[tuple[Tensor, Tensor]]) -> tuple[Expert, ...]:
    """Layers of each expert's gate_up [2 I, H] and down [H, I].

    One expert's are taken at a time, and the caller need not keep them.
    """
    return tuple(
        Expert(pack_linear(gate_up, None), pack_linear(down, None)) for gate_up, down in weights
    )


def route(router_logits: Tensor, top_k: int, renormalise: bool) -> tuple[Tensor, Tensor]:
    """Weights [T, k] in float32 and indices [T, k] of each token's likeliest experts.

    Probabilities are over all experts of router_logits [T, experts]; `renormalise` makes those of
    the chosen ones add up to 1.
    """
    weights, indices = torch.softmax(router_logits.float(), -1).topk(top_k)
    if renormalise:
        weights /= weights.sum(-1, keepdim=True)
    return weights, indices


def experts(
    x: Tensor,
    weights: Tensor,
    indices: Tensor,
    experts: Sequence[Expert],
    activation: Activation = Activation.SILU,
) -> Tensor:
    """Sum of the outputs of each token's experts for x [T, H], by weights; indices [T, k].

    Tokens are sorted by expert, so that each expert computes once, over its tokens only. The sum is
    in float32 and in the order of `indices`: it does not depend on other tokens.
    """
    num_tokens, top_k = indices.shape
    chosen = indices.flatten()
    order = chosen.argsort(stable=True)
    gathered = x.index_select(0, order // top_k)
    counts = chosen.bincount(minlength=len(experts)).tolist()
    outputs = [
        expert.down(gate(expert.gate_up(part), activation))
        for expert, part in zip(experts, torch.split(gathered, counts), strict=True)
        if len(part)
    ]
    by_token = torch.cat(outputs).index_select(0, order.argsort()).view(num_tokens, top_k, -1)
    return torch.bmm(weights[:, None], by_token.float())[:, 0].to(x.dtype)
