"""The forward pass of the Llama family over a ragged batch (Touvron et al., 2023, section 2.2)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastgen_kernels.activation import Activation
from fastgen_kernels.dispatch import Kernels
from fastgen_runtime.model_config import ModelConfig, RopeKind, RopeScaling
from fastgen_runtime.weights import Weights


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """T tokens of a step. wanted_rows: those whose hidden states or logits are asked for."""

    token_ids: Tensor
    positions: Tensor
    write_slots: Tensor
    attention_plan: Any
    wanted_rows: Tensor


class Model:
    """Weights and rotary tables; the cache belongs to whoever calls."""

    def __init__(
        self, config: ModelConfig, weights: Weights, kernels: Kernels, max_positions: int
    ) -> None:
        self._config = config
        self._weights = weights
        self._kernels = kernels
        dtype, device = weights.embedding.dtype, weights.embedding.device
        angles = torch.outer(torch.arange(max_positions).float(), rotary_frequencies(config))
        self._cos = angles.cos()[:, None].to(device, dtype)
        self._sin = angles.sin()[:, None].to(device, dtype)

    def forward(self, inputs: Inputs, cache: Tensor) -> Tensor:
        """Logits [wanted rows, vocabulary]; writes into cache [layers, 2, slots, kv heads, D]."""
        return self.lm_head(self.hidden(inputs, cache))

    def lm_head(self, hidden: Tensor) -> Tensor:
        """Logits [R, vocabulary] of hidden states [R, hidden size]."""
        return self._weights.lm_head(hidden)

    def hidden(self, inputs: Inputs, cache: Tensor) -> Tensor:
        """The last hidden states [wanted rows, hidden size], normalised; writes into the cache."""
        config, kernels, weights = self._config, self._kernels, self._weights
        cos, sin = self._cos[inputs.positions], self._sin[inputs.positions]
        num_tokens = len(inputs.token_ids)
        rotated_heads = config.num_heads + config.num_kv_heads
        residual = weights.embedding[inputs.token_ids]
        x = kernels.rms_norm(residual, weights.layers[0].input_norm, config.norm_eps)
        norms = [layer.input_norm for layer in weights.layers[1:]] + [weights.norm]
        for layer, layer_cache, next_norm in zip(weights.layers, cache, norms, strict=True):
            heads = layer.qkv(x).view(num_tokens, -1, config.head_dim)
            rotated = kernels.rotary(heads[:, :rotated_heads], cos, sin)
            kernels.kv_write(
                rotated[:, config.num_heads :],
                heads[:, rotated_heads:],
                layer_cache,
                inputs.write_slots,
            )
            x = kernels.attention(
                rotated[:, : config.num_heads], layer_cache, inputs.attention_plan
            )
            x, residual = kernels.add_rms_norm(
                layer.output(x), residual, layer.feed_forward_norm, config.norm_eps
            )
            x = layer.down(kernels.gate(layer.gate_up(x), Activation.SILU))
            x, residual = kernels.add_rms_norm(x, residual, next_norm, config.norm_eps)
        return x[inputs.wanted_rows]


def rotary_frequencies(config: ModelConfig) -> Tensor:
    """[head_dim / 2] angle per position of each pair, scaled as the model wants it."""
    exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    match scaling.kind:
        case RopeKind.DEFAULT:
            return frequencies
        case RopeKind.LINEAR:
            return frequencies / scaling.factor
        case RopeKind.FACTORS:
            return frequencies / torch.tensor(scaling.factors)
        case RopeKind.LLAMA3:
            return _llama3_frequencies(frequencies, scaling)


def _llama3_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Keeps short wavelengths, divides long ones by the factor, blends in between (Llama 3.1)."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_positions / wavelengths
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = share.clamp(0, 1)
    return frequencies * kept + frequencies / scaling.factor * (1 - kept)
