"""Puts a checkpoint's tensors in the form that the model computes with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastgen_kernels.dispatch import Kernels
from fastgen_kernels.torch_twins.linear import Linear
from fastgen_kernels.torch_twins.quantized import WeightFormat
from fastgen_runtime.device.tensor_reader import Rows
from fastgen_runtime.device.weight_reader import Part, WeightReader
from fastgen_runtime.engine.cores import give_back_memory
from fastgen_runtime.models.architectures import tensor_names
from fastgen_runtime.models.hf_folder import StoredTensor
from fastgen_runtime.models.model_config import Block, Experts, ModelConfig, invalid
from fastgen_runtime.models.shard import Shard
from fastgen_runtime.models.tensor_names import ExpertNames, QKVOrder, TensorNames

WHOLE = Shard()


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """weight, bias: [H]; bias is None for norms without."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class FeedForward:
    """up: [T, H] to [T, I], or to gates and values [T, 2 I] in one; down: [T, I] to [T, H]."""

    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """router: [T, H] to [T, experts], of which `experts_per_token` compute each token.

    experts: as the kernels packed them.
    """

    router: Linear
    experts: Any
    experts_per_token: int
    renormalise: bool


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """qkv: queries, keys and values in one layer. query_norm, key_norm: [D].

    feed_forward_norm: None where attention and feed-forward share a norm.
    """

    attention_norm: Norm
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    feed_forward_norm: Norm | None
    feed_forward: FeedForward | Mixture


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """positions: [max positions + offset, H]. project_in, project_out: to and from H."""

    embedding: Tensor
    positions: Tensor | None
    project_in: Linear | None
    layers: tuple[LayerWeights, ...]
    norm: Norm | None
    project_out: Linear | None
    lm_head: Linear


def load_weights(
    config: ModelConfig,
    tensors: Mapping[str, StoredTensor],
    kernels: Kernels,
    dtype: torch.dtype,
    device: torch.device,
    shard: Shard = WHOLE,
    form: WeightFormat | None = None,
) -> Weights:
    """Reads every tensor once, or this shard's part of it; config: the whole model's.

    form: what the weights of attention, feed-forward and output layers are rounded to; None: not at
    all. A tied embedding is not rounded.
    Raises ModelError naming what is missing, too many or misshapen.
    """
    names = tensor_names(config)
    reader = WeightReader(tensors, names, kernels, dtype, device)
    loader = _Loader(config, names, reader, kernels, shard, form)
    layers = tuple(loader.layer(number) for number in range(config.num_layers))
    give_back_memory()
    hidden, base = config.hidden_size, reader.base
    width = config.embedding_size or hidden
    embedding = reader.tensor(f"{base}{names.embedding}.weight", (config.vocab_size, width))
    positions = project_in = project_out = None
    if config.position_offset is not None:
        rows = config.max_positions + config.position_offset
        positions = reader.tensor(f"{base}{names.positions}.weight", (rows, hidden))
    if width != hidden:
        project_in = reader.linear([Part(base + names.project_in, hidden)], width)
        project_out = reader.linear([Part(base + names.project_out, width)], hidden)
    norm = loader.norm(base + names.final_norm) if config.final_norm else None
    if config.tied_embeddings:
        reader.unread.discard(f"{reader.head}.weight")  # a copy of the embedding, where stored
        lm_head = reader.packed(embedding, None, form)
    else:
        head = Part(reader.head, config.vocab_size)
        lm_head = reader.linear([head], width, bias=config.head_bias, form=form)
    if reader.unread:
        raise invalid(
            f"the checkpoint holds tensors that this model has no place for: "
            f"{', '.join(sorted(reader.unread)[:3])}"
        )
    give_back_memory()
    return Weights(embedding, positions, project_in, layers, norm, project_out, lm_head)


