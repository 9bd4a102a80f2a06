"""Puts a checkpoint's tensors in the form that the model computes with."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fastgen_kernels.dispatch import Kernels
from fastgen_kernels.torch_twins.linear import Linear
from fastgen_runtime.hf_folder import StoredTensor
from fastgen_runtime.model_config import ModelConfig, invalid
from fastgen_runtime.tensor_reader import read_joined


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """qkv: queries, keys and values in one layer; gate_up: both halves of the gated layer."""

    input_norm: Tensor
    qkv: Linear
    output: Linear
    feed_forward_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    lm_head: Linear


def load_weights(
    config: ModelConfig,
    tensors: Mapping[str, StoredTensor],
    kernels: Kernels,
    dtype: torch.dtype,
    device: torch.device,
) -> Weights:
    """Reads every tensor once; raises ModelError naming what is missing, too many or misshapen."""
    reader = _Reader(tensors, kernels, dtype, device)
    hidden, heads = config.hidden_size, config.head_dim * config.num_heads
    kv_heads, inner = config.head_dim * config.num_kv_heads, config.intermediate_size
    layers = []
    for number in range(config.num_layers):
        prefix = f"model.layers.{number}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = [(f"{attention}.{part}_proj", size) for part, size in
               (("q", heads), ("k", kv_heads), ("v", kv_heads))]  # fmt: skip
        gate_up = [(f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)]
        layers.append(
            LayerWeights(
                reader.tensor(f"{prefix}.input_layernorm.weight", (hidden,)),
                reader.linear(qkv, hidden, bias=config.attention_bias),
                reader.linear([(f"{attention}.o_proj", hidden)], heads, bias=config.attention_bias),
                reader.tensor(f"{prefix}.post_attention_layernorm.weight", (hidden,)),
                reader.linear(gate_up, hidden, bias=config.mlp_bias),
                reader.linear([(f"{mlp}.down_proj", hidden)], inner, bias=config.mlp_bias),
            )
        )
    embedding = reader.tensor("model.embed_tokens.weight", (config.vocab_size, hidden))
    norm = reader.tensor("model.norm.weight", (hidden,))
    if config.tied_embeddings:
        reader.unread.discard("lm_head.weight")  # a copy of the embedding, where it is stored
        lm_head = kernels.pack_linear(embedding, None)
    else:
        lm_head = reader.linear([("lm_head", config.vocab_size)], hidden, bias=False)
    if reader.unread:
        raise invalid(
            f"the checkpoint holds tensors that this model has no place for: "
            f"{', '.join(sorted(reader.unread)[:3])}"
        )
    return Weights(embedding, tuple(layers), norm, lm_head)


class _Reader:
    """Hands out tensors and remembers which nobody has asked for."""

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        kernels: Kernels,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._tensors = tensors
        self._kernels = kernels
        self._dtype = dtype
        self._device = device
        self.unread = set(tensors)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._joined([(name, shape)])

    def _stored(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        stored = self._tensors.get(name)
        if stored is None:
            raise invalid(f"the checkpoint has no tensor {name}")
        if stored.shape != shape:
            raise invalid(
                f"tensor {name} has the shape {list(stored.shape)}; "
                f"the configuration says {list(shape)}"
            )
        self.unread.discard(name)
        return stored

    def linear(self, parts: list[tuple[str, int]], inputs: int, *, bias: bool) -> Linear:
        """One layer of the named ones, their outputs side by side."""
        weight = self._joined([(f"{name}.weight", (size, inputs)) for name, size in parts])
        biases = self._joined([(f"{name}.bias", (size,)) for name, size in parts]) if bias else None
        return self._kernels.pack_linear(weight, biases)

    def _joined(self, parts: list[tuple[str, tuple[int, ...]]]) -> Tensor:
        stored = [self._stored(name, shape) for name, shape in parts]
        return read_joined(stored, self._dtype, self._device)
