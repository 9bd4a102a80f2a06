"""The forward pass of a decoder over a ragged batch (Vaswani et al., 2017, section 3).

One for all architectures: what differs between them is in their configurations and weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastgen_kernels.dispatch import Kernels
from fastgen_runtime.device.rotary import angle_tables
from fastgen_runtime.device.weights import FeedForward, LayerWeights, Mixture, Norm, Weights
from fastgen_runtime.models.model_config import Block, ModelConfig, NormKind

Angles = tuple[Tensor, Tensor]
"""Cosines and sines, each [T, 1, rotated dimensions / 2]."""


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """T tokens of a step. wanted_rows: those whose hidden states or logits are asked for.

    attention_plans: one for each of the configuration's `distinct_windows`.
    """

    token_ids: Tensor
    positions: Tensor
    write_slots: Tensor
    attention_plans: Mapping[int | None, Any]
    wanted_rows: Tensor


def whole(partial_sums: Tensor) -> Tensor:
    """The sum over all ranks where there is one."""
    return partial_sums


class Model:
    """Weights and rotary tables; the cache belongs to whoever calls.

    config: of this rank's part. max_positions: tokens of the longest request, by which dynamic and
    longrope scaling choose their frequencies, once for all requests. add_up: the sum over all
    ranks of what each computed of a layer.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kernels: Kernels,
        max_positions: int,
        add_up: Callable[[Tensor], Tensor] = whole,
    ) -> None:
        self._config = config
        self._weights = weights
        self._kernels = kernels
        self._add_up = add_up
        self._rotated_heads = config.num_heads + config.num_kv_heads
        following = [layer.attention_norm for layer in weights.layers[1:]]
        self._next_norms: tuple[Norm | None, ...] = (*following, weights.norm)
        self._windows = tuple(map(config.window, range(config.num_layers)))
        dtype, device = weights.embedding.dtype, weights.embedding.device
        tables = angle_tables(config, max_positions)
        self._angles: Angles | None = tables and (
            tables[0][:, None].to(device, dtype),
            tables[1][:, None].to(device, dtype),
        )

    def forward(self, inputs: Inputs, cache: Tensor) -> Tensor:
        """Logits [wanted rows, vocabulary]; writes into cache [layers, 2, slots, kv heads, D]."""
        return self.lm_head(self.hidden(inputs, cache))

    def lm_head(self, hidden: Tensor) -> Tensor:
        """Logits [R, vocabulary] of hidden states [R, hidden size]."""
        if self._weights.project_out is not None:
            hidden = self._weights.project_out(hidden)
        return self._weights.lm_head(hidden)

    def hidden(self, inputs: Inputs, cache: Tensor) -> Tensor:
        """The last hidden states [wanted rows, hidden size], normalised; writes into the cache."""
        block, weights = self._config.block, self._weights
        residual = self._embed(inputs)
        x = residual
        if block is not Block.POST_NORM:
            x = self._norm(residual, weights.layers[0].attention_norm)
        angles = self._angles and (
            self._angles[0][inputs.positions],
            self._angles[1][inputs.positions],
        )
        for number, layer in enumerate(weights.layers):
            attended = self._attend(
                layer,
                x,
                angles,
                cache[number],
                inputs.write_slots,
                inputs.attention_plans[self._windows[number]],
            )
            if block is Block.PRE_NORM:
                x, residual = self._add_norm(
                    self._add_up(attended), residual, layer.feed_forward_norm
                )
                fed = self._add_up(self._feed_forward(layer.feed_forward, x))
                x, residual = self._add_norm(fed, residual, self._next_norms[number])
            elif block is Block.POST_NORM:
                x, _ = self._add_norm(self._add_up(attended), residual, layer.attention_norm)
                fed = self._add_up(self._feed_forward(layer.feed_forward, x))
                x, _ = self._add_norm(fed, x, layer.feed_forward_norm)
                residual = x
            else:
                if block is Block.PARALLEL_NORMS:
                    x = self._norm(residual, layer.feed_forward_norm)
                fed = self._feed_forward(layer.feed_forward, x).add_(attended)
                x, residual = self._add_norm(self._add_up(fed), residual, self._next_norms[number])
        return x[inputs.wanted_rows]

    def _embed(self, inputs: Inputs) -> Tensor:
        weights, offset = self._weights, self._config.position_offset
        x = weights.embedding[inputs.token_ids]
        if weights.project_in is not None:
            x = weights.project_in(x)
        if weights.positions is not None and offset is not None:
            x = x + weights.positions[inputs.positions + offset]
        return x

    def _attend(
        self,
        layer: LayerWeights,
        x: Tensor,
        angles: Angles | None,
        cache: Tensor,
        write_slots: Tensor,
        plan: Any,
    ) -> Tensor:
        """cache: the layer's, [2, slots, kv heads, D]."""
        config, kernels = self._config, self._kernels
        heads = layer.qkv(x).view(len(x), -1, config.head_dim)
        rotated, values = heads.tensor_split((self._rotated_heads,), dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = rotated.tensor_split((config.num_heads,), dim=1)
            rotated = torch.cat(
                (
                    kernels.rms_norm(queries, layer.query_norm, config.norm_eps),
                    kernels.rms_norm(keys, layer.key_norm, config.norm_eps),
                ),
                dim=1,
            )
        if angles is not None:
            rotated = kernels.rotary(rotated, *angles)
        queries, keys = rotated.tensor_split((config.num_heads,), dim=1)
        kernels.kv_write(keys, values, cache, write_slots)
        return layer.output(kernels.attention(queries, cache, plan))

    def _feed_forward(self, weights: FeedForward | Mixture, x: Tensor) -> Tensor:
        config, kernels = self._config, self._kernels
        if isinstance(weights, FeedForward):
            combine = kernels.gate if config.gated else kernels.activate
            return weights.down(combine(weights.up(x), config.activation))
        shares, indices = kernels.route(
            weights.router(x), weights.experts_per_token, weights.renormalise
        )
        return kernels.experts(x, shares, indices, weights.experts, config.activation)

    def _norm(self, x: Tensor, norm: Norm | None) -> Tensor:
        if norm is None:
            return x
        if self._config.norm is NormKind.LAYER:
            return self._kernels.layer_norm(x, norm.weight, norm.bias, self._config.norm_eps)
        return self._kernels.rms_norm(x, norm.weight, self._config.norm_eps)

    def _add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> tuple[Tensor, Tensor]:
        """The sum's norm and the sum, which overwrites residual."""
        if norm is None:
            residual.add_(x)
            return residual, residual
        if self._config.norm is NormKind.LAYER:
            return self._kernels.add_layer_norm(
                x, residual, norm.weight, norm.bias, self._config.norm_eps
            )
        return self._kernels.add_rms_norm(x, residual, norm.weight, self._config.norm_eps)
