"""The forward pass of the Llama family over a ragged batch (Touvron et al., 2023, section 2.2)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastgen_kernels.activation import Activation
from fastgen_kernels.dispatch import Kernels
from fastgen_runtime.model_config import ModelConfig
from fastgen_runtime.rotary import attention_factor, frequencies
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
        rope = config.rope_scaling
        per_position = frequencies(config.head_dim, config.rope_theta, rope, max_positions)
        angles = torch.outer(torch.arange(max_positions).float(), per_position)
        self._cos = (angles.cos() * attention_factor(rope))[:, None].to(device, dtype)
        self._sin = (angles.sin() * attention_factor(rope))[:, None].to(device, dtype)

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