class _Loader:
    """Builds a shard's layers of what a reader hands out."""

    def __init__(
        self,
        config: ModelConfig,
        names: TensorNames,
        reader: WeightReader,
        kernels: Kernels,
        shard: Shard,
        form: WeightFormat | None,
    ) -> None:
        self._config = config
        self._kernels = kernels
        self._names = names
        self._reader = reader
        self._shard = shard
        self._form = form
        self._first_rank = shard.rank == 0

    def layer(self, number: int) -> LayerWeights:
        config, names, reader = self._config, self._names, self._reader
        prefix = f"{reader.base}{names.layers}{number}."
        norms: list[Tensor | None] = [None, None]
        if config.query_key_norm:
            norms = [
                reader.tensor(f"{prefix}{name}.weight", (config.head_dim,))
                for name in (names.query_norm, names.key_norm)
            ]
        shared_norm = config.block is Block.PARALLEL
        experts = config.experts if config.experts and config.experts.layers[number] else None
        return LayerWeights(
            attention_norm=self.norm(prefix + names.attention_norm),
            qkv=self._qkv(prefix),
            query_norm=norms[0],
            key_norm=norms[1],
            output=self._output(prefix),
            feed_forward_norm=None if shared_norm else self.norm(prefix + names.feed_forward_norm),
            feed_forward=self._mixture(prefix, experts, names.experts)
            if experts and names.experts
            else self._feed_forward(prefix),
        )

    def norm(self, name: str) -> Norm:
        shape = (self._config.hidden_size,)
        if not self._config.norm_affine:
            return Norm(self._reader.ones(shape), None)
        weight = self._reader.tensor(f"{name}.weight", shape)
        bias = self._reader.tensor(f"{name}.bias", shape) if self._config.norm_bias else None
        return Norm(weight, bias)

    def _qkv(self, prefix: str) -> Linear:
        config, names = self._config, [prefix + name for name in self._names.qkv]
        rows = qkv_rows(config, self._names.qkv_order, self._shard)
        counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        sizes = [count * config.head_dim for count in counts]
        if len(names) == 1:
            parts = [Part(names[0], sum(sizes), np.concatenate(rows))]
        else:
            starts = (0, sizes[0], sizes[0] + sizes[1])
            parts = [
                Part(name, size, some - start)
                for name, size, some, start in zip(names, sizes, rows, starts, strict=True)
            ]
        return self._reader.linear(parts, config.hidden_size, bias=config.qkv_bias, form=self._form)

    def _output(self, prefix: str) -> Linear:
        config = self._config
        heads = self._shard.part(config.num_heads)
        return self._reader.linear(
            [Part(prefix + self._names.output, config.hidden_size)],
            config.num_heads * config.head_dim,
            bias=config.output_bias,
            columns=range(heads.start * config.head_dim, heads.stop * config.head_dim),
            add_bias=self._first_rank,
            form=self._form,
        )

    def _feed_forward(self, prefix: str) -> FeedForward:
        config = self._config
        inner = config.intermediate_size
        part = self._shard.part(inner)
        rows = np.array(part)
        names = [prefix + name for name in self._names.up]
        if config.gated and len(names) == 1:
            ups = [Part(names[0], 2 * inner, np.concatenate([rows, inner + rows]))]
        else:
            ups = [Part(name, inner, rows) for name in names]
        return FeedForward(
            self._reader.linear(ups, config.hidden_size, bias=config.mlp_bias, form=self._form),
            self._reader.linear(
                [Part(prefix + self._names.down, config.hidden_size)],
                inner,
                bias=config.mlp_bias,
                columns=part,
                add_bias=self._first_rank,
                form=self._form,
            ),
        )

    def _mixture(self, prefix: str, config: Experts, names: ExpertNames) -> Mixture:
        reader = self._reader
        hidden, inner = self._config.hidden_size, config.intermediate_size
        part = self._shard.part(inner)
        rows = np.array(part)
        stacked = prefix + names.stacked
        if f"{stacked}.gate_up_proj" in reader:
            router = prefix + names.stacked_router
            both = np.concatenate([rows, inner + rows])
            shape = (config.count, 2 * inner, hidden)
            ups = reader.stacked(f"{stacked}.gate_up_proj", shape, both)
            shape = (config.count, hidden, inner)
            downs = reader.stacked(f"{stacked}.down_proj", shape, columns=part)
        else:
            router = prefix + names.router
            each = [prefix + names.each.format(number) for number in range(config.count)]
            ups = (
                reader.weight(
                    [Part(f"{one}.{name}", inner, rows) for name in (names.gate, names.up)], hidden
                )
                for one in each
            )
            downs = (
                reader.weight([Part(f"{one}.{names.down}", hidden)], inner, part) for one in each
            )
        return Mixture(
            reader.linear([Part(router, config.count)], hidden),
            self._kernels.pack_experts(zip(ups, downs, strict=True)),
            config.per_token,
            config.renormalise,
        )


def qkv_rows(config: ModelConfig, order: QKVOrder, shard: Shard) -> tuple[Rows, Rows, Rows]:
    """Rows of the shard's queries, keys and values in a layer that holds those of all heads."""
    queries = np.array(shard.part(config.num_heads))
    groups = np.array(shard.part(config.num_kv_heads))
    per_group = config.num_heads // config.num_kv_heads
    match order:
        case QKVOrder.BLOCKS:
            keys = config.num_heads + groups
            values = keys + config.num_kv_heads
        case QKVOrder.GROUPS:
            queries = queries // per_group * (per_group + 2) + queries % per_group
            keys = groups * (per_group + 2) + per_group
            values = keys + 1
    return _rows(queries, config), _rows(keys, config), _rows(values, config)


def _rows(heads: Rows, config: ModelConfig) -> Rows:
    within: Rows = heads[:, None] * config.head_dim + np.arange(config.head_dim)
    return within.reshape(-1)
