"""A random model twice: computed by torch, and by the compiled step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastgen_kernels.cpu_step.compiler import build
from fastgen_kernels.cpu_step.description import (
    Arrangement,
    Element,
    NormKind,
    StepExperts,
    StepModel,
)
from fastgen_kernels.cpu_step.isa import Isa
from fastgen_kernels.cpu_step.step import CpuStep
from fastgen_kernels.cpu_step.weights import Packer, StepLayer, StepMixture, StepWeights
from fastgen_kernels.dispatch import Device, kernels_for
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.torch_twins.quantized import WeightFormat, quantize
from fastgen_runtime.device.model import Inputs, Model
from fastgen_runtime.device.rotary import frequencies
from fastgen_runtime.device.weights import FeedForward, LayerWeights, Mixture, Norm, Weights
from fastgen_runtime.models.model_config import Block, Experts, ModelConfig, RopeScaling

VOCABULARY = 77
POSITIONS = 512
KERNELS = kernels_for(Device("cpu"))


def tiny(**differences: Any) -> ModelConfig:
    """A small Llama, but for the differences."""
    values: dict[str, Any] = {
        "architecture": "", "num_layers": 2, "hidden_size": 40, "intermediate_size": 48,
        "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY,
        "max_positions": POSITIONS, "norm_eps": 1e-5, "rope_theta": 1e4,
        "rope_scaling": RopeScaling(), "tied_embeddings": True,
    }  # fmt: skip
    return ModelConfig(**(values | differences))


def step_model(
    config: ModelConfig,
    block_size: int,
    weights: Element,
    cache: Element,
    int8_group: int | None = None,
) -> StepModel:
    """What the step has to know of it."""
    return StepModel(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        norm_eps=config.norm_eps,
        rotary_dim=config.rotated,
        block_size=block_size,
        weights=weights,
        cache=cache,
        int8_group=int8_group,
        windows=tuple(map(config.window, range(config.num_layers))) if config.windows else (),
        norm=NormKind(config.norm),
        arrangement=Arrangement(config.block),
        activation=config.activation,
        gated=config.gated,
        query_key_norm=config.query_key_norm,
        final_norm=config.final_norm,
        experts=None if config.experts is None else _step_experts(config.experts),
    )


def _step_experts(experts: Experts) -> StepExperts:
    return StepExperts(
        experts.count, experts.per_token, experts.intermediate_size, experts.renormalise
    )


class Drawing:
    """Random weights, the same for both: rounded as the step keeps them."""

    def __init__(self, seed: int, model: StepModel) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._model = model
        self.packer = Packer(model)

    def tensor(self, *shape: int, scale: float = 1.0) -> Tensor:
        drawn = torch.randn(shape, generator=self._generator) * scale
        return drawn.bfloat16().float() if self._model.weights is Element.BF16 else drawn

    def linear(self, outputs: int, inputs: int, bias: bool) -> tuple[Any, Any]:
        weight = self.tensor(outputs, inputs, scale=inputs**-0.5)
        return self.packed(weight, self.tensor(outputs, scale=0.3) if bias else None)

    def packed(self, weight: Tensor, bias: Tensor | None) -> tuple[Any, Any]:
        """Of weight [outputs, inputs], rounded to int8 where the model's are."""
        if (group := self._model.int8_group) is None:
            return KERNELS.pack_linear(weight, bias), self.packer.linear(weight, bias)
        rounded = quantize(weight, WeightFormat.INT8, group)
        return KERNELS.pack_quantized(rounded, bias), self.packer.quantized(rounded, bias)

    def norm(self, width: int, bias: bool) -> Norm:
        weight = 1 + self.tensor(width, scale=0.2)
        return Norm(weight, self.tensor(width, scale=0.2) if bias else None)


def draw_weights(config: ModelConfig, drawing: Drawing) -> tuple[Weights, StepWeights]:
    """For the twin and for the step."""
    width = config.hidden_size
    layers = [_layer(config, drawing, number) for number in range(config.num_layers)]
    embedding = drawing.tensor(config.vocab_size, width)
    positions = None
    if config.position_offset is not None:
        positions = drawing.tensor(config.max_positions + config.position_offset, width)
    norm = drawing.norm(width, config.norm_bias) if config.final_norm else None
    head = (
        drawing.packed(embedding, None)
        if config.tied_embeddings
        else drawing.linear(config.vocab_size, width, config.head_bias)
    )
    is_shared = config.tied_embeddings and head[1].scales is None
    cos = sin = None
    if config.rotated:
        turned = frequencies(config.rotated, config.rope_theta, config.rope_scaling, POSITIONS)
        angles = torch.outer(torch.arange(POSITIONS).float(), turned)
        cos, sin = angles.cos(), angles.sin()
    twin = Weights(
        embedding, positions, None, tuple(layer[0] for layer in layers), norm, None, head[0]
    )
    step = StepWeights(
        embedding=None if is_shared else embedding,
        positions=None if positions is None else positions[config.position_offset :],
        layers=tuple(layer[1] for layer in layers),
        norm=None if norm is None else norm.weight,
        norm_bias=None if norm is None else norm.bias,
        lm_head=head[1],
        cos=cos,
        sin=sin,
    )
    return twin, step


