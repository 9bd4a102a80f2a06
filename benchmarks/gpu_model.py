"""A Llama of random weights that never were in a file, as the engine's runner."""

from dataclasses import dataclass

import numpy as np
import torch
from gpu_cases import ModelShape, Sizes
from gpu_clients import GREEDY
from gpu_target import Target
from torch import Tensor

from fastgen_kernels.heads import Heads
from fastgen_kernels.torch_twins.linear import Linear
from fastgen_runtime.device.forward import ModelForward
from fastgen_runtime.device.graphs import Capture, DecodeGraphs, cuda_capture, sizes_up_to
from fastgen_runtime.device.model import Model
from fastgen_runtime.device.runner import Runner
from fastgen_runtime.device.weights import FeedForward, LayerWeights, Norm, Weights
from fastgen_runtime.engine.step import Chunk, Step
from fastgen_runtime.models.model_config import ModelConfig, RopeScaling

_ROPE_THETA = 500_000.0


def config_of(shape: ModelShape) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        num_layers=shape.num_layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_size,
        vocab_size=shape.vocabulary,
        max_positions=shape.length,
        norm_eps=1e-5,
        rope_theta=_ROPE_THETA,
        rope_scaling=RopeScaling(),
        tied_embeddings=False,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Runners:
    """The same model and cache. graphs: decode steps of up to the most clients are captured, on a
    GPU. eager: none."""

    graphs: Runner
    eager: Runner


@torch.inference_mode()
def make_runners(target: Target, sizes: Sizes, capture: Capture | None = None) -> Runners:
    """capture: of decode steps; None: CUDA's graphs on a GPU, and no capture elsewhere."""
    config = config_of(sizes.model)
    model = Model(config, _weights(target, sizes.model), target.kernels, sizes.model.length)
    cache = target.random(
        config.num_layers, 2, sizes.num_blocks, sizes.block_size, config.num_kv_heads,
        config.head_dim,
    )  # fmt: skip
    if capture is None and target.is_gpu:
        capture = cuda_capture()
    graphs = None
    if capture is not None:
        most = max(*sizes.clients, *sizes.step_rows)
        graphs = decode_graphs(target, model, config, cache, most, capture)
    by_graphs, eager = (
        Runner(
            ModelForward(model, config, target.kernels, cache, each),
            config,
            target.kernels,
            cache,
        )
        for each in (graphs, None)
    )
    return Runners(by_graphs, eager)


def decode_graphs(
    target: Target, model: Model, config: ModelConfig, cache: Tensor, most: int, capture: Capture
) -> DecodeGraphs:
    """As `Loader.graphs`, for steps of up to `most` requests."""
    from fastgen_kernels.triton_kernels.attention_plan import StaticDecodePlan

    rows, slots, block_size = sizes_up_to(most), cache.flatten(2, 3), cache.shape[3]
    heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim)
    blocks = -(-config.max_positions // block_size)
    plan = StaticDecodePlan(rows[-1], blocks, heads, block_size, target.device, target.gpu)
    return DecodeGraphs(
        lambda inputs: model.hidden(inputs, slots), {None: plan}, rows, target.device, capture
    )


def decode_step(shape: ModelShape, rows: int, context: int, block_size: int) -> Step:
    """One token of each request after `context` others that nobody computed."""
    return _step(shape, [1] * rows, context, block_size)


def prompt_step(shape: ModelShape, tokens: int, block_size: int) -> Step:
    """One prompt from its begin."""
    return _step(shape, [tokens], 0, block_size)


def _step(shape: ModelShape, sizes: list[int], start: int, block_size: int) -> Step:
    rng = np.random.default_rng(len(sizes))
    blocks = -(-(start + max(sizes)) // block_size)
    return Step(
        tuple(
            Chunk(
                request_id=str(number),
                token_ids=rng.integers(0, shape.vocabulary, size).tolist(),
                start=start,
                block_ids=tuple(range(number * blocks, (number + 1) * blocks)),
                sampling=GREEDY,
            )
            for number, size in enumerate(sizes)
        )
    )


def _weights(target: Target, shape: ModelShape) -> Weights:
    """Such that numbers keep their size from layer to layer."""
    hidden, query = shape.hidden, shape.num_heads * shape.head_size
    seeds = iter(range(8 * shape.num_layers + 8))

    def linear(outputs: int, inputs: int) -> Linear:
        weight = target.random(outputs, inputs, seed=next(seeds), scale=inputs**-0.5)
        return target.kernels.pack_linear(weight, None)

    def norm() -> Norm:
        return Norm(torch.ones(hidden, dtype=target.dtype, device=target.device), None)

    def layer() -> LayerWeights:
        return LayerWeights(
            attention_norm=norm(),
            qkv=linear(query + 2 * shape.num_kv_heads * shape.head_size, hidden),
            query_norm=None,
            key_norm=None,
            output=linear(hidden, query),
            feed_forward_norm=norm(),
            feed_forward=FeedForward(linear(2 * shape.inner, hidden), linear(hidden, shape.inner)),
        )

    layers = tuple(layer() for _ in range(shape.num_layers))
    embedding = target.random(shape.vocabulary, hidden, seed=next(seeds))
    head = linear(shape.vocabulary, hidden)
    return Weights(embedding, None, None, layers, norm(), None, head)