def _layer(config: ModelConfig, drawing: Drawing, number: int) -> tuple[LayerWeights, StepLayer]:
    width = config.hidden_size
    heads, size = config.num_heads, config.head_dim
    first = drawing.norm(width, config.norm_bias)
    second = None if config.block is Block.PARALLEL else drawing.norm(width, config.norm_bias)
    qkv = drawing.linear((heads + 2 * config.num_kv_heads) * size, width, config.qkv_bias)
    output = drawing.linear(width, heads * size, config.output_bias)
    is_mixture = config.experts is not None and config.experts.layers[number]
    fed = (_mixture if is_mixture else _feed_forward)(config, drawing)
    query_norm = key_norm = None
    if config.query_key_norm:
        query_norm, key_norm = (drawing.norm(size, False).weight for _ in range(2))
    twin = LayerWeights(first, qkv[0], query_norm, key_norm, output[0], second, fed[0])
    step = StepLayer(
        first.weight, first.bias, qkv[1], query_norm, key_norm, output[1],
        None if second is None else second.weight,
        None if second is None else second.bias, *fed[1],
    )  # fmt: skip
    return twin, step


def _feed_forward(config: ModelConfig, drawing: Drawing) -> tuple[Any, tuple[Any, ...]]:
    width, inner = config.hidden_size, config.intermediate_size
    up = drawing.linear(inner * (2 if config.gated else 1), width, config.mlp_bias)
    down = drawing.linear(width, inner, config.mlp_bias)
    return FeedForward(up[0], down[0]), (up[1], down[1])


def _mixture(config: ModelConfig, drawing: Drawing) -> tuple[Any, tuple[Any, ...]]:
    width, experts = config.hidden_size, config.experts
    assert experts is not None
    inner = experts.intermediate_size
    weights = [
        (
            drawing.tensor(2 * inner, width, scale=width**-0.5),
            drawing.tensor(width, inner, scale=inner**-0.5),
        )
        for _ in range(experts.count)
    ]
    router = drawing.linear(experts.count, width, False)
    twin = Mixture(router[0], KERNELS.pack_experts(weights), experts.per_token, experts.renormalise)
    return twin, (None, None, StepMixture(router[1], drawing.packer.experts(weights)))


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk of a request: its tokens from position `start` on, and its blocks."""

    token_ids: Sequence[int]
    start: int
    blocks: Sequence[int]


class Pair:
    """Both, each with a cache in which all that nobody wrote is NaN."""

    def __init__(
        self,
        config: ModelConfig,
        library: Callable[[StepModel, Isa], Path],
        isa: Isa,
        block_size: int = 16,
        weights: Element = Element.FP32,
        cache: Element = Element.FP32,
        threads: int = 2,
        blocks: int = 64,
        int8_group: int | None = None,
    ) -> None:
        self._config = config
        self.block_size, self.blocks = block_size, blocks
        described = step_model(config, block_size, weights, cache, int8_group)
        assert described.unsupported(isa) is None
        twin, step = draw_weights(config, Drawing(1, described))
        self._model = Model(config, twin, KERNELS, POSITIONS)
        self.step_weights = step
        self.step = CpuStep(library(described, isa), described, step, threads)
        shape = (
            config.num_layers, 2, blocks, block_size, config.num_kv_heads, config.head_dim,
        )  # fmt: skip
        self._twin_cache = torch.full(shape, torch.nan).flatten(2, 3)
        dtype = torch.bfloat16 if cache is Element.BF16 else torch.float32
        self.cache = torch.full(shape, torch.nan, dtype=dtype)

    def computed(self, pieces: Sequence[Piece], rows: Sequence[int] | None = None) -> Tensor:
        """The step's hidden states of these rows; None: of all."""
        batch, token_ids = self._batch(pieces)
        wanted = np.arange(len(token_ids)) if rows is None else np.array(rows)
        return self.step.hidden(batch, token_ids, wanted, self.cache)

    def expected(self, pieces: Sequence[Piece], rows: Sequence[int] | None = None) -> Tensor:
        """The twin's."""
        batch, token_ids = self._batch(pieces)
        heads = Heads(self._config.num_heads, self._config.num_kv_heads, self._config.head_dim)
        wanted = torch.arange(len(token_ids)) if rows is None else torch.tensor(rows)
        inputs = Inputs(
            token_ids=torch.from_numpy(token_ids),
            positions=torch.from_numpy(batch.positions),
            write_slots=torch.from_numpy(batch.write_slots),
            attention_plans={
                window: KERNELS.plan_attention(
                    batch, heads, torch.float32, torch.device("cpu"), window
                )
                for window in self._config.distinct_windows
            },
            wanted_rows=wanted,
        )
        with torch.inference_mode():
            return self._model.hidden(inputs, self._twin_cache)

    def expected_logits(self, hidden: Tensor) -> Tensor:
        with torch.inference_mode():
            return self._model.lm_head(hidden)

    def _batch(self, pieces: Sequence[Piece]) -> tuple[RaggedBatch, np.ndarray]:
        batch = RaggedBatch.of(
            [piece.start for piece in pieces],
            [len(piece.token_ids) for piece in pieces],
            [piece.blocks for piece in pieces],
            self.block_size,
        )
        return batch, np.array([token for piece in pieces for token in piece.token_ids])


def compiled_into(folder: Path) -> Callable[[StepModel, Isa], Path]:
    """Compiles models into the folder, each once."""
    return lambda model, isa: build(model, isa, folder).path
